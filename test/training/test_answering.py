"""The lockstep decoder for measuring gives what the product's engine gives."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.models.nano import load_nano
from photon_ros.photon import Photon
from photon_ros.skills.svg_path import rings_of
from training.answering import Asker, Found, _placed
from training.architecture import CONFIG
from training.evaluate import asker_for
from training.export import export
from training.network import Network
from training.scene import render_scene

PROMPTS = ["person", "red cone", "object", "blue ball"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A network with random weights, exported and loaded as the product does."""
    torch.manual_seed(1)
    network = Network(CONFIG)
    with torch.no_grad():
        # Objects and ends must both come up, or half of the decoder is not compared.
        for mlp in (network.region.coord_decoder, network.region.size_decoder):
            mlp.fc2.weight.mul_(20)
        network.text.lm_head.weight.mul_(4)
        network.text.lm_head.bias[CONFIG.tokenizer.coord_id] = 4.0
    folder = tmp_path_factory.mktemp("weights")
    export(network, folder)
    return load_nano(folder=folder)


@pytest.fixture(scope="module")
def drawing() -> Checkpoint:
    """The weights in the package, which can draw; and they never want to end."""
    checkpoint = load_nano()
    model = copy.deepcopy(checkpoint.model)
    with torch.no_grad():
        model.text.lm_head.bias[CONFIG.tokenizer.coord_id] += 12
    return replace(checkpoint, model=model)


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return render_scene(320, 240, np.random.default_rng(8), num_objects=6).image


def ask_all(checkpoint: Checkpoint, image: np.ndarray, skill: str) -> list[list[Found]]:
    crops = checkpoint.cut(image)
    with torch.no_grad():
        asker = asker_for(checkpoint, torch.from_numpy(crops.pixels), crops.tiling)
        return asker.ask(skill, PROMPTS, max_objects=4)


def test_boxes_equal_those_of_the_engine(checkpoint: Checkpoint, image: np.ndarray) -> None:
    ours = ask_all(checkpoint, image, "detect")
    with Photon(checkpoint) as photon:
        theirs = [photon.detect(image, prompt, max_objects=4)["objects"] for prompt in PROMPTS]
    assert sum(map(len, ours)) > 0
    for found, objects in zip(ours, theirs, strict=True):
        assert len(found) == len(objects)
        for thing, other in zip(found, objects, strict=True):
            box = tuple(other[name] for name in ("x_min", "y_min", "x_max", "y_max"))
            assert thing.box == pytest.approx(box, abs=1e-6)
            assert thing.score == pytest.approx(other["score"], abs=1e-3)


def test_points_equal_those_of_the_engine(checkpoint: Checkpoint, image: np.ndarray) -> None:
    ours = ask_all(checkpoint, image, "point")
    with Photon(checkpoint) as photon:
        theirs = [photon.point(image, prompt, max_objects=4)["points"] for prompt in PROMPTS]
    assert sum(map(len, ours)) > 0
    for found, points in zip(ours, theirs, strict=True):
        assert len(found) == len(points)
        for thing, other in zip(found, points, strict=True):
            assert (thing.x, thing.y) == pytest.approx((other["x"], other["y"]), abs=1e-6)
            assert thing.width == thing.height == 0


POINTS = [(0.2, 0.3), (0.91, 0.5), (0.04, 0.77), (0.5, 0.5)]


@pytest.mark.parametrize("points", [None, POINTS])
def test_outlines_equal_those_of_the_engine(
    drawing: Checkpoint, image: np.ndarray, points: list[tuple[float, float]] | None
) -> None:
    crops = drawing.cut(image)
    with torch.no_grad():
        asker = asker_for(drawing, torch.from_numpy(crops.pixels), crops.tiling)
        ours = asker.segment(PROMPTS, points)
    with Photon(drawing) as photon:
        for index, (prompt, found) in enumerate(zip(PROMPTS, ours, strict=True)):
            refs = [points[index]] if points else []
            answer = photon.segment(image, prompt, spatial_refs=refs, max_tokens=51)
            if found is None:
                assert answer["bbox"] is None
                continue
            box = answer["bbox"]
            low = np.array([box["x_min"], box["y_min"]])
            extent = np.array([box["x_max"], box["y_max"]]) - low
            (ring,) = rings_of(answer["path"])
            assert len(found.ring) == len(ring)
            assert np.array(found.ring) == pytest.approx(low + np.array(ring) * extent, abs=1e-3)
    assert sum(found is not None for found in ours) >= 2


def test_a_point_changes_what_is_outlined(drawing: Checkpoint, image: np.ndarray) -> None:
    crops = drawing.cut(image)
    with torch.no_grad():
        asker = asker_for(drawing, torch.from_numpy(crops.pixels), crops.tiling)
        plain, pointed = asker.segment(PROMPTS), asker.segment(PROMPTS, POINTS)
        alone = asker.segment(PROMPTS[1:2], POINTS[1:2])
    assert pointed[1:2] == alone or pointed[1].ring == alone[0].ring
    assert [found and found.ring for found in plain] != [found and found.ring for found in pointed]


def test_an_outline_ends_at_the_latest_where_it_must(
    drawing: Checkpoint, image: np.ndarray
) -> None:
    crops = drawing.cut(image)
    with torch.no_grad():
        asker = asker_for(drawing, torch.from_numpy(crops.pixels), crops.tiling)
        lengths = [len(f.ring) for f in asker.segment(PROMPTS, max_corners=5) if f]
    assert lengths
    assert max(lengths) == 5


def test_a_box_that_sticks_out_is_clamped_before_its_outline_is_placed() -> None:
    ring = _placed([(0.0, 0.0), (1.0, 1.0), (0.5, 0.5)], (0.1, 0.9, 0.4, 0.4))
    assert ring == (pytest.approx((0, 0.7)), pytest.approx((0.3, 1)), pytest.approx((0.15, 0.85)))


def test_prompts_asked_together_are_answered_as_if_alone(
    checkpoint: Checkpoint, image: np.ndarray
) -> None:
    together = ask_all(checkpoint, image, "detect")
    crops = checkpoint.cut(image)
    with torch.no_grad():
        asker = asker_for(checkpoint, torch.from_numpy(crops.pixels), crops.tiling)
        alone = [asker.ask("detect", [prompt], max_objects=4)[0] for prompt in PROMPTS]
    for first, second in zip(together, alone, strict=True):
        assert [thing.box for thing in first] == [thing.box for thing in second]


def test_no_prompts_no_answers(checkpoint: Checkpoint) -> None:
    prefix = torch.zeros(CONFIG.prefix_len, CONFIG.text.dim)
    with torch.no_grad():
        assert Asker(checkpoint.model, checkpoint.prompting, prefix).ask("detect", []) == []
        assert Asker(checkpoint.model, checkpoint.prompting, prefix).segment([], []) == []


def test_a_box_is_around_its_centre() -> None:
    thing = Found(0.5, 0.4, 0.2, 0.1, 1.0)
    assert thing.box == pytest.approx((0.4, 0.35, 0.6, 0.45))
    assert replace(thing, width=0, height=0).box == (0.5, 0.4, 0.5, 0.4)


def test_exported_weights_are_whole_and_leave_nothing_half_written(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = Network(CONFIG)
    first = export(network, tmp_path)
    assert export(network, tmp_path) == first, "the same weights have the same hash"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    loaded = load_nano(folder=tmp_path)
    crops = torch.randint(0, 255, (1, 192, 192, 3), dtype=torch.uint8)
    with torch.no_grad():
        ours = network.embed_image(crops, [1], [(1, 1)])[0]
        theirs = loaded.model.encode_frames([crops], [(1, 1)])[0, 1:]
    assert torch.allclose(ours, theirs, atol=0.02, rtol=0.02), "equal but for half precision"
