"""An answer and its recording against what the reference computed.

Bins, counts, endings and prompt ids must be equal, coordinates to 1e-6, tensors to
atol 2e-3 + rtol 1e-3 in float32. Each check returns what is wrong, in words, or nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from photon_ros.cli.golden_folder import GoldenCase
from photon_ros.cli.golden_probe import Recording
from photon_ros.core.prompting import Prompting
from photon_ros.core.result import Detection, Result
from photon_ros.engine.interfaces import Model

COORDINATE_ATOL: Final = 1e-6
TENSOR_ATOL: Final = 2e-3
TENSOR_RTOL: Final = 1e-3


def check_answer(case: GoldenCase, result: Result, prompting: Prompting) -> Iterator[str]:
    """Yield what is wrong with an answer: count, ending, coordinates, bins."""
    expected = case.expected
    if len(result.detections) != expected["n"]:
        yield f"{len(result.detections)} objects, expected {expected['n']}"
    if result.end_reason.value != expected["ended_by"]:
        yield f"ended by {result.end_reason.value}, expected {expected['ended_by']}"
    for number, (found, wanted) in enumerate(
        zip(result.detections, expected["objects"], strict=False)
    ):
        for name, value in _coordinates(found, case.skill).items():
            if abs(value - wanted[name]) > COORDINATE_ATOL:
                yield f"object {number}: {name} is {value:.7f}, expected {wanted[name]:.7f}"
    bins, wanted_bins = _bins(result.detections, case.skill, prompting), _expected_bins(case)
    if bins != wanted_bins:
        place = next(
            (
                i
                for i, pair in enumerate(zip(bins, wanted_bins, strict=False))
                if len(set(pair)) > 1
            ),
            min(len(bins), len(wanted_bins)),
        )
        yield f"bins differ from number {place} on: {bins[place:][:4]}, " + (
            f"expected {wanted_bins[place:][:4]}"
        )


def _coordinates(found: Detection, skill: str) -> dict[str, float]:
    if skill == "point":
        return {"x": found.x, "y": found.y}
    return dict(zip(("x_min", "y_min", "x_max", "y_max"), found.corners(), strict=True))


def _bins(detections: Sequence[Detection], skill: str, prompting: Prompting) -> list[int]:
    """Return the bins behind the answer, in the order they were decoded."""
    coords, sizes = np.array(prompting.coord_values), np.array(prompting.size_values)
    bins: list[int] = []
    for found in detections:
        values = [(coords, found.x), (coords, found.y)]
        if skill == "detect":
            values += [(sizes, found.width), (sizes, found.height)]
        bins.extend(int(np.abs(table - value).argmin()) for table, value in values)
    return bins


def _expected_bins(case: GoldenCase) -> list[int]:
    bins: list[int] = []
    for step in case.expected["steps"]:
        if step["kind"] in ("x", "y"):
            bins.append(step["bin"])
        elif step["kind"] == "size":
            bins += [step["w_bin"], step["h_bin"]]
    return bins


def check_recording(
    case: GoldenCase, recording: Recording, model: Model, num_objects: int
) -> Iterator[str]:
    """Yield what is wrong with the prompt and the tensors behind an answer.

    The engine does not run the forward after the object that fills a budget, so the last
    step's hidden state is there to compare only when the model ended the answer itself.
    """
    if recording.prompt_ids != case.prompt_ids:
        yield f"prompt ids {recording.prompt_ids}, expected {case.prompt_ids}"
    yield from _check_crops(case, recording)
    computed = _image_tensors(case, recording) | _case_tensors(case, recording, model, num_objects)
    for name, value in computed.items():
        if name in case.tensors:
            yield from _compare(name, value, case.tensors[name])
    boundaries = [step for step in case.expected["steps"] if step["kind"] == "boundary"]
    free = [logits for logits in recording.pair_logits if len(logits) > 1]
    spec = model.spec
    for number, (logits, step) in enumerate(zip(free, boundaries, strict=False)):
        pair = np.array([logits[spec.eos_id], logits[spec.coord_id]])
        wanted = np.array([step["logit_eos"], step["logit_coord"]])
        yield from _compare(f"end and object logits of boundary {number}", pair, wanted)


def _check_crops(case: GoldenCase, recording: Recording) -> Iterator[str]:
    tiling = tuple(case.facts["tiling"])
    if recording.tiling != tiling:
        yield f"tiling {recording.tiling}, expected {tiling}"
    digest = case.facts.get("crops_sha256_pil")
    crops = recording.crops.numpy()
    if len(crops) == 1:  # the reference repeats the global crop as the only local one
        crops = np.concatenate([crops, crops])
    if digest is not None and hashlib.sha256(crops.tobytes()).hexdigest() != digest:
        yield "the crops' pixels differ"


def _image_tensors(case: GoldenCase, recording: Recording) -> dict[str, NDArray[Any]]:
    facts = case.facts
    image_embeds = recording.prefix_embeds[1:].numpy()
    tensors = {"image_embeds_mean": image_embeds.mean(0)}
    if "feature_rows" in facts:
        tensors["image_embeds_rows"] = image_embeds[facts["feature_rows"]]
    if "prefix_hidden_rows" in facts and recording.prefix_hidden is not None:
        tensors["prefix_hidden_rows"] = recording.prefix_hidden.numpy()[facts["prefix_hidden_rows"]]
    return tensors


def _case_tensors(
    case: GoldenCase, recording: Recording, model: Model, num_objects: int
) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {}
    if recording.first_hidden is not None:
        tensors["prompt_hidden_last"] = recording.first_hidden.numpy()
        with torch.inference_mode():
            device = model.embed_tokens(torch.zeros(1, dtype=torch.int64)).device
            logits = model.vocab_logits(recording.first_hidden[None].to(device))[0]
        tensors["prompt_logits"] = logits.cpu().numpy()
    if num_objects:
        tensors["x_logits_first"] = recording.coord_logits[0].numpy()
        tensors["y_logits_first"] = recording.coord_logits[1].numpy()
        if recording.size_logits:
            tensors["size_logits_first"] = recording.size_logits[0].numpy()
        # A step may be missing when a budget of one object ended the answer.
        num_steps = min(len(recording.step_inputs), 2 if case.skill == "point" else 3)
        for name, rows in (
            ("fed_embeds", recording.step_inputs),
            ("step_hidden", recording.step_hiddens),
        ):
            tensors[name] = torch.stack(rows[:num_steps]).numpy() if num_steps else np.zeros(0)
    last = case.expected.get("decode_forwards", 0) - 1
    if case.expected["ended_by"] == "eos" and 0 <= last < len(recording.step_hiddens):
        tensors["last_step_hidden"] = recording.step_hiddens[last].numpy()
    return tensors


def _compare(name: str, value: NDArray[Any], wanted: NDArray[Any]) -> Iterator[str]:
    if name in ("fed_embeds", "step_hidden"):
        wanted = wanted[: len(value)]
    if value.shape != wanted.shape:
        yield f"{name} has shape {value.shape}, expected {wanted.shape}"
        return
    error = np.abs(value.astype(np.float64) - wanted)
    excess = error - (TENSOR_ATOL + TENSOR_RTOL * np.abs(wanted))
    if not np.all(excess <= 0):  # also true for NaN
        yield f"{name} is off by up to {np.max(error):.3g}"
