"""Pictures in files and in compressed messages to RGB, through Pillow.

Each entry point raises ImageError with the reason:

    decode_compressed(data, *, image_format="", depth_policy="reject", max_pixels=MAX_PIXELS)
               -> (height, width, 3) uint8 RGB
    load_image(path) -> (height, width, 3) uint8 RGB, of a file and the right way up
    open_image(source, name, max_pixels=MAX_PIXELS) -> a decoded Pillow image
    rgb_from_pillow(image) -> (height, width, 3) uint8 RGB

Nothing in a picture is trusted: its size is checked before anything of that size is allocated.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from photon_ros.core.errors import ImageError
from photon_ros.pixels import (
    MAX_PIXELS,
    DepthPolicy,
    Pixels,
    RawData,
    check_depth,
    check_size,
    flat_bytes,
    gray16,
    normalized_depth,
)

PICTURE_FORMATS: Final = (
    "PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF", "JPEG2000", "TGA", "ICO",
)  # fmt: skip
"""Formats of picture files that are opened, by Pillow's names (PPM is the whole PNM family).

No format that is a program for another interpreter (EPS) or that nobody stores pictures in.
"""


def decode_compressed(
    data: RawData,
    *,
    image_format: str = "",
    depth_policy: DepthPolicy = "reject",
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """Return the RGB pixels of a sensor_msgs/CompressedImage, (height, width, 3) uint8.

    Any of PICTURE_FORMATS; what the bytes say counts, not what ``image_format`` says, except that
    "compressedDepth" is refused (its bytes are not a plain image) and that a picture of one
    channel whose format starts with 16UC1 is depth. An orientation tag is not applied:
    calibration and detections are in the sensor's pixels.
    """
    if "compressedDepth" in image_format:
        raise ImageError(
            f"compressed format {image_format!r} is not supported: publish the depth raw"
        )
    stream = io.BytesIO(flat_bytes(data).tobytes())
    name = "compressed image"
    with open_image(stream, name, max_pixels) as image, reading(name):
        if image_format.startswith("16UC1"):
            check_depth(True, "16UC1", depth_policy)
            num_channels = len(image.getbands())
            if num_channels != 1:
                raise ImageError(
                    f"{name} of format {image_format!r} needs 1 channel, "
                    f"the picture has {num_channels} ({image.mode})"
                )
            return normalized_depth(np.asarray(image, dtype=np.uint16))
        return rgb_from_pillow(image)


def load_image(path: str | os.PathLike[str]) -> Pixels:
    """Return the picture in a file as (height, width, 3) uint8 RGB, the first one of an animation.

    A camera's orientation tag is applied, as every viewer does. Raises ImageError with the
    reason: absent, empty, unknown format, damaged, too large.
    """
    file, name = Path(path), f"image {os.fspath(path)}"
    try:
        if not file.is_file():
            raise ImageError(f"{name} {'is not a file' if file.exists() else 'does not exist'}")
        if file.stat().st_size == 0:
            raise ImageError(f"{name} is empty (0 bytes)")
    except OSError as error:
        raise ImageError(f"{name} cannot be read: {error.strerror}") from error
    with open_image(str(file), name) as image, reading(name):
        return rgb_from_pillow(ImageOps.exif_transpose(image))


def open_image(source: io.BytesIO | str, name: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open and fully decode an image; raise ImageError naming ``name`` and the reason.

    The size is checked on the header, before anything of that size is allocated.
    """
    if isinstance(source, io.BytesIO) and not source.getbuffer().nbytes:
        raise ImageError(f"{name} is empty (0 bytes)")
    with reading(name):
        image = _opened(source)
        try:
            try:
                check_size(image.width, image.height, max_pixels)
            except ImageError as error:
                raise ImageError(f"{name}: {error}") from error
            image.load()
        except BaseException:
            image.close()
            raise
    return image


def compressed_size(data: RawData) -> tuple[int, int]:
    """Return (width, height) of a sensor_msgs/CompressedImage by its header, nothing decoded.

    Raises ImageError when the bytes are not a picture.
    """
    with reading("compressed image"), _opened(io.BytesIO(flat_bytes(data).tobytes())) as image:
        return image.width, image.height


def _opened(source: io.BytesIO | str) -> Image.Image:
    with warnings.catch_warnings():
        # Pillow's own limit is looser than ours, and only a warning up to twice its size.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(source, formats=_openable())


def _openable() -> list[str]:
    """Return the formats of PICTURE_FORMATS that this Pillow was built with."""
    Image.init()
    return [kind for kind in PICTURE_FORMATS if kind in Image.OPEN]


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn whatever goes wrong while a picture is read into an ImageError of one line.

    Pillow's readers, and the C libraries behind them, have no common base of their errors: a
    damaged file ends in OSError as well as in RuntimeError, TypeError, AssertionError and more.
    """
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError(f"{name} is not an image of a known format") from error
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name} is too large: {error}") from error
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(f"{name} cannot be read: {reason}") from error


def rgb_from_pillow(image: Image.Image) -> Pixels:
    """Return the RGB pixels of a decoded Pillow image of any mode, (height, width, 3) uint8.

    Transparency is shown on white, 16-bit grey is scaled to 8 bits over its full range, wider
    grey (modes I and F) over the image's own range.
    """
    if image.mode.startswith("I;16"):
        return gray16(np.asarray(image).astype(np.uint16))
    if image.mode in ("I", "F"):
        return normalized_depth(np.asarray(image).astype(np.float32))
    if image.mode != "RGB" and image.has_transparency_data:
        shown = Image.new("RGBA", image.size, "white")
        shown.alpha_composite(image.convert("RGBA"))
        image = shown
    return np.array(image.convert("RGB"))
