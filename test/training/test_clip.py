"""People from a film: a made one of known truth, and the real one where it can be had."""

from __future__ import annotations

import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from photon_ros.core.errors import InputError
from training import clip as clip_module
from training.clip import (
    FIRST_FRAME,
    LAST_FRAME,
    Clip,
    clip_scene,
    empty_background,
    load_clip,
    read_frames,
    real_frame,
    staged_frame,
)
from training.measures import iou
from training.scene import Box

SHARED = os.environ.get("PHOTON_SHARED")
needs_film = pytest.mark.skipif(SHARED is None, reason="PHOTON_SHARED does not name the film")


def walkers(number: int) -> list[Box]:
    """Boxes of the two people of the made film in a frame, counted from 1."""
    step = 3 * (number - 1)
    return [(20.0 + step, 60.0, 44.0 + step, 130.0), (340.0 - step, 180.0, 370.0 - step, 262.0)]


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film of 100 frames, 400 x 300: two dark figures cross a rough grey yard."""
    path = tmp_path_factory.mktemp("film") / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (400, 300))
    rng = np.random.default_rng(0)
    yard = cv2.resize(rng.uniform(120, 190, (30, 40, 3)).astype(np.uint8), (400, 300))
    for number in range(1, 101):
        frame = yard.copy()
        for x_min, y_min, x_max, y_max in walkers(number):
            cv2.rectangle(
                frame, (int(x_min), int(y_min)), (int(x_max) - 1, int(y_max) - 1), (30, 20, 25), -1
            )
        writer.write(frame)
    writer.release()
    return path


@pytest.fixture
def made(film: Path, monkeypatch: pytest.MonkeyPatch) -> Clip:
    monkeypatch.setattr(clip_module, "FIRST_FRAME", 11)
    monkeypatch.setattr(clip_module, "LAST_FRAME", 90)
    monkeypatch.setattr(clip_module, "_OCCLUDERS", ())
    monkeypatch.setattr(clip_module, "_CONES", ((10, 10, 20, 20),))
    return load_clip(film, stride=2)


def test_frames_are_counted_from_one_and_the_range_is_kept(film: Path) -> None:
    frames = read_frames(film, 11, 20, 3)
    assert len(frames) == 4
    for frame, number in zip(frames, (11, 14, 17, 20), strict=True):
        x_min = int(walkers(number)[0][0])
        assert frame[90, x_min + 5].mean() < 60
        assert frame[90, x_min - 6].mean() > 90


def test_people_are_found_where_they_are(made: Clip) -> None:
    assert len(made.frames) == 40
    assert len(made.people()) >= 60, "all but where the two pass each other"
    for cutout in made.people():
        boxes = walkers(11 + 2 * cutout.frame)
        assert max(iou(cutout.box, box) for box in boxes) > 0.75


def test_a_cut_out_ends_where_the_person_does_on_every_side(made: Clip) -> None:
    """What differs from the background must not be seen a pixel too far, on one side or all."""
    errors = []
    for cutout in made.people():
        boxes = walkers(11 + 2 * cutout.frame)
        overlap, truth = max((iou(cutout.box, box), box) for box in boxes)
        if overlap > 0.75:
            errors.append(np.subtract(cutout.box, truth))
    assert len(errors) >= 60
    assert np.abs(np.mean(errors, axis=0)).max() < 0.75, "pixels: left, top, right, bottom"
    assert np.median(np.abs(errors)) <= 1.0


def test_a_real_frame_keeps_clean_people_and_paints_out_the_rest(made: Clip) -> None:
    scene = real_frame(made, 5, np.random.default_rng(0))
    clean = [cutout for cutout in made.found[5] if cutout.clean]
    assert len(scene.objects) == len(clean)
    assert all(thing.kind == "person" and thing.colour == "" for thing in scene.objects)


def test_a_staged_frame_holds_exactly_the_people_of_its_truth(
    made: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.scene.photograph", lambda picture, _: picture.astype(np.uint8))
    for seed in range(8):
        scene = staged_frame(made, np.random.default_rng(seed))
        assert scene.objects
        dark = scene.image.max(axis=2) < 70
        outside = np.ones(dark.shape, np.bool_)
        for thing in scene.objects:
            x_min, y_min, x_max, y_max = (int(value) for value in thing.box)
            outside[max(0, y_min - 4) : y_max + 4, max(0, x_min - 4) : x_max + 4] = False
            assert dark[y_min:y_max, x_min:x_max].mean() > 0.4, "somebody is there"
        assert not dark[outside].any(), "and nobody anywhere else"


def test_the_background_is_empty(made: Clip) -> None:
    assert made.background.max(axis=2).min() > 90
    painted = empty_background(made)
    assert painted.shape == (300, 400, 3)
    assert painted.dtype == np.uint8


def test_a_window_is_no_smaller_than_asked(made: Clip) -> None:
    for seed in range(5):
        scene = clip_scene(made, np.random.default_rng(seed), 0.5)
        height, width = scene.ids.shape
        assert 150 <= height <= 300
        assert 180 <= width <= 400
        assert scene.image.shape == (height, width, 3)


def test_a_film_that_is_too_short_is_refused(film: Path) -> None:
    with pytest.raises(InputError, match="has 100 frames; 700 are needed"):
        load_clip(film)


def test_a_film_without_people_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "empty.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 64))
    for _ in range(5):
        writer.write(np.full((64, 64, 3), 128, np.uint8))
    writer.release()
    monkeypatch.setattr(clip_module, "FIRST_FRAME", 1)
    monkeypatch.setattr(clip_module, "LAST_FRAME", 5)
    with pytest.raises(InputError, match="only 0 people"):
        load_clip(path)


def test_the_labelled_and_the_unseen_frames_are_out_of_reach() -> None:
    assert FIRST_FRAME >= 100
    assert LAST_FRAME <= 700


@needs_film
def test_the_real_film_gives_whole_people_of_plausible_size() -> None:
    assert SHARED is not None
    clip = load_clip(Path(SHARED) / "data/pets09/vtest.avi", stride=15)
    people = clip.people()
    assert len(people) > 50
    sizes = np.array([(p.box[2] - p.box[0], p.box[3] - p.box[1]) for p in people])
    assert 20 < np.median(sizes[:, 0]) < 40
    assert 55 < np.median(sizes[:, 1]) < 100


@needs_film
def test_cut_outs_of_the_real_film_are_as_tight_as_what_surely_differs() -> None:
    """No row or column of a box is empty of pixels that are far from the background."""
    assert SHARED is not None
    clip = load_clip(Path(SHARED) / "data/pets09/vtest.avi", stride=15)
    margins = []
    for cutout in clip.people():
        x_min, y_min, x_max, y_max = (int(value) for value in cutout.box)
        picture = clip.frames[cutout.frame].astype(np.float32)
        differs = np.abs(picture - clip.background).max(axis=2)[y_min:y_max, x_min:x_max] > 45
        columns, rows = (np.flatnonzero(differs.sum(axis) >= 2) for axis in (0, 1))
        margins.append(
            [columns[0], rows[0], x_max - x_min - 1 - columns[-1], y_max - y_min - 1 - rows[-1]]
        )
    assert np.mean(margins, axis=0).max() < 1.0, "pixels: left, top, right, bottom"


@needs_film
def test_the_difference_agrees_with_the_public_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cutting rule, run on the labelled frames, finds people where people labelled them."""
    assert SHARED is not None
    folder = Path(SHARED) / "data/pets09"
    document = json.loads((folder / "person_coco.json").read_text())
    frames = read_frames(folder / "vtest.avi", 1, 69, 1)
    background = np.median(np.stack(frames[::3]), axis=0).astype(np.float32)
    numbers = [1 + round((image["stamp_ns"] / 1e9 - 1) * 10) for image in document["images"]]
    good, total = 0, 0
    masks = [clip_module._difference(frame, background) for frame in frames[::4]]
    sizes = clip_module._SizeByFoot.fitted(masks)
    for image, number in zip(document["images"], numbers, strict=True):
        labels = [a["bbox"] for a in document["annotations"] if a["image_id"] == image["id"]]
        boxes = [(x, y, x + w, y + h) for x, y, w, h in labels]
        frame = frames[number - 1]
        mask = clip_module._difference(frame, background)
        for cutout in clip_module._cut(frame, mask, 0, sizes):
            if cutout.clean:
                total += 1
                good += max(iou(cutout.box, box) for box in boxes) > 0.5
    assert total >= 5
    assert good >= 0.85 * total
