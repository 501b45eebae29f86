"""Camera bytes to RGB: what a sensor_msgs/Image or CompressedImage carries, free of ROS.

The two entry points, each raising ImageError with the reason:

    decode_raw(data, *, encoding, width, height, step, is_bigendian=False,
               depth_policy="reject", max_pixels=MAX_PIXELS) -> (height, width, 3) uint8 RGB
    decode_compressed(data, *, image_format="", depth_policy="reject", max_pixels=MAX_PIXELS)
               -> (height, width, 3) uint8 RGB

Nothing in a message is trusted: a width, step, size or encoding that does not fit the bytes is
an error and never a crash or a read past the end. The result may share memory with ``data``.
"""

from __future__ import annotations

import array
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Union

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from photon_ros.core.errors import ImageError

Pixels = NDArray[np.uint8]
RawData = Union[bytes, bytearray, memoryview, "array.array[int]", Pixels]
DepthPolicy = Literal["reject", "normalize"]

MAX_PIXELS: Final = 50_000_000
"""Pixels above which an image is refused, unless the caller says otherwise."""

PICTURE_FORMATS: Final = (
    "PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "AVIF", "JPEG2000", "TGA", "ICO",
)  # fmt: skip
"""Formats of picture files that are opened, by Pillow's names (PPM is the whole PNM family).

No format that is a program for another interpreter (EPS) or that nobody stores pictures in.
"""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How one encoding lies in memory.

    Attributes:
        dtype: numpy type of one sample, without byte order.
        samples: samples a pixel takes in a row (2 for packed 4:2:2).
        to_rgb: rows of shape (num_rows, width * samples), native byte order, to RGB.
        even_width, even_height: sizes that the chroma subsampling asks for.
        rows_per_2: rows stored for each two rows of the picture (3 when a half-height chroma
            plane follows the luma plane).
        min_side: smallest width and height that hold one whole colour pattern.
        depth: True for metric depth, which ``depth_policy`` decides about.
    """

    dtype: str
    samples: int
    to_rgb: Callable[[NDArray[Any]], Pixels]
    even_width: bool = False
    even_height: bool = False
    rows_per_2: int = 2
    min_side: int = 1
    depth: bool = False


def _gray8(rows: NDArray[Any]) -> Pixels:
    return np.repeat(rows[:, :, None], 3, axis=2)


def _gray16(rows: NDArray[Any]) -> Pixels:
    # 65535 / 257 == 255: the full range maps onto the full range, rounded.
    return _gray8(((rows.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _channels(order: tuple[int, ...], samples: int) -> Callable[[NDArray[Any]], Pixels]:
    def convert(rows: NDArray[Any]) -> Pixels:
        pixels = rows.reshape(rows.shape[0], -1, samples)
        if order == (0, 1, 2) and samples == 3:
            return pixels
        return np.ascontiguousarray(pixels[:, :, order])

    return convert


def _bayer(code: int) -> Callable[[NDArray[Any]], Pixels]:
    def convert(rows: NDArray[Any]) -> Pixels:
        # OpenCV leaves the outer pixels to their neighbours, and a 2x2 image black. Mirroring
        # around the edge pixel keeps the pattern, so every pixel is interpolated.
        padded = np.pad(rows, 2, mode="reflect")
        return np.ascontiguousarray(_cv_convert(padded, code)[2:-2, 2:-2])

    return convert


def _packed_422(code: int) -> Callable[[NDArray[Any]], Pixels]:
    def convert(rows: NDArray[Any]) -> Pixels:
        return _cv_convert(rows.reshape(rows.shape[0], -1, 2), code)

    return convert


def _semi_planar(code: int) -> Callable[[NDArray[Any]], Pixels]:
    def convert(rows: NDArray[Any]) -> Pixels:
        return _cv_convert(rows, code)

    return convert


def _cv_convert(pixels: NDArray[Any], code: int) -> Pixels:
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), code), dtype=np.uint8)


def _normalized_depth(rows: NDArray[Any]) -> Pixels:
    """Map the valid depths of one image linearly to 0..255, near dark; invalid ones to 0.

    Zero millimetres (16UC1) and non-finite metres (32FC1) mean "no reading".
    """
    with np.errstate(invalid="ignore"):  # casting a signalling NaN sets the flag
        depth = rows.astype(np.float64)
    valid = np.isfinite(depth) if rows.dtype.kind == "f" else rows != 0
    gray = np.zeros(depth.shape, np.uint8)
    if valid.any():
        near, far = float(depth[valid].min()), float(depth[valid].max())
        scaled = (depth[valid] - near) / (far - near) if far > near else 0.5
        gray[valid] = np.rint(np.multiply(scaled, 255.0)).astype(np.uint8)
    return _gray8(gray)


# OpenCV names a Bayer pattern by the second row's second and third pixel, ROS by the first two
# pixels of the first two rows: "rggb" is OpenCV's BayerBG.
_LAYOUTS: Final[dict[str, _Layout]] = {
    "mono8": _Layout("u1", 1, _gray8),
    "mono16": _Layout("u2", 1, _gray16),
    "rgb8": _Layout("u1", 3, _channels((0, 1, 2), 3)),
    "rgba8": _Layout("u1", 4, _channels((0, 1, 2), 4)),
    "bgr8": _Layout("u1", 3, _channels((2, 1, 0), 3)),
    "bgra8": _Layout("u1", 4, _channels((2, 1, 0), 4)),
    "bayer_rggb8": _Layout("u1", 1, _bayer(cv2.COLOR_BayerBG2RGB), min_side=2),
    "bayer_bggr8": _Layout("u1", 1, _bayer(cv2.COLOR_BayerRG2RGB), min_side=2),
    "bayer_gbrg8": _Layout("u1", 1, _bayer(cv2.COLOR_BayerGR2RGB), min_side=2),
    "bayer_grbg8": _Layout("u1", 1, _bayer(cv2.COLOR_BayerGB2RGB), min_side=2),
    "yuv422": _Layout("u1", 2, _packed_422(cv2.COLOR_YUV2RGB_UYVY), True),
    "uyvy": _Layout("u1", 2, _packed_422(cv2.COLOR_YUV2RGB_UYVY), True),
    "yuv422_yuy2": _Layout("u1", 2, _packed_422(cv2.COLOR_YUV2RGB_YUY2), True),
    "yuyv": _Layout("u1", 2, _packed_422(cv2.COLOR_YUV2RGB_YUY2), True),
    "nv12": _Layout("u1", 1, _semi_planar(cv2.COLOR_YUV2RGB_NV12), True, True, rows_per_2=3),
    "16UC1": _Layout("u2", 1, _normalized_depth, depth=True),
    "32FC1": _Layout("f4", 1, _normalized_depth, depth=True),
}

ENCODINGS: Final = tuple(_LAYOUTS)
"""Every encoding that :func:`decode_raw` takes."""


def decode_raw(
    data: RawData,
    *,
    encoding: str,
    width: int,
    height: int,
    step: int,
    is_bigendian: bool = False,
    depth_policy: DepthPolicy = "reject",
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """Return the RGB pixels of a sensor_msgs/Image, (height, width, 3) uint8.

    Args:
        data: the message's bytes, rows of ``step`` bytes; the last row may lack its padding.
        step: bytes from one row to the next.
        depth_policy: what to do with 16UC1 and 32FC1: refuse, or show as grey, the image's own
            nearest to farthest reading stretched over 0..255.
    """
    layout = _LAYOUTS.get(encoding)
    if layout is None:
        raise ImageError(f"encoding {encoding!r} is not one of {', '.join(ENCODINGS)}")
    _check_depth(layout.depth, encoding, depth_policy)
    check_size(width, height, max_pixels)
    if (layout.even_width and width % 2) or (layout.even_height and height % 2):
        sides = "width and height" if layout.even_height else "width"
        raise ImageError(f"{encoding} needs an even {sides}, got {width}x{height}")
    if min(width, height) < layout.min_side:
        raise ImageError(f"{encoding} needs at least 2x2 pixels, got {width}x{height}")
    rows = _rows(data, layout, encoding, width, height, step, is_bigendian)
    return layout.to_rgb(rows)


def _check_depth(is_depth: bool, encoding: str, depth_policy: DepthPolicy) -> None:
    if is_depth and depth_policy == "reject":
        raise ImageError(f"{encoding} is depth, and depth_policy is reject (allowed: normalize)")


def check_size(width: int, height: int, max_pixels: int = MAX_PIXELS) -> None:
    """Raise ImageError when an image of that size has no pixels or more than ``max_pixels``."""
    if width < 1 or height < 1:
        raise ImageError(f"image has no pixels: {width}x{height}")
    if width * height > max_pixels:
        raise ImageError(
            f"image of {width}x{height} is too large: {width * height} pixels, "
            f"at most {max_pixels} are taken"
        )


def _rows(
    data: RawData,
    layout: _Layout,
    encoding: str,
    width: int,
    height: int,
    step: int,
    is_bigendian: bool,
) -> NDArray[Any]:
    """Return the rows without padding, (num_rows, width * samples), native byte order."""
    dtype = np.dtype(layout.dtype).newbyteorder(">" if is_bigendian else "<")
    row_bytes = width * layout.samples * dtype.itemsize
    num_rows = height * layout.rows_per_2 // 2
    if step < row_bytes:
        raise ImageError(f"step is {step} bytes; {width} pixels of {encoding} take {row_bytes}")
    flat = _flat_bytes(data)
    least, most = step * (num_rows - 1) + row_bytes, step * num_rows
    if not least <= flat.size <= most:
        raise ImageError(
            f"image data has {flat.size} bytes; "
            f"{width}x{height} {encoding} with step {step} needs {most}"
        )
    # A view of the bytes as they are. The step may be huge, and nothing of its size is allocated;
    # the check of ``least`` above keeps the last row within the data.
    rows = np.lib.stride_tricks.as_strided(flat, (num_rows, row_bytes), (step, 1))
    if dtype.itemsize == 1:
        return rows
    # A row may start at an odd address when step is odd: copy before reading wide samples.
    samples: NDArray[Any] = np.ascontiguousarray(rows).view(dtype)
    return samples.astype(dtype.newbyteorder("="))


def _flat_bytes(data: RawData) -> Pixels:
    if len(data) == 0:  # numpy refuses an empty buffer
        return np.zeros(0, np.uint8)
    try:
        return np.frombuffer(data, np.uint8)
    except (ValueError, BufferError) as error:
        raise ImageError(f"image data cannot be read as bytes: {error}") from error


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
    stream = io.BytesIO(_flat_bytes(data).tobytes())
    name = "compressed image"
    with open_image(stream, name, max_pixels) as image, reading(name):
        if image_format.startswith("16UC1"):
            _check_depth(True, "16UC1", depth_policy)
            num_channels = len(image.getbands())
            if num_channels != 1:
                raise ImageError(
                    f"{name} of format {image_format!r} needs 1 channel, "
                    f"the picture has {num_channels} ({image.mode})"
                )
            return _normalized_depth(np.asarray(image, dtype=np.uint16))
        return rgb_from_pillow(image)


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
    with reading("compressed image"), _opened(io.BytesIO(_flat_bytes(data).tobytes())) as image:
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
        return _gray16(np.asarray(image).astype(np.uint16))
    if image.mode in ("I", "F"):
        return _normalized_depth(np.asarray(image).astype(np.float32))
    if image.mode != "RGB" and image.has_transparency_data:
        shown = Image.new("RGBA", image.size, "white")
        shown.alpha_composite(image.convert("RGBA"))
        image = shown
    return np.array(image.convert("RGB"))
