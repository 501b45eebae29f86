"""An answer and its recording against what the reference computed.

Bins, token ids, counts, endings and prompt ids must be equal, coordinates to 1e-6, tensors to
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
from photon_ros.cli.golden_probe import FrameRecording, Recording
from photon_ros.core.prompting import Prompting
from photon_ros.core.result import Detection, EndReason, Reasoning, Result
from photon_ros.engine.interfaces import Model

COORDINATE_ATOL: Final = 1e-6
TENSOR_ATOL: Final = 2e-3
TENSOR_RTOL: Final = 1e-3
# How the reference calls the ends of an answer in words.
_ENDINGS: Final = {EndReason.EOS: "stop_token", EndReason.MAX_TOKENS: "max_tokens"}


def check_answer(case: GoldenCase, result: Result, prompting: Prompting) -> Iterator[str]:
    """Yield what is wrong with an answer."""
    if case.is_spatial:
        yield from _check_objects(case, result, prompting)
    else:
        yield from _check_words(case, result)


def _check_objects(case: GoldenCase, result: Result, prompting: Prompting) -> Iterator[str]:
    expected, skill = case.expected, case.request.skill
    if len(result.detections) != expected["n"]:
        yield f"{len(result.detections)} objects, expected {expected['n']}"
    if result.end_reason.value != expected["ended_by"]:
        yield f"ended by {result.end_reason.value}, expected {expected['ended_by']}"
    for number, (found, wanted) in enumerate(
        zip(result.detections, expected["objects"], strict=False)
    ):
        for name, value in _coordinates(found, skill).items():
            if abs(value - wanted[name]) > COORDINATE_ATOL:
                yield f"object {number}: {name} is {value:.7f}, expected {wanted[name]:.7f}"
    bins = _bins(result.detections, skill, prompting)
    yield from _compare_lists("bins", bins, _expected_bins(case))


def _check_words(case: GoldenCase, result: Result) -> Iterator[str]:
    expected = case.expected
    thought, answer = _phases(expected)
    yield from _compare_lists("token ids", result.token_ids, answer["token_ids"])
    ended_by = _ENDINGS.get(result.end_reason, result.end_reason.value)
    if ended_by != answer["ended_by"]:
        yield f"ended by {ended_by}, expected {answer['ended_by']}"
    if result.text != expected["text"]:
        yield f"text {result.text!r}, expected {expected['text']!r}"
    if (result.reasoning is None) != (thought is None):
        yield "a reasoning" + (" is missing" if result.reasoning is None else " nobody asked for")
    elif result.reasoning is not None and thought is not None:
        yield from _check_reasoning(result.reasoning, thought, expected["reasoning"])


def _check_reasoning(found: Reasoning, thought: Any, expected: Any) -> Iterator[str]:
    yield from _compare_lists("token ids of the reasoning", found.token_ids, thought["token_ids"])
    if found.text != expected["text"]:
        yield f"reasoning {found.text!r}, expected {expected['text']!r}"
    grounding = [(part.start, part.end, np.array(part.points)) for part in found.grounding]
    wanted = [
        (part["start_idx"], part["end_idx"], np.array(part["points"]))
        for part in expected["grounding"]
    ]
    is_equal = len(grounding) == len(wanted) and all(
        a[:2] == b[:2]
        and a[2].shape == b[2].shape
        and np.allclose(a[2], b[2], rtol=0, atol=COORDINATE_ATOL)
        for a, b in zip(grounding, wanted, strict=True)
    )
    if not is_equal:
        yield f"grounding {found.grounding}, expected {expected['grounding']}"


def _phases(expected: Any) -> tuple[Any | None, Any]:
    """Return what the reference recorded of the reasoning, if there was one, and the answer."""
    *thought, answer = expected["phases"]
    return (thought[0] if thought else None), answer


def _compare_lists(what: str, found: Sequence[int], wanted: Sequence[int]) -> Iterator[str]:
    found, wanted = list(found), list(wanted)
    if found == wanted:
        return
    pairs = enumerate(zip(found, wanted, strict=False))
    place = next((i for i, (a, b) in pairs if a != b), min(len(found), len(wanted)))
    yield f"{what} differ from number {place} on: {found[place:][:4]}, " + (
        f"expected {wanted[place:][:4]}"
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
    """Yield what is wrong with the prompts and the tensors behind an answer.

    The engine runs no forward whose result nobody would use, so the state after the last step
    is there to compare only when the model ended the answer itself.
    """
    yield from _check_prompts(case, recording)
    tensors = _prompt_tensors(recording, model)
    if case.is_spatial:
        tensors |= _step_tensors(case, recording, num_objects)
        yield from _check_boundaries(case, recording, model)
    else:
        tensors |= _last_logits(case, recording)
    if recording.frame is not None and case.facts is not None:
        yield from _check_crops(case.facts, recording.frame)
        tensors |= _image_tensors(case.facts, recording.frame)
    for name, value in tensors.items():
        if name in case.tensors:
            yield from _compare(name, value, case.tensors[name])


def _check_prompts(case: GoldenCase, recording: Recording) -> Iterator[str]:
    first = recording.prompts[0][1]
    if first != case.prompt_ids:
        yield f"prompt ids {first}, expected {case.prompt_ids}"
    if case.is_spatial:
        return
    wanted = [
        (phase["start_pos"], tuple(phase["prompt_token_ids"])) for phase in case.expected["phases"]
    ]
    if recording.prompts[1:] != wanted[1:]:
        yield f"later phases start with {recording.prompts[1:]}, expected {wanted[1:]}"


def _check_boundaries(case: GoldenCase, recording: Recording, model: Model) -> Iterator[str]:
    boundaries = [step for step in case.expected["steps"] if step["kind"] == "boundary"]
    free = [logits for logits in recording.pair_logits if len(logits) > 1]
    spec = model.spec
    for number, (logits, step) in enumerate(zip(free, boundaries, strict=False)):
        pair = np.array([logits[spec.eos_id], logits[spec.coord_id]])
        wanted = np.array([step["logit_eos"], step["logit_coord"]])
        yield from _compare(f"end and object logits of boundary {number}", pair, wanted)


def _check_crops(facts: Any, frame: FrameRecording) -> Iterator[str]:
    tiling = tuple(facts["tiling"])
    if frame.tiling != tiling:
        yield f"tiling {frame.tiling}, expected {tiling}"
    digest = facts.get("crops_sha256_pil")
    crops = frame.crops.numpy()
    if len(crops) == 1:  # the reference repeats the global crop as the only local one
        crops = np.concatenate([crops, crops])
    if digest is not None and hashlib.sha256(crops.tobytes()).hexdigest() != digest:
        yield "the crops' pixels differ"


def _image_tensors(facts: Any, frame: FrameRecording) -> dict[str, NDArray[Any]]:
    image_embeds = frame.prefix_embeds[1:].numpy()
    tensors = {"image_embeds_mean": image_embeds.mean(0)}
    if "feature_rows" in facts:
        tensors["image_embeds_rows"] = image_embeds[facts["feature_rows"]]
    if "prefix_hidden_rows" in facts and frame.prefix_hidden is not None:
        tensors["prefix_hidden_rows"] = frame.prefix_hidden.numpy()[facts["prefix_hidden_rows"]]
    return tensors


def _prompt_tensors(recording: Recording, model: Model) -> dict[str, NDArray[Any]]:
    if recording.first_hidden is None:
        return {}
    with torch.inference_mode():
        device = model.embed_tokens(torch.zeros(1, dtype=torch.int64)).device
        logits = model.vocab_logits(recording.first_hidden[None].to(device))[0]
    return {
        "prompt_hidden_last": recording.first_hidden.numpy(),
        "prompt_logits": logits.cpu().numpy(),
    }


def _step_tensors(
    case: GoldenCase, recording: Recording, num_objects: int
) -> dict[str, NDArray[Any]]:
    tensors: dict[str, NDArray[Any]] = {}
    inputs, hiddens = list(recording.step_inputs.values()), list(recording.step_hiddens.values())
    if num_objects:
        tensors["x_logits_first"] = recording.coord_logits[0].numpy()
        tensors["y_logits_first"] = recording.coord_logits[1].numpy()
        if recording.size_logits:
            tensors["size_logits_first"] = recording.size_logits[0].numpy()
        # A step may be missing when a budget of one object ended the answer.
        num_steps = min(len(inputs), 2 if case.request.skill == "point" else 3)
        for name, rows in (("fed_embeds", inputs), ("step_hidden", hiddens)):
            tensors[name] = torch.stack(rows[:num_steps]).numpy() if num_steps else np.zeros(0)
    last = case.expected.get("decode_forwards", 0) - 1
    if case.expected["ended_by"] == "eos" and 0 <= last < len(hiddens):
        tensors["last_step_hidden"] = hiddens[last].numpy()
    return tensors


def _last_logits(case: GoldenCase, recording: Recording) -> dict[str, NDArray[Any]]:
    """Return the logits that the end token was chosen from."""
    _, answer = _phases(case.expected)
    if answer["ended_by"] != "stop_token":
        return {}
    num_fed = len(answer["prompt_token_ids"]) + len(answer["token_ids"])
    logits = recording.vocab_logits.get(answer["start_pos"] + num_fed - 1)
    return {} if logits is None else {"last_step_logits": logits.numpy()}


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
