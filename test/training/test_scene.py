"""The renderer: the same seed gives the same scene, and the truth is what is painted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.models.nano.vocabulary import CLASSES, COLOURS
from training.canvas import PALETTE, Canvas, contrasting, paint_of, scaled
from training.scene import (
    MIN_VISIBLE,
    Composer,
    Scene,
    Sprite,
    paint_sprite,
    render_scene,
    resized,
)
from training.shapes import SHAPES

GREY = 128.0


def grey_picture(width: int = 120, height: int = 100) -> np.ndarray:
    return np.full((height, width, 3), GREY, np.float32)


def solid_sprite(width: int, height: int, kind: str = "box", colour: str = "red") -> Sprite:
    rgb = np.zeros((height, width, 3), np.float32)
    rgb[..., 0] = 255
    return Sprite(kind, colour, rgb, np.ones((height, width), np.float32), stands=False)


def test_every_word_of_the_vocabulary_can_be_painted() -> None:
    assert set(SHAPES) == set(CLASSES)
    assert set(PALETTE) == set(COLOURS)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_seed_gives_the_same_scene_again(seed: int) -> None:
    first = render_scene(160, 120, np.random.default_rng(seed))
    second = render_scene(160, 120, np.random.default_rng(seed))
    assert np.array_equal(first.image, second.image)
    assert np.array_equal(first.ids, second.ids)
    assert first.objects == second.objects


def test_other_seeds_give_other_scenes() -> None:
    images = [render_scene(96, 72, np.random.default_rng(seed)).image for seed in range(6)]
    for i, image in enumerate(images):
        assert all(not np.array_equal(image, other) for other in images[:i])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([(160, 120), (120, 160), (200, 112), (130, 130)]),
)
def test_truth_agrees_with_the_pixels(seed: int, size: tuple[int, int]) -> None:
    scene = render_scene(*size, np.random.default_rng(seed))
    assert scene.image.shape == (size[1], size[0], 3)
    assert scene.image.dtype == np.uint8
    assert scene.ids.max(initial=0) <= len(scene.objects) <= 8
    centres = [thing.box[0] + thing.box[2] for thing in scene.objects]
    assert centres == sorted(centres), "objects go left to right"
    for i, thing in enumerate(scene.objects, start=1):
        x_min, y_min, x_max, y_max = thing.box
        assert 0 <= x_min < x_max <= size[0]
        assert 0 <= y_min < y_max <= size[1]
        rows, columns = np.nonzero(scene.ids == i)
        assert len(rows), "every object is seen"
        assert columns.min() >= x_min
        assert columns.max() < x_max
        assert rows.min() >= y_min
        assert rows.max() < y_max


@pytest.mark.parametrize("kind", CLASSES)
def test_the_box_of_a_lone_object_is_the_extent_of_what_changed(kind: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        composer = Composer(grey_picture())
        assert composer.paste(paint_sprite(kind, "blue", 50.0, rng), 20, 10)
        changed = np.abs(composer.picture - GREY).max(axis=2) > 12
        rows, columns = np.nonzero(changed)
        extent = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        # An antialiased edge that covers less than half of its pixel is outside the box.
        assert np.abs(np.array(extent) - np.array(composer.objects[0].box)).max() <= 2


@pytest.mark.parametrize("kind", CLASSES)
def test_an_object_fills_the_extent_it_was_given(kind: str) -> None:
    shape = SHAPES[kind]
    for seed in range(4):
        sprite = paint_sprite(kind, "green", 60.0, np.random.default_rng(seed))
        x_min, y_min, x_max, y_max = sprite.extent()
        assert y_max - y_min == pytest.approx(60, abs=3)
        aspect = (x_max - x_min) / (y_max - y_min)
        slack = 0.3 if kind == "person" else 0.08  # arms may hang close to the body
        assert shape.aspect[0] - slack <= aspect <= shape.aspect[1] + 0.08


@pytest.mark.parametrize("colour", COLOURS)
def test_paint_is_nearest_to_its_own_colour_word(colour: str) -> None:
    rng = np.random.default_rng(3)
    names = list(PALETTE)
    table = np.array([PALETTE[name] for name in names])
    nearest = [
        names[int(((table - np.array(paint_of(colour, rng))) ** 2).sum(1).argmin())]
        for _ in range(200)
    ]
    assert nearest.count(colour) >= 190


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind != "person"])
def test_the_commonest_colour_of_an_object_is_its_colour(kind: str) -> None:
    hits = 0
    for seed, colour in enumerate(("red", "green", "blue", "yellow") * 3):
        sprite = paint_sprite(kind, colour, 64.0, np.random.default_rng(seed))
        pixels = sprite.rgb[sprite.alpha > 0.9]
        # Shade changes the brightness, not the hue: compare directions.
        names = ("red", "green", "blue", "yellow")
        table = np.array([PALETTE[name] for name in names])
        table = table / np.linalg.norm(table, axis=1, keepdims=True)
        vivid = pixels[pixels.max(1) - pixels.min(1) > 40]
        directions = vivid / np.linalg.norm(vivid, axis=1, keepdims=True)
        votes = np.bincount((directions @ table.T).argmax(1), minlength=4)
        hits += names[int(votes.argmax())] == colour
    assert hits >= 11


def test_a_sprite_that_would_hide_another_is_refused() -> None:
    composer = Composer(grey_picture())
    assert composer.paste(solid_sprite(20, 20), 30, 30)
    before = composer.picture.copy()
    assert not composer.paste(solid_sprite(20, 20), 35, 30)
    assert np.array_equal(before, composer.picture)
    assert len(composer.objects) == 1
    # A fifth hidden is fine: four fifths are above the limit.
    assert MIN_VISIBLE < 0.8
    assert composer.paste(solid_sprite(20, 20), 46, 30)


def test_hidden_parts_add_up_over_several_sprites() -> None:
    composer = Composer(grey_picture())
    assert composer.paste(solid_sprite(20, 20), 30, 30)
    assert composer.paste(solid_sprite(20, 20), 46, 30)
    assert not composer.paste(solid_sprite(20, 20), 14, 30)


def test_a_sprite_mostly_outside_is_refused_and_one_partly_outside_is_clipped() -> None:
    composer = Composer(grey_picture())
    assert not composer.paste(solid_sprite(20, 20), -12, 10)
    assert not composer.paste(solid_sprite(20, 20), 300, 10)
    assert composer.paste(solid_sprite(20, 20), -5, 10)
    assert composer.objects[0].box == (0, 10, 15, 30)


def test_an_invisible_sprite_is_refused() -> None:
    sprite = solid_sprite(10, 10)
    ghost = Sprite("box", "red", sprite.rgb, np.zeros_like(sprite.alpha), stands=False)
    assert ghost.extent() == (0, 0, 0, 0)
    assert not Composer(grey_picture()).paste(ghost, 10, 10)


def test_a_shadow_darkens_below_and_stays_out_of_the_ids() -> None:
    lit, shaded = Composer(grey_picture()), Composer(grey_picture())
    sprite = solid_sprite(30, 30)
    sprite = Sprite("box", "red", sprite.rgb, sprite.alpha, stands=True)
    lit.paste(sprite, 40, 30)
    shaded.paste(sprite, 40, 30, shadow=0.5)
    assert shaded.picture[61, 55].mean() < lit.picture[61, 55].mean() - 20
    assert np.array_equal(
        lit.finish(np.random.default_rng(0)).ids, shaded.finish(np.random.default_rng(0)).ids
    )


def test_what_stands_in_front_covers_only_those_behind() -> None:
    front = np.zeros((100, 120, 3), np.float32)
    composer = Composer(grey_picture())
    composer.paste(solid_sprite(20, 20), 20, 20)  # foot at 40
    composer.paste(solid_sprite(20, 20), 70, 60)  # foot at 80
    composer.cover(front, [(25, 0, 30, 100), (75, 0, 80, 100)], foot_px=60)
    scene = composer.finish(np.random.default_rng(0))
    assert (scene.ids[20:40, 25:30] == 0).all()
    assert (scene.ids[60:80, 75:80] == 2).all()
    assert scene.objects[0].box == (20, 20, 40, 40), "the box is of the whole object"


def window_scene() -> Scene:
    composer = Composer(grey_picture())
    composer.paste(solid_sprite(20, 20, kind="ball"), 70, 40)
    composer.paste(solid_sprite(20, 20, kind="cone"), 10, 40)
    return composer.finish(np.random.default_rng(0))


def test_a_window_moves_clips_and_drops_objects() -> None:
    scene = window_scene()
    part = scene.window(20, 30, 100, 90)
    assert part.image.shape == (60, 80, 3)
    assert [(thing.kind, thing.box) for thing in part.objects] == [
        ("cone", (0, 10, 10, 30)),
        ("ball", (50, 10, 70, 30)),
    ]
    assert part.ids[15, 5] == 1
    assert part.ids[15, 55] == 2
    dropped = scene.window(26, 30, 100, 90)  # a fifth of the cone is left
    assert [thing.kind for thing in dropped.objects] == ["ball"]
    assert dropped.ids[15, 49] == 1
    assert dropped.ids[15, 2] == 0


def test_the_mask_of_an_object_fills_its_box_hidden_parts_too() -> None:
    composer = Composer(grey_picture())
    alpha = np.zeros((24, 30), np.float32)
    alpha[2:22, 3:23] = 1
    alpha[2:6, 3:9] = 0  # a notch at the top left
    first = Sprite("box", "red", np.zeros((24, 30, 3), np.float32), alpha, stands=False)
    assert composer.paste(first, 20, 30)
    assert composer.paste(solid_sprite(8, 8), 38, 40), "hides part of it"
    thing = composer.finish(np.random.default_rng(0)).objects[0]
    assert thing.box == (23, 32, 43, 52)
    assert thing.mask.shape == (20, 20)
    assert np.array_equal(thing.mask, alpha[2:22, 3:23] > 0.5)


@pytest.mark.parametrize(("left", "top"), [(-4, 20), (96, 20), (30, -4), (30, 76), (96, 76)])
def test_the_mask_of_what_sticks_out_is_that_of_the_part_inside(left: int, top: int) -> None:
    composer = Composer(grey_picture(), min_visible=0.0)
    alpha = (np.random.default_rng(1).random((28, 28)) < 0.8).astype(np.float32)
    alpha[[0, -1]] = alpha[:, [0, -1]] = 1
    sprite = Sprite("box", "red", np.zeros((28, 28, 3), np.float32), alpha, stands=False)
    assert composer.paste(sprite, left, top)
    scene = composer.finish(np.random.default_rng(0))
    (thing,) = scene.objects
    x_min, y_min, x_max, y_max = (int(value) for value in thing.box)
    assert thing.mask.shape == (y_max - y_min, x_max - x_min)
    assert np.array_equal(thing.mask, scene.ids[y_min:y_max, x_min:x_max] == 1)
    assert int(thing.mask.sum()) == int((scene.ids == 1).sum())


def test_a_window_clips_masks_as_it_clips_boxes() -> None:
    scene = render_scene(300, 200, np.random.default_rng(3), num_objects=8)
    for window in ((40, 30, 240, 170), (0, 0, 300, 200), (90, 60, 230, 200)):
        for thing in scene.window(*window).objects:
            x_min, y_min, x_max, y_max = thing.box
            assert thing.mask.shape == (y_max - y_min, x_max - x_min)
            (whole,) = [
                other
                for other in scene.objects
                if (other.kind, other.colour) == (thing.kind, thing.colour)
                and other.box[0] <= x_min + window[0] < other.box[2]
                and other.box[1] <= y_min + window[1] < other.box[3]
                and other.box[2] >= x_max + window[0]
                and other.box[3] >= y_max + window[1]
            ][:1]
            left, top = int(x_min + window[0] - whole.box[0]), int(y_min + window[1] - whole.box[1])
            height, width = thing.mask.shape
            assert np.array_equal(thing.mask, whole.mask[top : top + height, left : left + width])


def test_people_cut_out_of_a_film_are_pasted_without_a_colour() -> None:
    person = solid_sprite(12, 30, kind="person", colour="")
    for seed in range(20):
        scene = render_scene(160, 120, np.random.default_rng(seed), num_objects=8, people=[person])
        if any(thing.colour == "" for thing in scene.objects):
            break
    else:
        pytest.fail("no cut-out was ever pasted")
    assert all(thing.kind == "person" for thing in scene.objects if thing.colour == "")


def test_a_resized_sprite_has_the_height_asked_for() -> None:
    rng = np.random.default_rng(0)
    sprite = resized(solid_sprite(12, 30), 60.0, rng)
    assert sprite.alpha.shape == (60, 24)
    assert sprite.rgb.shape == (60, 24, 3)
    assert resized(solid_sprite(12, 30), 1.0, rng).alpha.shape[0] == 6, "never vanishes"


def test_canvas_edges_keep_the_full_colour_so_that_alpha_alone_mixes() -> None:
    canvas = Canvas(20.5, 20.5)
    canvas.ellipse(0.5, 0.5, 0.5, 0.5, (200.0, 10.0, 10.0))
    edge = (canvas.alpha > 0) & (canvas.alpha < 1)
    assert edge.any()
    assert np.allclose(canvas.rgb[edge], (200, 10, 10))


def test_decoration_never_leaves_the_object() -> None:
    canvas = Canvas(20, 20)
    canvas.rectangle(0.4, 0.4, 0.6, 0.6, (10.0, 10.0, 10.0))
    before = canvas.alpha.copy()
    canvas.decorate([(0, 0), (1, 0), (1, 1), (0, 1)], (250.0, 250.0, 250.0))
    assert np.array_equal(before, canvas.alpha)
    assert canvas.rgb[canvas.alpha == 1].min() > 200


def test_colour_helpers_stay_in_range() -> None:
    assert scaled((200, 100, 0), 2) == (255, 200, 0)
    assert sum(contrasting((20, 20, 20))) > sum(contrasting((240, 240, 240)))
