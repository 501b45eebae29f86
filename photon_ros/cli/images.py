"""Picture files as people have them: any format, any mode, turned the right way up."""

from __future__ import annotations

from pathlib import Path

from PIL import ImageOps

from photon_ros.core.errors import ImageError
from photon_ros.picture_files import open_image, reading, rgb_from_pillow
from photon_ros.pixels import Pixels, check_size


def load_image(path: Path) -> Pixels:
    """Return the picture as (height, width, 3) uint8 RGB, the first one of an animation.

    A camera's orientation tag is applied, as every viewer does. Raises ImageError with the
    reason: absent, empty, unknown format, damaged, too large.
    """
    name = f"image {path}"
    if not path.is_file():
        raise ImageError(f"{name} {'is not a file' if path.exists() else 'does not exist'}")
    try:
        if path.stat().st_size == 0:
            raise ImageError(f"{name} is empty (0 bytes)")
    except OSError as error:
        raise ImageError(f"{name} cannot be read: {error.strerror}") from error
    with open_image(str(path), name) as image, reading(name):
        check_size(image.width, image.height)
        return rgb_from_pillow(ImageOps.exif_transpose(image))
