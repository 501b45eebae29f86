"""The networks against outputs of the public reference, and an independent slow decoder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from golden_pictures import WHY_OTHERWISE, resized_otherwise
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from photon_ros.core.prompting import PromptTemplate
from photon_ros.engine.interfaces import Attend, FrameCrops
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.models.moondream.image import choose_tiling
from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.moondream.vision import stitch

IMAGES = ("small", "vga", "square", "hd", "tall", "wide")
SPATIAL_CASES = tuple(f"case{i:02}" for i in range(12))
TEXT_CASES = (*(f"case{i:02}" for i in range(12, 19)), "case22")
MakeCache = Callable[[int], Attend]


def assert_close(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual, wanted, atol=2e-3, rtol=1e-3)


@pytest.fixture(scope="module", autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model(golden_checkpoint: Checkpoint) -> MoondreamModel:
    return golden_checkpoint.model


@pytest.fixture(scope="module")
def pixels_of(golden_folder: Path, golden: dict[str, Any]) -> Callable[[str], NDArray[np.uint8]]:
    files = {image["id"]: image["file"] for image in golden["images"]}

    def pixels(name: str) -> NDArray[np.uint8]:
        if name in resized_otherwise():
            pytest.skip(WHY_OTHERWISE)
        return np.asarray(Image.open(golden_folder / files[name]).convert("RGB"))

    return pixels


@pytest.fixture(scope="module")
def crops_of(
    golden_checkpoint: Checkpoint, pixels_of: Callable[[str], NDArray[np.uint8]]
) -> Callable[[str], FrameCrops]:
    return lambda name: golden_checkpoint.cut(pixels_of(name))


@pytest.fixture(scope="module")
def prefix_of(
    model: MoondreamModel, crops_of: Callable[[str], FrameCrops]
) -> Callable[[str], Tensor]:
    """Prefix embeddings (P, D) of an image, encoded once."""
    known: dict[str, Tensor] = {}

    def encode(name: str) -> Tensor:
        if name not in known:
            crops = crops_of(name)
            pixels = torch.from_numpy(crops.pixels)
            known[name] = model.encode_frames([pixels], [crops.tiling])[0]
        return known[name]

    return encode


def image_entry(golden: dict[str, Any], name: str) -> dict[str, Any]:
    return next(image for image in golden["images"] if image["id"] == name)


def case_entry(golden: dict[str, Any], name: str) -> dict[str, Any]:
    return next(case for case in golden["cases"] if case["id"] == name)


def test_state_dict_holds_exactly_the_tensors_of_the_checkpoint(
    model: MoondreamModel, golden: dict[str, Any]
) -> None:
    shapes = {f"model.{name}": list(value.shape) for name, value in model.state_dict().items()}
    assert shapes == golden["checkpoint_keys"]


def test_tiling_table_is_reproduced(golden: dict[str, Any], golden_checkpoint: Checkpoint) -> None:
    vision = golden_checkpoint.config.vision
    margins_px = 2 * vision.margin_px
    for row in golden["tiling_table"]:
        tiling = choose_tiling(
            row["h"] - margins_px, row["w"] - margins_px, vision.window_px, vision.max_crops
        )
        assert list(tiling) == row["tiling"], row


@pytest.mark.parametrize("name", IMAGES)
def test_crops_are_bit_identical(
    name: str, golden: dict[str, Any], crops_of: Callable[[str], FrameCrops]
) -> None:
    entry = image_entry(golden, name)
    crops = crops_of(name)
    assert list(crops.tiling) == entry["tiling"]
    pixels = crops.pixels
    if crops.tiling == (1, 1):
        # The reference keeps the only local crop, which repeats the global one.
        assert len(pixels) == 1
        pixels = np.concatenate([pixels, pixels])
    assert len(pixels) == entry["n_crops"]
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == entry["crops_sha256_pil"]


@pytest.mark.parametrize("name", IMAGES)
def test_vision_tensors(
    name: str,
    model: MoondreamModel,
    golden: dict[str, Any],
    expected: dict[str, Tensor],
    crops_of: Callable[[str], FrameCrops],
) -> None:
    entry = image_entry(golden, name)
    rows = entry["feature_rows"]
    crops = crops_of(name)
    normalised = (torch.from_numpy(crops.pixels).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    features = model.vision.encode(normalised)
    joined = model.vision.join(features, crops.tiling)
    embeds = model.vision.project(joined)
    if len(features) == 1:  # stands for both crops of the reference
        normalised, features = normalised.repeat(2, 1, 1, 1), features.repeat(2, 1, 1)
    assert_close(normalised.mean(dim=(2, 3)), expected[f"{name}.crop_mean"])
    assert_close(features[[0, -1]][:, rows], expected[f"{name}.vision_feats"])
    assert_close(features.mean(dim=1), expected[f"{name}.vision_feats_mean"])
    enc_dim = model.config.vision.enc_dim
    assert_close(joined[rows, enc_dim:], expected[f"{name}.pooled_rows"])
    assert_close(embeds[rows], expected[f"{name}.image_embeds_rows"])
    assert_close(embeds.mean(dim=0), expected[f"{name}.image_embeds_mean"])


@pytest.mark.parametrize("name", IMAGES)
def test_stitched_grid(
    name: str,
    model: MoondreamModel,
    golden: dict[str, Any],
    expected: dict[str, Tensor],
    crops_of: Callable[[str], FrameCrops],
) -> None:
    entry = image_entry(golden, name)
    crops = crops_of(name)
    local = crops.pixels[1:] if len(crops.pixels) > 1 else crops.pixels
    normalised = (torch.from_numpy(local).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    side = model.config.vision.grid_side
    tiles = model.vision.encode(normalised).reshape(len(local), side, side, -1)
    grid = stitch(tiles, crops.tiling, model.config.vision.overlap_margin)
    assert list(grid.shape) == entry["recon_shape"]
    samples = grid[entry["recon_sample_rows"]][:, entry["recon_sample_cols"]]
    assert_close(samples, expected[f"{name}.recon_samples"])


@pytest.mark.parametrize("name", IMAGES)
def test_prefix_hidden(
    name: str,
    model: MoondreamModel,
    golden: dict[str, Any],
    expected: dict[str, Tensor],
    prefix_of: Callable[[str], Tensor],
    dense_cache: MakeCache,
) -> None:
    entry = image_entry(golden, name)
    prefix = prefix_of(name)
    assert len(prefix) == model.spec.prefix_len == entry["prefix_len"]
    positions = torch.arange(len(prefix))
    hidden = model.decode(prefix[None], positions[None], dense_cache(len(prefix)))[0]
    assert_close(
        hidden[entry["prefix_hidden_rows"]],
        expected[f"{name}.prefix_hidden_rows"],
    )


def test_frames_encoded_together_equal_frames_encoded_alone(
    model: MoondreamModel,
    crops_of: Callable[[str], FrameCrops],
    prefix_of: Callable[[str], Tensor],
) -> None:
    names = ("small", "wide", "vga")
    crops = [crops_of(name) for name in names]
    together = model.encode_frames(
        [torch.from_numpy(part.pixels) for part in crops], [part.tiling for part in crops]
    )
    alone = torch.stack([prefix_of(name) for name in names])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


def test_region_encoders(model: MoondreamModel, expected: dict[str, Tensor]) -> None:
    coords = model.region.embed_coords(expected["region.coord_inputs"])
    sizes = model.region.embed_sizes(expected["region.size_inputs"])
    assert_close(coords, expected["region.coord_embeds"])
    assert_close(sizes, expected["region.size_embeds"])


@dataclass
class Trace:
    """What the slow decoder did, in the words of the reference's record."""

    objects: list[dict[str, float]] = field(default_factory=list)
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    ended_by: str = ""
    fed_embeds: list[Tensor] = field(default_factory=list)
    step_hidden: list[Tensor] = field(default_factory=list)
    x_logits: list[Tensor] = field(default_factory=list)
    y_logits: list[Tensor] = field(default_factory=list)
    size_logits: list[Tensor] = field(default_factory=list)


class SlowDecoder:
    """One sequence, one position at a time, the rule of the reference: anything but EOS at an
    object's start means another object.
    """

    def __init__(self, model: MoondreamModel, cache: Attend) -> None:
        self.model, self.cache, self.position = model, cache, 0

    def prefill(self, embeds_TD: Tensor) -> Tensor:
        positions = torch.arange(self.position, self.position + len(embeds_TD))
        self.position += len(embeds_TD)
        return self.model.decode(embeds_TD[None], positions[None], self.cache)[0]

    def step(self, embed_D: Tensor, trace: Trace) -> Tensor:
        trace.fed_embeds.append(embed_D)
        hidden = self.prefill(embed_D[None])[-1]
        trace.step_hidden.append(hidden)
        return hidden

    def locate(self, hidden: Tensor, max_objects: int, is_box: bool) -> Trace:
        model, trace = self.model, Trace()
        num_bins = model.spec.num_coord_bins
        while True:
            best = int(model.vocab_logits(hidden[None])[0].argmax())
            if len(trace.objects) == max_objects:
                trace.ended_by = "max_objects"
                return trace
            trace.steps.append(("boundary", best))
            if best == model.spec.eos_id:
                trace.ended_by = "eos"
                return trace
            centre = {}
            for axis, kept in (("x", trace.x_logits), ("y", trace.y_logits)):
                kept.append(model.coord_logits(hidden[None])[0])
                chosen = int(kept[-1].argmax())
                trace.steps.append((axis, chosen))
                centre[axis] = chosen / num_bins
                hidden = self.step(model.embed_coords(torch.tensor([chosen]))[0], trace)
            if not is_box:
                trace.objects.append(centre)
                continue
            trace.size_logits.append(model.size_logits(hidden[None])[0])
            bins = trace.size_logits[-1].argmax(dim=-1)
            trace.steps.append(("size", *bins.tolist()))
            width, height = (
                2.0 ** (10 * b / (model.spec.num_size_bins - 1) - 10) for b in bins.tolist()
            )
            trace.objects.append(
                {
                    "x_min": centre["x"] - width / 2,
                    "y_min": centre["y"] - height / 2,
                    "x_max": centre["x"] + width / 2,
                    "y_max": centre["y"] + height / 2,
                }
            )
            hidden = self.step(model.embed_sizes(bins[None])[0], trace)


def prompt_ids(template: PromptTemplate, checkpoint: Checkpoint, text: str) -> list[int]:
    words = checkpoint.prompting.tokenizer.encode(template.object_prefix + text)
    return [*template.prefix, *words, *template.suffix]


def recorded_steps(case: dict[str, Any]) -> list[tuple[Any, ...]]:
    keys = {"boundary": ("argmax",), "x": ("bin",), "y": ("bin",), "size": ("w_bin", "h_bin")}
    return [
        (step["kind"], *(step[key] for key in keys[step["kind"]]))
        for step in case["expected"]["steps"]
    ]


@pytest.mark.parametrize("name", SPATIAL_CASES)
def test_point_and_detect_cases_are_reproduced_exactly(
    name: str,
    golden: dict[str, Any],
    golden_checkpoint: Checkpoint,
    expected: dict[str, Tensor],
    prefix_of: Callable[[str], Tensor],
    dense_cache: MakeCache,
) -> None:
    case = case_entry(golden, name)
    model, wanted = golden_checkpoint.model, case["expected"]
    template = golden_checkpoint.prompting.templates[case["skill"]]
    ids = prompt_ids(template, golden_checkpoint, case["object"])
    assert ids == case["prompt_token_ids"]
    prefix = prefix_of(case["image"])
    assert len(prefix) == case["prompt_start_pos"]

    decoder = SlowDecoder(model, dense_cache(len(prefix)))
    prompt = model.embed_tokens(torch.tensor(ids))
    hidden = decoder.prefill(torch.cat((prefix, prompt)))[-1]
    assert_close(hidden, expected[f"{name}.prompt_hidden_last"])
    assert_close(model.vocab_logits(hidden[None])[0], expected[f"{name}.prompt_logits"])

    max_objects = 50 if case["max_objects"] is None else case["max_objects"]
    trace = decoder.locate(hidden, max_objects, is_box=case["skill"] == "detect")
    assert trace.ended_by == wanted["ended_by"]
    assert len(trace.objects) == wanted["n"]
    steps = recorded_steps(case)
    # A record may end with the boundary that nobody acts on.
    assert trace.steps == steps[: len(trace.steps)]
    assert len(steps) - len(trace.steps) <= 1
    assert len(trace.fed_embeds) == wanted["decode_forwards"]
    for found, known in zip(trace.objects, wanted["objects"], strict=True):
        assert found == pytest.approx(known, abs=1e-6)
    if trace.objects:
        assert_first_object(name, trace, expected)


def assert_first_object(name: str, trace: Trace, expected: dict[str, Tensor]) -> None:
    assert_close(trace.x_logits[0], expected[f"{name}.x_logits_first"])
    assert_close(trace.y_logits[0], expected[f"{name}.y_logits_first"])
    num_steps = 2
    if trace.size_logits:
        assert_close(trace.size_logits[0], expected[f"{name}.size_logits_first"])
        num_steps = 3
    assert_close(torch.stack(trace.fed_embeds[:num_steps]), expected[f"{name}.fed_embeds"])
    assert_close(torch.stack(trace.step_hidden[:num_steps]), expected[f"{name}.step_hidden"])
    assert_close(trace.step_hidden[-1], expected[f"{name}.last_step_hidden"])


def reference_embeds(model: MoondreamModel, refs: list[list[float]]) -> dict[int, list[Tensor]]:
    """Embeddings of points and boxes in a prompt, by the id that holds their place."""
    coords, sizes = [], []
    for ref in refs:
        if len(ref) == 2:
            coords += ref
        else:
            x_min, y_min, x_max, y_max = ref
            coords += [(x_min + x_max) / 2, (y_min + y_max) / 2]
            sizes.append([x_max - x_min, y_max - y_min])
    embeds = {model.spec.coord_id: list(model.region.embed_coords(torch.tensor(coords)[:, None]))}
    if sizes:
        embeds[model.spec.size_id] = list(model.region.embed_sizes(torch.tensor(sizes)))
    return embeds


@pytest.mark.parametrize("name", TEXT_CASES)
def test_text_prompts_reach_the_same_logits(
    name: str,
    golden: dict[str, Any],
    golden_checkpoint: Checkpoint,
    expected: dict[str, Tensor],
    prefix_of: Callable[[str], Tensor],
    dense_cache: MakeCache,
) -> None:
    case = case_entry(golden, name)
    model = golden_checkpoint.model
    embeds = model.embed_tokens(torch.tensor(case["prompt_token_ids"]))
    if "spatial_refs" in case:
        waiting = reference_embeds(model, case["spatial_refs"])
        for i, token_id in enumerate(case["prompt_token_ids"]):
            if waiting.get(token_id):
                embeds[i] = waiting[token_id].pop(0)
        assert not any(waiting.values())
    prefix_len = 0
    if case["image"] is not None:
        prefix = prefix_of(case["image"])
        prefix_len = len(prefix)
        embeds = torch.cat((prefix, embeds))
    hidden = SlowDecoder(model, dense_cache(prefix_len)).prefill(embeds)[-1]
    assert_close(hidden, expected[f"{name}.prompt_hidden_last"])
    assert_close(model.vocab_logits(hidden[None])[0], expected[f"{name}.prompt_logits"])


def test_text_templates_give_the_recorded_prompts(
    golden: dict[str, Any], golden_checkpoint: Checkpoint
) -> None:
    templates = golden_checkpoint.prompting.templates
    for name in TEXT_CASES:
        case = case_entry(golden, name)
        if case["skill"] == "caption":
            template = templates[f"caption_{case['length']}"]
            assert [*template.prefix, *template.suffix] == case["prompt_token_ids"]
        elif case["image"] is not None and not case.keys() & {"spatial_refs", "reasoning"}:
            ids = prompt_ids(templates["query"], golden_checkpoint, case["question"])
            assert ids == case["prompt_token_ids"]
