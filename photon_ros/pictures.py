"""Whatever callers hold a picture in becomes a Frame."""

from __future__ import annotations

import os
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from photon_ros.core.errors import ImageError
from photon_ros.core.frame import Frame
from photon_ros.picture_files import load_image, rgb_from_pillow
from photon_ros.pixels import check_size

Picture = Union[NDArray[np.uint8], Image.Image, Frame, str, "os.PathLike[str]"]
"""A picture as somebody holds it.

uint8 of shape (height, width, 3) is RGB (of OpenCV's BGR take ``cv2.cvtColor(image,
cv2.COLOR_BGR2RGB)``), of shape (height, width, 4) RGBA, shown on white, of shape (height, width)
or (height, width, 1) grey; or a Pillow image of any mode, a Frame, or a picture file's path.
"""


def frame_of(picture: Picture) -> Frame:
    """Return a Frame of the picture; a Frame is returned as it is, and keeps what was encoded.

    A Pillow image and a file are turned the right way up by their orientation tag; of an
    animation the current picture is taken, of a file's the first.

    Raises:
        ImageError: it is of the wrong type, has no pixels, too many, or cannot be decoded; or
            there is no such file.
    """
    if isinstance(picture, Frame):
        return picture
    if isinstance(picture, Image.Image):
        return Frame(_pixels_of(picture))
    if isinstance(picture, (str, os.PathLike)):
        return Frame(load_image(picture))
    if not isinstance(picture, np.ndarray):
        raise ImageError(
            "image must be a numpy array, a PIL image, a Frame or the path of a picture file, "
            f"got {type(picture).__name__}"
        )
    _check_array(picture)
    return Frame(_in_colour(picture))


def _pixels_of(image: Image.Image) -> NDArray[np.uint8]:
    check_size(image.width, image.height)
    try:
        image.load()
        return rgb_from_pillow(ImageOps.exif_transpose(image))
    except (OSError, SyntaxError, ValueError, MemoryError) as error:
        raise ImageError(f"image cannot be decoded: {error}") from error


def _in_colour(array: NDArray[Any]) -> NDArray[Any]:
    """Return grey and RGBA pixels as RGB, everything else as it is."""
    is_grey = array.ndim == 2 or (array.ndim == 3 and array.shape[2] == 1)
    is_rgba = array.ndim == 3 and array.shape[2] == 4
    if array.dtype != np.uint8 or 0 in array.shape or not (is_grey or is_rgba):
        return array
    check_size(array.shape[1], array.shape[0])
    shape = array.shape[:2] if is_grey else array.shape
    return rgb_from_pillow(Image.fromarray(np.ascontiguousarray(array).reshape(shape)))


def _check_array(array: NDArray[Any]) -> None:
    frame_like = array.ndim == 3 and array.shape[2] == 3
    if frame_like and array.dtype == np.uint8:
        check_size(array.shape[1], array.shape[0])
    elif frame_like and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ImageError(
            f"image holds NaN or infinity; it must be uint8 RGB in 0..255, got {array.dtype}"
        )
