"""What the trainer sees is to the pixel what the product's preprocessing gives the model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.models.moondream.image import cut as cut_for_model
from photon_ros.models.nano.vocabulary import CLASSES, COLOURS
from training.architecture import CONFIG
from training.cutting import CELL_SIDE, CROP_PX, NO_COLOUR, cut
from training.outline import NUM_CORNERS
from training.pool import Mix, Renderer
from training.scene import Composer, Scene, Sprite, render_scene


@pytest.mark.parametrize(
    ("size", "tiling"),
    [((640, 480), (2, 3)), ((640, 360), (2, 3)), ((480, 640), (3, 2)), ((480, 480), (2, 2))],
)
def test_crops_equal_those_of_the_product(size: tuple[int, int], tiling: tuple[int, int]) -> None:
    scene = render_scene(*size, np.random.default_rng(4))
    crops = cut_for_model(scene.image, CONFIG.vision)
    assert crops.tiling == tiling, "the pool's tilings are those that the product chooses"
    assert np.array_equal(cut(scene, tiling, is_real=False).crops(), crops.pixels)


def test_the_film_is_cut_in_six_tiles_by_the_product() -> None:
    frame = np.zeros((576, 768, 3), np.uint8)
    assert cut_for_model(frame, CONFIG.vision).tiling == (2, 3)


def test_the_global_crop_alone_equals_the_product_without_crops() -> None:
    scene = render_scene(384, 288, np.random.default_rng(5))
    sample = cut(scene, (1, 1), is_real=False)
    expected = cut_for_model(scene.image, CONFIG.vision, max_crops=0)
    assert np.array_equal(sample.crops(), expected.pixels)
    assert sample.crops().shape == (1, CROP_PX, CROP_PX, 3)


def two_things() -> Scene:
    composer = Composer(np.full((96, 192, 3), 100, np.float32))
    for left, kind, colour in ((144, "ball", "blue"), (24, "person", "")):
        rgb, alpha = np.zeros((24, 24, 3), np.float32), np.ones((24, 24), np.float32)
        composer.paste(Sprite(kind, colour, rgb, alpha, stands=False), left, 48)
    return composer.finish(np.random.default_rng(0))


def test_truth_is_in_units_of_the_picture() -> None:
    sample = cut(two_things(), (1, 1), is_real=False)
    assert sample.kinds.tolist() == [CLASSES.index("person"), CLASSES.index("ball")]
    assert sample.colours.tolist() == [NO_COLOUR, COLOURS.index("blue")]
    assert np.allclose(sample.boxes[0], (24 / 192, 0.5, 48 / 192, 0.75))
    rows, columns = np.nonzero(sample.cells == 2)
    assert (columns.min(), columns.max() + 1) == (36, 42), "144 to 168 of 192, in 48 cells"
    assert (rows.min(), rows.max() + 1) == (24, 36)


def test_a_scene_without_objects_is_a_sample_too() -> None:
    empty = Scene(np.zeros((50, 60, 3), np.uint8), (), np.zeros((50, 60), np.uint8))
    sample = cut(empty, (1, 1), is_real=False)
    assert sample.boxes.shape == (0, 4)
    assert not sample.cells.any()
    assert sample.mirrored().boxes.shape == (0, 4)
    assert sample.corners.shape == sample.mirrored().corners.shape == (0, NUM_CORNERS, 2)


@settings(max_examples=20, deadline=None)
@given(index=st.integers(0, 10_000), tiled=st.booleans())
def test_a_mirror_keeps_the_truth_true(index: int, tiled: bool) -> None:
    sample = Renderer(5, Mix(0, 1, 0, 0) if tiled else Mix(1, 0, 0, 0), None).sample(index)
    mirrored = sample.mirrored()
    centres = mirrored.boxes[:, 0] + mirrored.boxes[:, 2]
    assert (np.diff(centres) >= -1e-6).all(), "left to right again"
    for i in range(len(mirrored.kinds)):
        rows, columns = np.nonzero(mirrored.cells == i + 1)
        if len(rows):
            x_min, y_min, x_max, y_max = mirrored.boxes[i] * CELL_SIDE
            assert columns.min() >= x_min - 1
            assert columns.max() <= x_max
            assert rows.min() >= y_min - 1
            assert rows.max() <= y_max
        assert 0 <= mirrored.corners[i].min() <= mirrored.corners[i].max() <= 1
        assert (np.diff([mirrored.corners[i, k, 0] for k in (12, 0, 4)]) >= 0).all()
    assert sorted(mirrored.kinds.tolist()) == sorted(sample.kinds.tolist())
    again = mirrored.mirrored()
    assert np.array_equal(again.crops(), sample.crops())
    assert np.allclose(again.boxes, sample.boxes, atol=1e-6)
    assert np.array_equal(again.cells, sample.cells)
    assert np.allclose(again.corners, sample.corners, atol=1e-6)
