from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from photon_ros.core.errors import ImageError, InputError
from photon_ros.models.moondream.config import VisionConfig
from photon_ros.models.moondream.image import RESIZE_METHODS, choose_tiling, cut

SIDES_PX = st.integers(min_value=-300, max_value=6000)
BUDGETS = st.integers(min_value=0, max_value=40)


def vision_config(**changes: Any) -> VisionConfig:
    values: dict[str, Any] = {
        "enc_dim": 24,
        "enc_patch_size": 4,
        "enc_n_layers": 1,
        "enc_ff_dim": 8,
        "enc_n_heads": 3,
        "proj_out_dim": 32,
        "proj_inner_dim": 20,
        "crop_size": 20,
        "max_crops": 5,
        "overlap_margin": 1,
    }
    return VisionConfig(**{**values, **changes})


def random_image(height_px: int, width_px: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(height_px * 10_000 + width_px)
    return rng.integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("height_px", "width_px", "tiling"),
    [
        (480, 640, (2, 4)),
        (378, 378, (1, 1)),
        (379, 379, (3, 3)),
        (100, 100, (1, 1)),
        (112, 2000, (1, 1)),  # long and thin: never tiled
        (56, 2758, (1, 1)),  # less than the margins
        (1200, 400, (6, 2)),
        (3000, 500, (8, 1)),
        (603, 2259, (1, 7)),
    ],
)
def test_tilings_of_the_released_sizes(
    height_px: int, width_px: int, tiling: tuple[int, int]
) -> None:
    assert choose_tiling(height_px - 112, width_px - 112, 266, 12) == tiling


@given(height_px=SIDES_PX, width_px=SIDES_PX, window_px=st.integers(1, 500), max_crops=BUDGETS)
def test_tiling_keeps_to_its_budget(
    height_px: int, width_px: int, window_px: int, max_crops: int
) -> None:
    rows, columns = choose_tiling(height_px, width_px, window_px, max_crops)
    assert rows >= 1
    assert columns >= 1
    assert rows * columns <= max(1, max_crops)
    if height_px <= window_px or width_px <= window_px:
        assert (rows, columns) == (1, 1)


@given(height_px=SIDES_PX, width_px=SIDES_PX, window_px=st.integers(1, 500), max_crops=BUDGETS)
def test_tiling_never_enlarges_less_than_it_must(
    height_px: int, width_px: int, window_px: int, max_crops: int
) -> None:
    """With enough budget no pixel is thrown away: the tiles cover the picture's own size."""
    if height_px <= window_px or width_px <= window_px:
        return
    needed = math.ceil(height_px / window_px) * math.ceil(width_px / window_px)
    rows, columns = choose_tiling(height_px, width_px, window_px, max_crops)
    if needed <= max_crops and (rows * window_px < height_px or columns * window_px < width_px):
        # Only the axis that was cut back to fit the budget may fall short, and by whole tiles.
        assert (rows + 1) * columns > max_crops or rows * (columns + 1) > max_crops


def test_extreme_shapes_stay_within_the_budget() -> None:
    assert choose_tiling(500, 30_000, 266, 12) == (1, 12)
    assert choose_tiling(30_000, 500, 266, 12) == (12, 1)


@given(
    height_px=st.integers(1, 90),
    width_px=st.integers(1, 90),
    max_crops=st.none() | st.integers(0, 8),
    patch_px=st.integers(1, 5),
    side=st.integers(3, 7),
    margin=st.integers(0, 3),
)
def test_crops_are_windows_of_one_resized_picture(
    height_px: int, width_px: int, max_crops: int | None, patch_px: int, side: int, margin: int
) -> None:
    if 2 * margin >= side:
        return
    config = vision_config(
        enc_patch_size=patch_px, crop_size=patch_px * side, overlap_margin=margin, max_crops=6
    )
    image = random_image(height_px, width_px)
    crops = cut(image, config, max_crops)
    rows, columns = crops.tiling
    crop = config.crop_size
    assert crops.pixels.dtype == np.uint8
    assert crops.pixels.shape[1:] == (crop, crop, 3)
    whole = Image.fromarray(image).resize((crop, crop), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(crops.pixels[0], np.asarray(whole))
    if rows * columns == 1:
        assert len(crops.pixels) == 1
        return
    assert len(crops.pixels) == 1 + rows * columns
    assert rows * columns <= (6 if max_crops is None else max_crops)
    overlap_px = 2 * margin * patch_px
    grid = crops.pixels[1:].reshape(rows, columns, crop, crop, 3)
    if overlap_px:
        np.testing.assert_array_equal(grid[1:, :, :overlap_px], grid[:-1, :, -overlap_px:])
        np.testing.assert_array_equal(grid[:, 1:, :, :overlap_px], grid[:, :-1, :, -overlap_px:])
    np.testing.assert_array_equal(joined(grid, overlap_px), resized_whole(image, config, grid))


def joined(grid: NDArray[np.uint8], overlap_px: int) -> NDArray[np.uint8]:
    """Lay tiles down one after the other, later ones over earlier ones."""
    rows, columns, crop = grid.shape[:3]
    step = crop - overlap_px
    canvas = np.zeros((rows * step + overlap_px, columns * step + overlap_px, 3), np.uint8)
    for i in range(rows):
        for j in range(columns):
            canvas[i * step : i * step + crop, j * step : j * step + crop] = grid[i, j]
    return canvas


def resized_whole(
    image: NDArray[np.uint8], config: VisionConfig, grid: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    rows, columns = grid.shape[:2]
    margins_px = 2 * config.margin_px
    size = (columns * config.window_px + margins_px, rows * config.window_px + margins_px)
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.LANCZOS))


def test_zero_crops_look_at_the_whole_picture_only() -> None:
    crops = cut(random_image(60, 80), vision_config(), max_crops=0)
    assert crops.tiling == (1, 1)
    assert len(crops.pixels) == 1


def test_a_budget_lowers_that_of_the_model_but_never_raises_it() -> None:
    image, config = random_image(53, 22), vision_config()
    assert cut(image, config, 2).tiling == (2, 1)
    assert len(cut(image, config, 2).pixels) == 3
    own, generous = cut(image, config), cut(image, config, 100)
    assert own.tiling == generous.tiling
    np.testing.assert_array_equal(own.pixels, generous.pixels)


def test_views_are_cut_like_their_copies() -> None:
    image = random_image(70, 90)
    view = image[::-1, ::2]
    np.testing.assert_array_equal(
        cut(view, vision_config()).pixels, cut(view.copy(), vision_config()).pixels
    )


def test_read_only_images_are_fine_and_stay_as_they_are() -> None:
    image = random_image(60, 80)
    before = image.copy()
    image.flags.writeable = False
    cut(image, vision_config())
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4), np.uint8), r"shape \(height, width, 3\), got uint8 of shape \(4, 4\)"),
        (np.zeros((4, 4, 4), np.uint8), r"got uint8 of shape \(4, 4, 4\)"),
        (np.zeros((4, 4, 3), np.float32), "got float32"),
        (np.zeros((0, 4, 3), np.uint8), "no pixels"),
        (np.broadcast_to(np.uint8(0), (1, 100_001, 3)), "at most 100000 pixels, got 100001x1"),
        ("picture.png", "must be a numpy array, got str"),
    ],
)
def test_impossible_images_are_refused(image: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        cut(image, vision_config())


def test_a_negative_budget_is_refused() -> None:
    with pytest.raises(InputError, match="max_crops must be >= 0, got -1"):
        cut(random_image(8, 8), vision_config(), max_crops=-1)


# --- the fast way -------------------------------------------------------------------------------


def smooth_image(height_px: int, width_px: int) -> NDArray[np.uint8]:
    """A picture with edges and gradients, as cameras see them."""
    y, x = np.mgrid[0:height_px, 0:width_px] / max(height_px, width_px)
    waves = np.stack([np.sin(9 * x + 3 * y), np.cos(7 * y), np.sin(20 * x * y)], axis=-1)
    disc = ((x - 0.4) ** 2 + (y - 0.3) ** 2 < 0.03)[..., None]
    return np.where(disc, 230, 127 + 90 * waves).astype(np.uint8)


@pytest.mark.parametrize(
    ("height_px", "width_px"), [(480, 640), (576, 768), (200, 300), (1080, 1920), (700, 380)]
)
def test_the_fast_way_cuts_alike_with_nearly_the_same_pixels(height_px: int, width_px: int) -> None:
    config = vision_config(enc_patch_size=14, crop_size=378, max_crops=12, overlap_margin=4)
    image = smooth_image(height_px, width_px)
    exact = cut(image, config)
    fast = cut(image, config, resize="fast")
    assert fast.tiling == exact.tiling
    assert fast.pixels.shape == exact.pixels.shape
    assert fast.pixels.dtype == np.uint8
    difference = np.abs(fast.pixels.astype(int) - exact.pixels)
    assert difference.mean() < 1.0
    assert np.percentile(difference, 99) <= 12


def test_the_fast_way_keeps_channels_and_orientation() -> None:
    image = np.zeros((60, 40, 3), np.uint8)
    image[:30, :, 0] = 200
    image[:, 20:, 2] = 100
    crop = cut(image, vision_config(), 0, "fast").pixels[0]
    assert crop[2, 2].tolist() == pytest.approx([200, 0, 0], abs=3)
    assert crop[2, 17].tolist() == pytest.approx([200, 0, 100], abs=3)
    assert crop[17, 17].tolist() == pytest.approx([0, 0, 100], abs=3)


@pytest.mark.parametrize("shape", [(1, 1), (1, 8000), (8000, 1), (3, 50_000)])
def test_the_fast_way_takes_extreme_shapes(shape: tuple[int, int]) -> None:
    image = np.full((*shape, 3), 77, np.uint8)
    assert (cut(image, vision_config(), resize="fast").pixels == 77).all()


def test_a_view_that_is_not_contiguous_is_cut_like_a_copy() -> None:
    image = random_image(60, 80)[::2, ::-1]
    for method in RESIZE_METHODS:
        view, copy = (
            cut(image, vision_config(), None, method),
            cut(image.copy(), vision_config(), None, method),
        )
        assert np.array_equal(view.pixels, copy.pixels)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(InputError, match="resize must be one of exact, fast, got 'quick'"):
        cut(random_image(20, 20), vision_config(), resize="quick")  # type: ignore[arg-type]
