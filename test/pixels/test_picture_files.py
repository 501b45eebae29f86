"""Pictures in files and compressed messages: any mode, any damage, never a crash."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from photon_ros.core.errors import ImageError
from photon_ros.picture_files import decode_compressed, open_image, rgb_from_pillow
from photon_ros.pixels import check_size


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


GRADIENT = Image.fromarray(
    np.stack(
        np.broadcast_arrays(np.arange(64)[None, :] * 4, np.arange(48)[:, None] * 5, 128), 2
    ).astype(np.uint8)
)


def test_png_is_exact_and_jpeg_close() -> None:
    wanted = np.asarray(GRADIENT)
    assert np.array_equal(decode_compressed(encoded(GRADIENT, "PNG"), image_format="png"), wanted)
    jpeg = decode_compressed(
        encoded(GRADIENT, "JPEG", quality=95), image_format="bgr8; jpeg compressed bgr8"
    )
    assert np.abs(jpeg.astype(int) - wanted).max() < 12


def test_jpeg_decodes_as_opencv_would() -> None:
    data = encoded(GRADIENT, "JPEG", quality=90)
    reference = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    assert np.abs(decode_compressed(data).astype(int) - reference).max() <= 4


def test_an_orientation_tag_does_not_turn_the_sensors_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    decoded = decode_compressed(encoded(GRADIENT, "JPEG", exif=exif))
    assert decoded.shape == (48, 64, 3)


def test_sixteen_bits_are_grey_or_depth_by_their_format() -> None:
    values = np.array([[0, 1000], [2000, 65535]], np.uint16)
    data = encoded(Image.fromarray(values), "PNG")
    grey = decode_compressed(data, image_format="mono16; png compressed")
    assert grey[:, :, 0].tolist() == [[0, 4], [8, 255]]
    with pytest.raises(ImageError, match="depth_policy is reject"):
        decode_compressed(data, image_format="16UC1; png compressed")
    depth = decode_compressed(data, image_format="16UC1; png compressed", depth_policy="normalize")
    assert depth[:, :, 0].tolist() == [[0, 0], [4, 255]]


def png_header(width: int, height: int) -> bytes:
    """A PNG that states a size and holds nothing."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"")
    chunks = [
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (header, data)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("data", "image_format", "reason"),
    [
        (b"", "jpeg", "empty"),
        (b"not an image at all", "jpeg", "not an image of a known format"),
        (encoded(GRADIENT, "JPEG")[:400], "jpeg", "cannot be read"),
        (encoded(GRADIENT, "PNG")[:90], "png", "cannot be read"),
        (png_header(100_000, 100_000), "png", "too large"),
        (png_header(30_000, 30_000), "png", "too large"),
        (png_header(2000, 2000), "png", "cannot be read"),
        (encoded(GRADIENT, "PNG"), "16UC1; compressedDepth png", "publish the depth raw"),
    ],
)
def test_compressed_data_that_is_no_picture_is_refused(
    data: bytes, image_format: str, reason: str
) -> None:
    with pytest.raises(ImageError, match=reason):
        decode_compressed(data, image_format=image_format)


@given(st.binary(max_size=300), st.integers(0, 2000))
def test_rubbish_and_flipped_bytes_never_crash(rubbish: bytes, place: int) -> None:
    data = bytearray(encoded(GRADIENT, "JPEG"))
    data[place % len(data) :] = rubbish
    for candidate in (rubbish, bytes(data)):
        try:
            image = decode_compressed(candidate)
        except ImageError:
            continue
        assert image.ndim == 3


def test_the_limit_is_the_callers() -> None:
    data = encoded(GRADIENT, "PNG")
    with pytest.raises(ImageError, match="at most 3071"):
        decode_compressed(data, max_pixels=64 * 48 - 1)
    assert decode_compressed(data, max_pixels=64 * 48).shape == (48, 64, 3)
    check_size(10, 10, 100)
    with pytest.raises(ImageError, match="too large"):
        check_size(10, 11, 100)


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [
        ("L", 77, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("LA", (50, 0), (255, 255, 255)),
        ("RGBA", (10, 20, 30, 255), (10, 20, 30)),
        ("RGBA", (10, 20, 30, 0), (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), (255, 0, 0)),
        ("I;16", 65535, (255, 255, 255)),
        ("HSV", (0, 0, 90), (90, 90, 90)),
    ],
)
def test_every_pillow_mode_becomes_rgb(mode: str, color: Any, expected: tuple[int, ...]) -> None:
    assert rgb_from_pillow(Image.new(mode, (3, 2), color)).tolist() == [[list(expected)] * 3] * 2


def test_a_transparent_palette_colour_is_shown_on_white() -> None:
    image = Image.new("P", (2, 1), 0)
    image.putpalette([9, 9, 9, 200, 0, 0] + [0] * 762)
    image.putpixel((1, 0), 1)
    image.info["transparency"] = 0
    assert rgb_from_pillow(image).tolist() == [[[255, 255, 255], [200, 0, 0]]]


def test_wide_grey_is_stretched_over_its_own_range() -> None:
    values = np.array([[-5.0, 0.0, 5.0]], np.float32)
    assert rgb_from_pillow(Image.fromarray(values))[0, :, 0].tolist() == [0, 128, 255]


def test_opening_names_the_file_in_its_errors() -> None:
    with pytest.raises(ImageError, match="picture 7 is not an image"):
        open_image(io.BytesIO(b"text"), "picture 7")


class FailingFile(ImageFile.ImageFile):
    """A picture whose reader fails in the way that ``error`` says, as damaged files make some."""

    format = "PPM"
    error: Exception

    def _open(self) -> None:
        self._size, self._mode = (4, 4), "RGB"

    def load(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no\nmemory"), "cannot be read: no memory"),
        (NotImplementedError("pixel format 9"), "cannot be read: pixel format 9"),
        (TypeError("an integer is required"), "cannot be read: an integer is required"),
        (AssertionError(), "cannot be read: AssertionError"),
        (struct.error("unpack needs 4 bytes"), "cannot be read: unpack needs 4 bytes"),
        (KeyError(7), "cannot be read: 7"),
    ],
)
def test_whatever_a_reader_raises_is_an_image_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    monkeypatch.setattr(FailingFile, "error", error, raising=False)
    Image.init()
    monkeypatch.setitem(
        Image.OPEN, "PPM", (FailingFile, lambda start: start.startswith(b"P6 damaged"))
    )
    for read in (decode_compressed, lambda data: open_image(io.BytesIO(data), "compressed image")):
        with pytest.raises(ImageError) as raised:
            read(b"P6 damaged, and more")
        assert str(raised.value) == f"compressed image {reason}"


def test_a_tiff_with_any_byte_of_its_tags_changed_is_read_or_an_image_error() -> None:
    data = encoded(GRADIENT, "TIFF")

    def error_of(damaged: bytes) -> str:
        try:
            decode_compressed(damaged)
        except ImageError as error:
            return str(error)
        return ""

    errors = [
        error_of(data[:place] + bytes([value]) + data[place + 1 :])
        for place in range(8, min(len(data), 250))
        for value in (0, 2, 12, 255)
    ]
    assert any(errors)
    assert not any("\n" in error for error in errors)


@pytest.mark.parametrize("kind", ["EPS", "PCX", "SGI", "DDS"])
def test_a_format_off_the_list_is_not_opened(kind: str) -> None:
    with pytest.raises(ImageError, match="compressed image is not an image of a known format"):
        decode_compressed(encoded(GRADIENT, kind))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "TGA", "ICO"])
def test_the_formats_on_the_list_are_opened(kind: str) -> None:
    assert decode_compressed(encoded(GRADIENT, kind)).ndim == 3


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGBA", 4), ("LA", 2)])
def test_depth_of_more_than_one_channel_is_an_error(mode: str, channels: int) -> None:
    stream = io.BytesIO()
    Image.new(mode, (4, 3)).save(stream, "PNG")
    with pytest.raises(
        ImageError, match=rf"needs 1 channel, the picture has {channels} \({mode}\)"
    ):
        decode_compressed(stream.getvalue(), image_format="16UC1; png", depth_policy="normalize")
