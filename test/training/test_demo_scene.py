"""The moving scene of the demo: smooth, repeatable, and with a truth that holds."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from pathlib import Path

import cv2
import numpy as np
import pytest

from training import demo_scene
from training.demo_scene import MovingObject, moving_scene, prompts_for, write_truth

SIZE = {"width_px": 320, "height_px": 240}


@pytest.fixture(scope="module")
def frames() -> list[tuple[np.ndarray, list[MovingObject]]]:
    return list(moving_scene(3, 40, **SIZE))


def test_a_frame_depends_on_the_seed_and_its_number_alone(frames: list) -> None:
    again = list(islice(moving_scene(3, 1000, **SIZE), 5))
    for (first, truth), (second, other) in zip(frames, again, strict=False):
        assert np.array_equal(first, second)
        assert truth == other
    other_seed = next(iter(moving_scene(4, 1, **SIZE)))[0]
    assert not np.array_equal(frames[0][0], other_seed)


def test_the_cast_is_people_cones_and_balls_of_several_colours(frames: list) -> None:
    kinds = {thing.kind for _, things in frames for thing in things}
    assert kinds == {"person", "cone", "ball"}
    assert len({thing.colour for _, things in frames for thing in things}) >= 3


def test_boxes_lie_in_the_picture_and_go_left_to_right(frames: list) -> None:
    for image, things in frames:
        assert image.shape == (240, 320, 3)
        assert image.dtype == np.uint8
        centres = [thing.box[0] + thing.box[2] for thing in things]
        assert centres == sorted(centres)
        for thing in things:
            x_min, y_min, x_max, y_max = thing.box
            assert 0 <= x_min < x_max <= 320
            assert 0 <= y_min < y_max <= 240


def test_everything_moves_and_nothing_jumps(frames: list) -> None:
    paths: dict[tuple[str, str], list[np.ndarray]] = {}
    for _, things in frames:
        for thing in things:
            paths.setdefault((thing.kind, thing.colour), []).append(np.array(thing.box))
    for path in paths.values():
        assert np.abs(path[-1] - path[0]).max() > 3
    for (_, before), (_, after) in pairwise(frames):
        old = {(thing.kind, thing.colour): np.array(thing.box) for thing in before}
        for thing in after:
            if (thing.kind, thing.colour) in old:
                step = np.abs(np.array(thing.box) - old[thing.kind, thing.colour])
                assert step.max() <= 8


def test_the_light_does_not_flicker(frames: list) -> None:
    top = [image[:40].astype(float).mean() for image, _ in frames]
    assert max(top) - min(top) < 1.0, "nobody walks on the wall"


def test_an_object_hidden_by_half_is_left_out() -> None:
    counts = [len(things) for _, things in islice(moving_scene(2, 150, **SIZE), 0, 150, 3)]
    assert max(counts) == 6
    assert min(counts) >= 4


@pytest.mark.parametrize(
    ("prompt", "means"),
    [
        ("ball", True),
        ("red ball", True),
        ("object", True),
        ("red object", True),
        ("blue ball", False),
        ("person", False),
    ],
)
def test_prompts_mean_objects(prompt: str, means: bool) -> None:
    assert MovingObject("ball", "red", (0, 0, 1, 1)).matches(prompt) is means


def test_truth_is_coco_with_stamps(frames: list, tmp_path: Path) -> None:
    truth = [things for _, things in frames[:7]]
    prompts = prompts_for(truth)
    assert prompts[0] == "person"
    path = tmp_path / "truth.json"
    write_truth(path, truth, prompts=prompts, topic="/cam", fps=3.0, start_ns=5, **SIZE)
    document = json.loads(path.read_text())
    stamps = [image["stamp_ns"] for image in document["images"]]
    assert stamps == [5 + round(k * 1e9 / 3) for k in range(7)]
    assert {image["topic"] for image in document["images"]} == {"/cam"}
    names = {category["id"]: category["name"] for category in document["categories"]}
    assert list(names.values()) == prompts
    assert len({annotation["id"] for annotation in document["annotations"]}) == len(
        document["annotations"]
    )
    for number, things in enumerate(truth, start=1):
        for category, prompt in names.items():
            boxes = [
                annotation["bbox"]
                for annotation in document["annotations"]
                if annotation["image_id"] == number and annotation["category_id"] == category
            ]
            expected = [thing.box for thing in things if thing.matches(prompt)]
            assert [(x, y, x + w, y + h) for x, y, w, h in boxes] == expected


def test_the_command_writes_pictures_that_equal_the_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "scene"
    monkeypatch.setattr("sys.argv", ["demo_scene", "--out", str(out), "--frames", "2"])
    demo_scene.main()
    image, _ = next(iter(moving_scene(1, 1)))
    written = cv2.cvtColor(cv2.imread(str(out / "frame_00000.png")), cv2.COLOR_BGR2RGB)
    assert np.array_equal(written, image)
    document = json.loads((out / "truth.json").read_text())
    assert [entry["file_name"] for entry in document["images"]] == [
        "frame_00000.png",
        "frame_00001.png",
    ]
