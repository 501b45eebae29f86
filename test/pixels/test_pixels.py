from __future__ import annotations

import array
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from photon_ros.core.errors import ImageError
from photon_ros.pixels import ENCODINGS, decode_raw

BYTES_PER_PIXEL = {
    "mono8": 1, "mono16": 2, "rgb8": 3, "rgba8": 4, "bgr8": 3, "bgra8": 4, "yuv422": 2, "uyvy": 2,
    "yuv422_yuy2": 2, "yuyv": 2, "16UC1": 2, "32FC1": 4,
}  # fmt: skip


def padded(rows: NDArray[Any], padding: int) -> bytes:
    """Return the rows' bytes, each followed by rubbish."""
    return b"".join(row.tobytes() + b"\xa5" * padding for row in rows)


def decode(rows: NDArray[Any], encoding: str, width: int, padding: int = 0, **more: Any) -> Any:
    row_bytes = rows[0].nbytes
    return decode_raw(
        padded(rows, padding),
        encoding=encoding,
        width=width,
        height=more.pop("height", len(rows)),
        step=row_bytes + padding,
        **more,
    )


@st.composite
def rgb_images(draw: st.DrawFn) -> NDArray[np.uint8]:
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@given(image=rgb_images(), padding=st.integers(0, 5))
def test_colour_encodings_come_back_as_they_went_in(image: NDArray[np.uint8], padding: int) -> None:
    alpha = np.full((*image.shape[:2], 1), 7, np.uint8)
    stored = {
        "rgb8": image,
        "bgr8": image[:, :, ::-1].copy(),
        "rgba8": np.concatenate([image, alpha], 2),
        "bgra8": np.concatenate([image[:, :, ::-1], alpha], 2),
    }
    for encoding, pixels in stored.items():
        assert np.array_equal(decode(pixels, encoding, image.shape[1], padding), image), encoding


@given(image=rgb_images(), padding=st.integers(0, 3))
def test_grey_is_the_same_in_all_three_channels(image: NDArray[np.uint8], padding: int) -> None:
    grey = image[:, :, 0].copy()
    decoded = decode(grey, "mono8", image.shape[1], padding)
    assert all(np.array_equal(decoded[:, :, channel], grey) for channel in range(3))


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 4])  # an odd step puts rows at odd addresses
def test_mono16_maps_its_full_range_in_either_byte_order(big: bool, padding: int) -> None:
    values = np.array([[0, 128, 257, 32896], [65535, 65280, 129, 0x1234]], np.uint16)
    stored = values.astype(">u2" if big else "<u2")
    decoded = decode(stored, "mono16", 4, padding, is_bigendian=big)
    assert decoded[:, :, 0].tolist() == [[0, 0, 1, 128], [255, 254, 1, 18]]


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
@pytest.mark.parametrize("shape", [(2, 2), (3, 5), (8, 8)])
def test_bayer_of_a_plain_colour_is_that_colour_up_to_the_border(
    pattern: str, shape: tuple[int, int]
) -> None:
    values = {"r": 200, "g": 100, "b": 50}
    mosaic = np.zeros(shape, np.uint8)
    for place, color in enumerate(pattern):
        mosaic[place // 2 :: 2, place % 2 :: 2] = values[color]
    decoded = decode(mosaic, f"bayer_{pattern}8", shape[1], 3)
    assert decoded.shape == (*shape, 3)
    assert np.unique(decoded.reshape(-1, 3), axis=0).tolist() == [[200, 100, 50]]


def test_bayer_interpolates_between_its_neighbours() -> None:
    mosaic = np.zeros((6, 6), np.uint8)
    mosaic[0::2, 0::2] = np.array([[0, 40, 80]] * 3)  # red rises by 40 every two pixels
    decoded = decode(mosaic, "bayer_rggb8", 6)
    assert decoded[2, :5, 0].tolist() == [0, 20, 40, 60, 80]
    assert not decoded[:, :, 1:].any()


def bt601(y: int, u: int, v: int) -> list[int]:
    """The studio range formula of ITU-R BT.601."""
    c, d, e = 1.164383 * (y - 16), u - 128, v - 128
    rgb = (c + 1.596027 * e, c - 0.391762 * d - 0.812968 * e, c + 2.017232 * d)
    return [round(min(max(value, 0), 255)) for value in rgb]


@pytest.mark.parametrize("encoding", ["yuv422", "uyvy", "yuv422_yuy2", "yuyv"])
def test_packed_yuv_follows_bt601_in_its_own_order(encoding: str) -> None:
    y0, u, y1, v = 120, 90, 180, 170
    is_uyvy = encoding in ("yuv422", "uyvy")
    group = [u, y0, v, y1] if is_uyvy else [y0, u, y1, v]
    rows = np.array([group * 2] * 2, np.uint8)
    decoded = decode(rows, encoding, 4, 2).astype(int)
    assert np.abs(decoded[0, 0] - bt601(y0, u, v)).max() <= 2
    assert np.abs(decoded[1, 3] - bt601(y1, u, v)).max() <= 2


def test_nv12_takes_its_chroma_from_the_half_height_plane() -> None:
    luma = np.full((4, 4), 100, np.uint8)
    luma[2:] = 200
    chroma = np.array([[90, 170] * 2, [128, 128] * 2], np.uint8)
    rows = np.concatenate([luma, chroma])
    decoded = decode(rows, "nv12", 4, 3, height=4).astype(int)
    assert decoded.shape == (4, 4, 3)
    assert np.abs(decoded[0, 0] - bt601(100, 90, 170)).max() <= 2
    assert np.abs(decoded[3, 3] - bt601(200, 128, 128)).max() <= 2


def test_depth_is_refused_unless_asked_for() -> None:
    with pytest.raises(ImageError, match="depth_policy is reject"):
        decode(np.ones((2, 2), np.uint16), "16UC1", 2)


def test_depth_is_stretched_between_its_own_nearest_and_farthest_reading() -> None:
    millimetres = np.array([[0, 1000], [1500, 3000]], np.uint16)
    decoded = decode(millimetres, "16UC1", 2, depth_policy="normalize")
    assert decoded[:, :, 0].tolist() == [[0, 0], [64, 255]]
    metres = np.array([[np.nan, -1.0], [np.inf, 3.0]], ">f4")
    decoded = decode(metres, "32FC1", 2, 1, depth_policy="normalize", is_bigendian=True)
    assert decoded[:, :, 0].tolist() == [[0, 0], [0, 255]]


@pytest.mark.parametrize("value", [0.0, np.nan, 5.0])
def test_depth_without_any_contrast_is_still_a_picture(value: float) -> None:
    decoded = decode(np.full((2, 3), value, np.float32), "32FC1", 3, depth_policy="normalize")
    assert decoded.shape == (2, 3, 3)
    assert len(np.unique(decoded)) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"encoding": "8UC7"}, "not one of mono8"),
        ({"encoding": "RGB8"}, "not one of"),
        ({"encoding": ""}, "not one of"),
        ({"width": 0}, "no pixels"),
        ({"height": 0}, "no pixels"),
        ({"step": 11}, "4 pixels of rgb8 take 12"),
        ({"step": 0}, "step is 0"),
        ({"width": 400}, "step is 12"),
        ({"height": 4}, "needs 48"),
        ({"height": 2}, "has 36 bytes"),
        ({"step": 2**32 - 1}, "needs"),
        ({"width": 60_000, "height": 60_000, "step": 180_000}, "too large"),
        ({"encoding": "yuyv", "width": 3, "step": 12}, "even width"),
        ({"encoding": "nv12", "width": 4, "step": 12}, "even width and height"),
        ({"encoding": "bayer_rggb8", "width": 1, "step": 12}, "at least 2x2"),
    ],
)
def test_a_message_that_lies_is_refused_with_the_reason(
    change: dict[str, Any], reason: str
) -> None:
    fields: dict[str, Any] = {"encoding": "rgb8", "width": 4, "height": 3, "step": 12}
    with pytest.raises(ImageError, match=reason):
        decode_raw(bytes(36), **(fields | change))


@pytest.mark.parametrize("missing", [1, 4])
def test_the_last_row_may_lack_its_padding_but_no_pixel(missing: int) -> None:
    image = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 3)
    data = padded(image, 4)[:-missing]
    assert np.array_equal(decode_raw(data, encoding="rgb8", width=2, height=2, step=10), image)
    with pytest.raises(ImageError, match="needs 20"):
        decode_raw(data[: -5 + missing], encoding="rgb8", width=2, height=2, step=10)


def test_nothing_at_all_is_an_error_not_a_crash() -> None:
    with pytest.raises(ImageError, match="has 0 bytes"):
        decode_raw(b"", encoding="mono8", width=1, height=1, step=1)


@pytest.mark.parametrize("kind", ["bytes", "bytearray", "memoryview", "array", "ndarray"])
def test_any_buffer_will_do(kind: str) -> None:
    raw = bytes(range(12))
    data: Any = {
        "bytes": raw,
        "bytearray": bytearray(raw),
        "memoryview": memoryview(raw),
        "array": array.array("B", raw),
        "ndarray": np.frombuffer(raw, np.uint8),
    }[kind]
    assert decode_raw(data, encoding="rgb8", width=2, height=2, step=6).tobytes() == raw


def test_rgb8_is_not_copied() -> None:
    data = np.arange(12, dtype=np.uint8)
    assert np.shares_memory(decode_raw(data, encoding="rgb8", width=2, height=2, step=6), data)


@given(
    encoding=st.sampled_from(ENCODINGS),
    width=st.integers(-1, 40),
    height=st.integers(-1, 40),
    step=st.integers(-1, 200),
    num_bytes=st.integers(0, 4000),
    big=st.booleans(),
)
def test_any_sizes_give_a_picture_or_an_image_error(
    encoding: str, width: int, height: int, step: int, num_bytes: int, big: bool
) -> None:
    data = np.resize(np.arange(256, dtype=np.uint8), num_bytes)
    try:
        image = decode_raw(
            data,
            encoding=encoding,
            width=width,
            height=height,
            step=step,
            is_bigendian=big,
            depth_policy="normalize",
        )
    except ImageError:
        return
    assert image.shape == (height, width, 3)
    assert image.dtype == np.uint8


@given(
    encoding=st.sampled_from(sorted(BYTES_PER_PIXEL)),
    half_width=st.integers(1, 10),
    height=st.integers(1, 10),
    padding=st.integers(0, 3),
)
def test_an_honest_message_is_always_taken(
    encoding: str, half_width: int, height: int, padding: int
) -> None:
    width = 2 * half_width
    step = width * BYTES_PER_PIXEL[encoding] + padding
    image = decode_raw(
        np.random.default_rng(0).integers(0, 256, step * height, np.uint8),
        encoding=encoding,
        width=width,
        height=height,
        step=step,
        depth_policy="normalize",
    )
    assert image.shape == (height, width, 3)


# --- compressed ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [30, 2**30, 2**32 - 1])
def test_a_huge_step_allocates_nothing_of_its_size(step: int) -> None:
    data = bytes(range(30))
    tracemalloc.start()
    try:
        pixels = decode_raw(data, encoding="rgb8", width=10, height=1, step=step)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert pixels.tobytes() == data


def test_a_huge_step_that_the_data_does_not_fill_is_an_error() -> None:
    with pytest.raises(ImageError, match=r"image data has 30 bytes; 5x2 rgb8 with step 4294967295"):
        decode_raw(b"\0" * 30, encoding="rgb8", width=5, height=2, step=2**32 - 1)


@pytest.mark.parametrize("encoding", ["rgb8", "mono16", "16UC1", "nv12", "bayer_rggb8", "yuyv"])
def test_a_last_row_without_padding_reads_like_one_with_padding(encoding: str) -> None:
    num_rows = 6 if encoding == "nv12" else 4
    row_bytes = {"rgb8": 12, "mono16": 8, "16UC1": 8, "yuyv": 8}.get(encoding, 4)
    rows = np.random.default_rng(3).integers(0, 256, (num_rows, row_bytes), np.uint8)
    data = padded(rows, 5)

    def pixels(data: bytes) -> Any:
        return decode_raw(
            data, encoding=encoding, width=4, height=4, step=row_bytes + 5, depth_policy="normalize"
        )

    assert np.array_equal(pixels(data[:-5]), pixels(data))
