"""Every kind of picture that people hold, and what is refused."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from photon_ros.async_photon import AsyncPhoton
from photon_ros.core.errors import ImageError
from photon_ros.core.frame import Frame
from photon_ros.photon import Photon
from photon_ros.pictures import frame_of


def scene(width: int = 60, height: int = 40) -> Image.Image:
    """A picture whose left upper quarter is red and the rest blue."""
    image = Image.new("RGB", (width, height), "blue")
    image.paste("red", (0, 0, width // 2, height // 2))
    return image


def pixels(image: Image.Image) -> NDArray[np.uint8]:
    return frame_of(image).image


def through(image: Image.Image, file_format: str, **options: object) -> Image.Image:
    """The image after it was saved and opened."""
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return Image.open(stream)


RGB = np.asarray(scene())


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBX", "P", "CMYK", "YCbCr", "HSV"])
def test_colours_are_the_same_in_every_mode(mode: str) -> None:
    back = pixels(scene().convert(mode))
    assert back.shape == RGB.shape
    assert np.abs(back.astype(int) - RGB).max() <= 6


def test_grey_pictures_are_grey_and_16_bit_grey_keeps_its_range() -> None:
    ramp = np.linspace(0, 65535, 256).astype(np.uint16)[None].repeat(4, 0)
    grey = pixels(Image.fromarray(ramp))
    assert grey.shape == (4, 256, 3)
    assert np.array_equal(grey[0, :, 0], np.arange(256))
    assert np.array_equal(grey[:, :, 0], grey[:, :, 2])
    eight = pixels(Image.fromarray(np.arange(256, dtype=np.uint8)[None]))
    assert np.array_equal(eight[0, :, 1], np.arange(256))


def test_one_bit_pictures_are_black_and_white() -> None:
    assert set(np.unique(pixels(scene().convert("1")))) <= {0, 255}


def test_what_is_transparent_is_white() -> None:
    image = Image.new("RGBA", (4, 2), (255, 0, 0, 0))
    image.putpixel((0, 0), (255, 0, 0, 255))
    shown = pixels(image)
    assert tuple(shown[0, 0]) == (255, 0, 0)
    assert tuple(shown[1, 3]) == (255, 255, 255)


def test_a_transparent_palette_is_white_too() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putdata([0, 1])
    shown = pixels(through(image, "PNG", transparency=1))
    assert tuple(shown[0, 0]) == (255, 0, 0)
    assert tuple(shown[0, 1]) == (255, 255, 255)


def test_of_an_animation_the_first_picture_is_taken() -> None:
    others = [Image.new("RGB", (60, 40), "lime")]
    animated = through(scene(), "GIF", save_all=True, append_images=others)
    assert animated.n_frames == 2  # type: ignore[attr-defined]
    assert np.abs(pixels(animated).astype(int) - RGB).max() <= 6


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_the_right_way_up(orientation: int) -> None:
    turned_by = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    stored = scene()
    if orientation > 1:
        stored = stored.transpose(turned_by[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    opened = through(stored, "PNG", exif=exif)
    assert np.array_equal(pixels(opened), RGB)


def test_the_callers_picture_is_left_as_it_is() -> None:
    image = scene().convert("CMYK")
    before = image.tobytes()
    pixels(image)
    assert (image.mode, image.tobytes()) == ("CMYK", before)


def test_a_frame_is_taken_as_it_is() -> None:
    frame = Frame(RGB)
    assert frame_of(frame) is frame


# --- refusals -----------------------------------------------------------------------------------


class HugeImage(Image.Image):
    """A picture of 100 megapixels that has not been decoded; doing so would fail the test."""

    def __init__(self) -> None:
        super().__init__()
        self._size = (10_000, 10_000)
        self._mode = "RGB"

    def load(self) -> None:  # type: ignore[override]
        raise AssertionError("a picture that is too large was decoded")


def test_100_megapixels_are_refused_before_they_are_decoded() -> None:
    with pytest.raises(ImageError, match=r"10000x10000 is too large: 100000000 pixels, at most"):
        frame_of(HugeImage())
    flat = np.broadcast_to(np.zeros(3, np.uint8), (10_000, 10_000, 3))
    with pytest.raises(ImageError, match=r"10000x10000 is too large"):
        frame_of(flat)


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        (np.full((4, 4, 3), np.nan), "NaN or infinity"),
        (np.full((4, 4, 3), np.inf, np.float32), "NaN or infinity"),
        (np.zeros((4, 4, 3), np.float32), "must be uint8"),
        (np.zeros((4, 4), np.float32), "must be uint8 of shape"),
        (np.zeros((4, 4, 4), np.uint16), "must be uint8 of shape"),
        (np.zeros((4, 4, 2), np.uint8), "must be uint8 of shape"),
        (np.zeros((0, 4), np.uint8), "must be uint8 of shape"),
        (np.zeros((3, 5, 6), np.uint8), "must be uint8 of shape"),
        (np.zeros((0, 4, 3), np.uint8), "no pixels"),
        (np.zeros((4, 4, 3), np.uint16), "must be uint8"),
        (np.zeros((4, 4, 3), object), "must be uint8"),
        (5, "numpy array, a PIL image, a Frame or the path of a picture file, got int"),
        ("nowhere.png", r"image nowhere\.png does not exist"),
        (Path("nowhere.png"), r"image nowhere\.png does not exist"),
        (Path(__file__).parent, "is not a file"),
        (__file__, r"test_pictures\.py is not an image of a known format"),
        ("x" * 5000, "cannot be read: File name too long"),
        ("", "image  does not exist|image  is not a file"),
        (b"", "got bytes"),
        (None, "got NoneType"),
    ],
)
def test_what_is_no_picture_is_refused_with_the_reason(image: object, complaint: str) -> None:
    with pytest.raises(ImageError, match=complaint):
        frame_of(image)  # type: ignore[arg-type]


def test_a_damaged_file_is_refused_when_it_is_decoded(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    path = tmp_path / "cut.png"
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as image, pytest.raises(ImageError, match="cannot be decoded"):
        frame_of(image)


def test_a_closed_file_is_refused(tmp_path: Path) -> None:
    scene().save(tmp_path / "a.png")
    image = Image.open(tmp_path / "a.png")
    image.close()
    with pytest.raises(ImageError, match="cannot be decoded"):
        frame_of(image)


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("name", ["a.png", "kamera links: äöü 測.png"])
def test_a_file_is_read_and_turned_the_right_way_up(kind: type, name: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    scene().transpose(Image.Transpose.ROTATE_90).save(tmp_path / name, exif=exif)
    assert np.array_equal(frame_of(kind(tmp_path / name)).image, RGB)


# --- through the model --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "image",
    [
        scene(1, 1),
        scene(1, 8000),
        scene(8000, 1),
        Image.fromarray(np.zeros((30, 50), np.uint16)),
        scene().convert("RGBA"),
        scene().convert("P"),
        scene().convert("CMYK"),
        scene().convert("1"),
    ],
    ids=["1x1", "1x8000", "8000x1", "16-bit", "RGBA", "palette", "CMYK", "1-bit"],
)
def test_odd_pictures_are_answered_by_every_skill(photon: Photon, image: Image.Image) -> None:
    handle = photon.encode_image(image)
    assert "points" in photon.point(handle, "cup", max_objects=1)
    assert "objects" in photon.detect(handle, "cup", max_objects=1)
    assert "path" in photon.segment(handle, "cup", max_tokens=3)
    assert "answer" in photon.query(handle, "cup?", max_tokens=2)
    assert "caption" in photon.caption(handle, "short", max_tokens=2)


def test_the_orientation_tag_counts_for_what_is_found(photon: Photon) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = scene().transpose(Image.Transpose.ROTATE_90)
    tagged = through(stored, "PNG", exif=exif)
    assert photon.detect(tagged, "cup") == photon.detect(scene(), "cup")


def test_a_path_is_answered_as_its_picture_is_by_every_skill(
    photon: Photon, tmp_path: Path
) -> None:
    path = tmp_path / "scene.png"
    scene().save(path)
    for ask in (
        lambda of, picture: of.point(picture, "cup", max_objects=2),
        lambda of, picture: of.detect(picture, "cup", max_objects=2),
        lambda of, picture: of.segment(picture, "cup", max_tokens=5),
        lambda of, picture: of.query(picture, "cup?", max_tokens=3),
        lambda of, picture: of.caption(picture, "short", max_tokens=3),
    ):
        wanted = ask(photon, scene())
        assert ask(photon, path) == wanted
        assert asyncio.run(ask(AsyncPhoton(photon), str(path))) == wanted
    assert np.array_equal(photon.encode_image(path).image, RGB)


def test_grey_and_rgba_pixels_are_taken_as_their_pillow_images_are() -> None:
    values = np.random.default_rng(5).integers(0, 255, (6, 7, 4), np.uint8)
    grey = frame_of(values[:, :, 0]).image
    assert np.array_equal(grey, np.repeat(values[:, :, :1], 3, axis=2))
    assert np.array_equal(frame_of(values[:, :, :1]).image, grey)
    assert np.array_equal(frame_of(values).image, frame_of(Image.fromarray(values)).image)
    with pytest.raises(ImageError, match="too"):
        frame_of(np.broadcast_to(np.uint8(3), (10_000, 10_000)))
