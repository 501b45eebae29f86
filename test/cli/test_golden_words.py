"""Golden cases in words, and outlines as data: every check can fail."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_pictures import comparable, resized_otherwise
from PIL import Image

from photon_ros.cli.golden_check import check_answer, check_recording
from photon_ros.cli.golden_folder import GoldenCase, read_golden
from photon_ros.cli.golden_probe import Recording, RecordingModel
from photon_ros.cli.golden_segment import check_outlines
from photon_ros.core.errors import InputError
from photon_ros.core.frame import Frame
from photon_ros.core.result import EndReason, Result
from photon_ros.models.moondream.checkpoint import Checkpoint, load_checkpoint
from photon_ros.photon import Photon

from .conftest import Cli

Edit = Callable[[GoldenCase], GoldenCase]


def golden_folder() -> Path:
    name = os.environ.get("PHOTON_SHARED")
    if not name:
        pytest.skip("PHOTON_SHARED does not name a folder with reference outputs")
    return Path(name) / "golden" / "moondream"


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return load_checkpoint(golden_folder())


# --- all of it, in every mode -------------------------------------------------------------------


@pytest.mark.parametrize(
    "mode",
    [
        (),
        ("--blocking",),
        ("--hold-constrained",),
        ("--batched",),
        ("--blocking", "--hold-constrained"),
        ("--batched", "--hold-constrained"),
        ("--batched", "--blocking"),
    ],
    ids=" ".join,
)
def test_points_boxes_words_and_outlines_are_exact_in_every_mode(
    cli_here: Cli, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    done = cli_here("golden", comparable(golden_folder(), tmp_path), *mode)
    num_cases = 28 if resized_otherwise() else 31
    wanted = (f"{num_cases} passed, 0 failed\n", "", 0)
    assert (done.stdout, done.stderr, done.returncode) == wanted


# --- words: answers of the engine against altered expectations ----------------------------------


@dataclass(frozen=True)
class Answered:
    case: GoldenCase
    result: Result
    recording: Recording
    checkpoint: Checkpoint

    def problems(self, case: GoldenCase) -> list[str]:
        return [
            *check_answer(case, self.result, self.checkpoint.prompting),
            *check_recording(case, self.recording, self.checkpoint.model, 0),
        ]


@pytest.fixture(scope="module")
def answered(checkpoint: Checkpoint) -> Iterator[Callable[[str], Answered]]:
    """Answer a case by its name, each once; all through one engine, one after the other."""
    cases = {case.name: case for case in read_golden(golden_folder())}
    probe = RecordingModel(checkpoint.model)
    known: dict[str, Answered] = {}
    with Photon(replace(checkpoint, model=probe)) as photon:

        def answer(name: str) -> Answered:
            if name not in known:
                case, num_before = cases[name], len(probe.recordings)
                frame = case.request.frame
                own = replace(case.request, frame=None if frame is None else Frame(frame.image))
                result = photon.submit(own).result()
                assert len(probe.recordings) == num_before + 1
                known[name] = Answered(case, result, probe.recordings[-1], checkpoint)
            return known[name]

        yield answer


def with_expected(change: Callable[[dict[str, Any]], object]) -> Edit:
    def edit(case: GoldenCase) -> GoldenCase:
        expected = copy.deepcopy(dict(case.expected))
        change(expected)
        return replace(case, expected=expected)

    return edit


def with_phase(number: int, **change: Any) -> Edit:
    return with_expected(lambda expected: expected["phases"][number].update(change))


def with_grounding(**change: Any) -> Edit:
    return with_expected(lambda expected: expected["reasoning"]["grounding"][0].update(change))


def with_tensor(name: str, by: float) -> Edit:
    def edit(case: GoldenCase) -> GoldenCase:
        tensor = np.array(case.tensors[name])
        tensor.flat[-1] += by
        return replace(case, tensors=dict(case.tensors) | {name: tensor})

    return edit


@pytest.mark.parametrize(
    ("name", "edit", "reason"),
    [
        (
            "case15",
            with_expected(lambda e: e["phases"][0]["token_ids"].__setitem__(2, 9)),
            "token ids differ from number 2 on: [310, 774, 310, 767], expected [9, 774, 310, 767]",
        ),
        ("case15", with_phase(0, token_ids=[]), "token ids differ from number 0"),
        ("case15", with_phase(0, ended_by="max_tokens"), "ended by stop_token, expected max_tok"),
        (
            "case15",
            with_expected(lambda e: e.update(text="no")),
            "text '637637435074350044455O4364561', expected 'no'",
        ),
        (
            "case15",
            lambda case: replace(case, prompt_ids=(*case.prompt_ids, 3)),
            "prompt ids (1, 1236, 2, 1350, 1352, 1356, 1321, 1326, 51, 3, 3), expected",
        ),
        ("case15", with_tensor("last_step_logits", 0.5), "last_step_logits is off by up to 0.5"),
        ("case15", with_tensor("prompt_logits", 0.5), "prompt_logits is off by up to 0.5"),
        ("case15", with_tensor("image_embeds_mean", 0.1), "image_embeds_mean is off"),
        (
            "case15",
            with_expected(lambda e: e["phases"].insert(0, e["phases"][0])),
            "a reasoning is missing",
        ),
        ("case16", with_phase(0, ended_by="stop_token"), "ended by max_tokens, expected stop_tok"),
        ("case18", with_tensor("prompt_hidden_last", 0.1), "prompt_hidden_last is off by up"),
        ("case18", with_tensor("prompt_logits", 0.5), "prompt_logits is off by up to 0.5"),
        (
            "case22",
            with_expected(lambda e: e["phases"][0]["token_ids"].pop()),
            "token ids of the reasoning differ from number 13 on: [5], expected []",
        ),
        (
            "case22",
            with_phase(1, start_pos=751),
            "later phases start with [(750, (3,))], expected [(751, (3,))]",
        ),
        (
            "case22",
            with_phase(1, prompt_token_ids=[3, 3]),
            "later phases start with [(750, (3,))], expected [(750, (3, 3))]",
        ),
        (
            "case22",
            with_expected(lambda e: e["reasoning"].update(text="no")),
            "reasoning '58867185591255702', expected 'no'",
        ),
        ("case22", with_grounding(end_idx=16), "grounding (Grounding(start=0, end=17,"),
        ("case22", with_grounding(points=[[0.5, 0.5]]), "grounding (Grounding(start=0, end=17,"),
        (
            "case22",
            with_expected(lambda e: e["reasoning"]["grounding"].clear()),
            "end=17, points=((0.4794921875, 0.4794921875), (",
        ),
        (
            "case22",
            with_expected(lambda e: e["phases"].pop(0)),
            "a reasoning nobody asked for",
        ),
        ("case22", with_tensor("last_step_logits", 0.5), "last_step_logits is off by up to 0.5"),
    ],
)
def test_a_difference_in_words_is_found_and_said(
    answered: Callable[[str], Answered], name: str, edit: Edit, reason: str
) -> None:
    one = answered(name)
    assert one.problems(one.case) == []
    problems = one.problems(edit(one.case))
    assert any(reason in problem for problem in problems), problems


@pytest.mark.parametrize("name", ["case12", "case17", "case22"])
def test_every_tensor_of_a_case_that_the_model_ended_is_compared(
    answered: Callable[[str], Answered], name: str
) -> None:
    inside = {"crop_mean", "vision_feats", "vision_feats_mean", "recon_samples", "pooled_rows"}
    one = answered(name)
    spoilt = {name: np.zeros(0, np.float32) for name in one.case.tensors}
    named = {problem.split()[0] for problem in one.problems(replace(one.case, tensors=spoilt))}
    assert named == one.case.tensors.keys() - inside


def test_a_wrong_end_of_the_context_is_said(answered: Callable[[str], Answered]) -> None:
    one = answered("case16")
    cut = replace(one.result, end_reason=EndReason.MAX_CONTEXT)
    problems = replace(one, result=cut).problems(one.case)
    assert problems == ["ended by max_context, expected max_tokens"]


def test_cases_are_questions_with_everything_that_was_asked() -> None:
    cases = {case.name: case for case in read_golden(golden_folder())}
    assert cases["case17"].request.spatial_refs == ((0.25, 0.5), (0.1, 0.2, 0.4, 0.9))
    assert cases["case22"].request.reasoning
    assert cases["case22"].request.max_tokens == 14
    assert cases["case18"].request.frame is None
    assert cases["case18"].question == "query 'where is the person' on no image"
    assert cases["case12"].request.prompt == "short"
    assert cases["case15"].request.frame is cases["case12"].request.frame


# --- outlines -----------------------------------------------------------------------------------


@pytest.fixture
def outlines(tmp_path: Path) -> Path:
    folder = golden_folder()
    shutil.copy(folder / "segment.json", tmp_path)
    shutil.copytree(folder / "segment", tmp_path / "segment")
    for path in tmp_path.rglob("*"):
        path.chmod(0o755)
    return tmp_path


def problems_of(outlines: Path, checkpoint: Checkpoint) -> dict[str, list[str]]:
    return dict(check_outlines(outlines, checkpoint.prompting))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("seg04", lambda c: c["path_tokens"].append("Z"), "pieces ['M', '100', '100', 'c',"),
        ("seg04", lambda c: c.update(path="M 0 0"), "expected 'M 0 0'"),
        ("seg04", lambda c: c["bbox"].update(x_min=0.2), "x_min is 0.197096186146, expected 0.2"),
        ("seg04", lambda c: c["bbox"].update(y_max=0.679541375), "y_max is 0.679541372293"),
        ("seg04", lambda c: c["polygons_unit"].pop(), "rings of [73, 4] points, expected [73]"),
        (
            "seg04",
            lambda c: c["polygons_unit"][1][0].__setitem__(0, 0.626),
            "ring 1 is off by up to 0.001",
        ),
        (
            "seg04",
            lambda c: c["mask"].update(file="segment/seg02.png"),
            "mask of shape (300, 400), expected (240, 320)",
        ),
        ("seg04", lambda c: c.update(parse_error=True), "parse error '', expected True"),
        ("seg06", lambda c: c.update(parse_error=False), 'negates nothing", expected False'),
        ("seg06", lambda c: c["stream"].pop(), "the end token did not end the answer"),
        ("seg06", lambda c: c["stream"].pop(0), "no box"),
        ("seg06", lambda c: c["stream"][0].update(bin=5), "x_min is 0.0"),
    ],
)
def test_a_difference_in_an_outline_is_found_and_said(
    outlines: Path,
    checkpoint: Checkpoint,
    name: str,
    change: Callable[[dict[str, Any]], object],
    reason: str,
) -> None:
    document = json.loads((outlines / "segment.json").read_text())
    change(next(case for case in document["cases"] if case["id"] == name))
    (outlines / "segment.json").write_text(json.dumps(document))
    problems = problems_of(outlines, checkpoint)
    assert any(reason in problem for problem in problems.pop(name))
    assert not any(problems.values())


def test_a_mask_that_differs_is_found(outlines: Path, checkpoint: Checkpoint) -> None:
    mask = outlines / "segment" / "seg04.png"
    Image.open(mask).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(mask)
    (problem,) = problems_of(outlines, checkpoint)["seg04"]
    assert problem.startswith("the masks overlap by 0.")


def test_a_folder_without_outlines_has_none(outlines: Path, checkpoint: Checkpoint) -> None:
    (outlines / "segment.json").unlink()
    assert problems_of(outlines, checkpoint) == {}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{}", "segment.json lacks something: KeyError 'cases'"),
        ("rubbish", "segment.json is not JSON"),
        ('{"cases": [{"id": "a"}]}', "segment.json lacks something: KeyError 'stream'"),
    ],
)
def test_damaged_outlines_are_one_clear_error(
    outlines: Path, checkpoint: Checkpoint, content: str, reason: str
) -> None:
    (outlines / "segment.json").write_text(content)
    with pytest.raises(InputError, match=reason):
        problems_of(outlines, checkpoint)
