"""Camera bytes to RGB: what a sensor_msgs/Image carries, free of ROS.

The entry point raises ImageError with the reason:

    decode_raw(data, *, encoding, width, height, step, is_bigendian=False,
               depth_policy="reject", max_pixels=MAX_PIXELS) -> (height, width, 3) uint8 RGB

Nothing in a message is trusted: a width, step, size or encoding that does not fit the bytes is
an error and never a crash or a read past the end. The result may share memory with ``data``.
"""

from __future__ import annotations

import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Union

import cv2
import numpy as np
from numpy.typing import NDArray

from photon_ros.core.errors import ImageError

Pixels = NDArray[np.uint8]
RawData = Union[bytes, bytearray, memoryview, "array.array[int]", Pixels]
DepthPolicy = Literal["reject", "normalize"]

MAX_PIXELS: Final = 50_000_000
"""Pixels above which an image is refused, unless the caller says otherwise."""


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
    return _cv_convert(rows, cv2.COLOR_GRAY2RGB)


def gray16(rows: NDArray[Any]) -> Pixels:
    """Return (height, width, 3) uint8 of 16-bit grey (height, width)."""
    # 65535 / 257 == 255: the full range maps onto the full range, rounded.
    return _gray8(((rows.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _rgb(rows: NDArray[Any]) -> Pixels:
    return rows.reshape(rows.shape[0], -1, 3)


def _reordered(code: int, samples: int) -> Callable[[NDArray[Any]], Pixels]:
    def convert(rows: NDArray[Any]) -> Pixels:
        return _cv_convert(rows.reshape(rows.shape[0], -1, samples), code)

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
    packed = np.ascontiguousarray(pixels)
    if packed.shape[:2] == (1, 1):  # OpenCV 4.5 refuses a single pixel of three channels
        return _cv_convert(np.repeat(packed, 2, axis=0), code)[:1]
    return np.asarray(cv2.cvtColor(packed, code), dtype=np.uint8)


def normalized_depth(rows: NDArray[Any]) -> Pixels:
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
    "mono16": _Layout("u2", 1, gray16),
    "rgb8": _Layout("u1", 3, _rgb),
    "rgba8": _Layout("u1", 4, _reordered(cv2.COLOR_RGBA2RGB, 4)),
    "bgr8": _Layout("u1", 3, _reordered(cv2.COLOR_BGR2RGB, 3)),
    "bgra8": _Layout("u1", 4, _reordered(cv2.COLOR_BGRA2RGB, 4)),
    "bayer_rggb8": _Layout("u1", 1, _bayer(cv2.COLOR_BayerBG2RGB), min_side=2),
    "bayer_bggr8": _Layout("u1", 1, _bayer(cv2.COLOR_BayerRG2RGB), min_side=2),
    "bayer_gbrg8": _Layout("u1", 1, _bayer(cv2.COLOR_BayerGR2RGB), min_side=2),
    "bayer_grbg8": _Layout("u1", 1, _bayer(cv2.COLOR_BayerGB2RGB), min_side=2),
    "yuv422": _Layout("u1", 2, _packed_422(cv2.COLOR_YUV2RGB_UYVY), True),
    "uyvy": _Layout("u1", 2, _packed_422(cv2.COLOR_YUV2RGB_UYVY), True),
    "yuv422_yuy2": _Layout("u1", 2, _packed_422(cv2.COLOR_YUV2RGB_YUY2), True),
    "yuyv": _Layout("u1", 2, _packed_422(cv2.COLOR_YUV2RGB_YUY2), True),
    "nv12": _Layout("u1", 1, _semi_planar(cv2.COLOR_YUV2RGB_NV12), True, True, rows_per_2=3),
    "16UC1": _Layout("u2", 1, normalized_depth, depth=True),
    "32FC1": _Layout("f4", 1, normalized_depth, depth=True),
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
    check_depth(layout.depth, encoding, depth_policy)
    check_size(width, height, max_pixels)
    if (layout.even_width and width % 2) or (layout.even_height and height % 2):
        sides = "width and height" if layout.even_height else "width"
        raise ImageError(f"{encoding} needs an even {sides}, got {width}x{height}")
    if min(width, height) < layout.min_side:
        raise ImageError(f"{encoding} needs at least 2x2 pixels, got {width}x{height}")
    rows = _rows(data, layout, encoding, width, height, step, is_bigendian)
    return layout.to_rgb(rows)


def check_depth(is_depth: bool, encoding: str, depth_policy: DepthPolicy) -> None:
    """Raise ImageError for depth that ``depth_policy`` refuses."""
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
    flat = flat_bytes(data)
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


def flat_bytes(data: RawData) -> Pixels:
    """Return (num_bytes,) uint8 of any buffer, sharing its memory."""
    if len(data) == 0:  # numpy refuses an empty buffer
        return np.zeros(0, np.uint8)
    try:
        return np.frombuffer(data, np.uint8)
    except (ValueError, BufferError) as error:
        raise ImageError(f"image data cannot be read as bytes: {error}") from error
