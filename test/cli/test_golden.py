from __future__ import annotations

import copy
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_pictures import comparable
from safetensors.numpy import load_file, save_file

from photon_ros.cli.golden_check import check_answer, check_recording
from photon_ros.cli.golden_folder import GoldenCase, read_golden
from photon_ros.cli.golden_probe import Recording, RecordingModel
from photon_ros.core.result import Result
from photon_ros.models.moondream.checkpoint import Checkpoint, load_checkpoint
from photon_ros.photon import Photon

from .conftest import Cli

Edit = Callable[[Callable[[dict[str, Any], dict[str, Any]], None]], Path]


@pytest.fixture
def golden(shared: Path, tmp_path: Path) -> Path:
    return comparable(shared / "golden" / "moondream", tmp_path)


@pytest.fixture
def edited(golden: Path, tmp_path: Path) -> Edit:
    """Return a copy of the golden folder, of three cases, changed by a function."""

    def edit(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
        folder = tmp_path / "golden"
        shutil.copytree(golden, folder)
        for path in folder.rglob("*"):
            path.chmod(0o755)
        document = json.loads((folder / "golden.json").read_text())
        (folder / "segment.json").unlink()
        kept = ("case00", "case03", "case06")
        document["cases"] = [case for case in document["cases"] if case["id"] in kept]
        tensors = {k: np.array(v) for k, v in load_file(folder / "expected.safetensors").items()}
        change(document, tensors)
        (folder / "golden.json").write_text(json.dumps(document))
        save_file(tensors, folder / "expected.safetensors")
        return folder

    return edit


def case_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(case for case in document["cases"] if case["id"] == name)
    return found


@pytest.mark.parametrize("mode", [(), ("--blocking",), ("--batched",), ("--blocking", "--batched")])
def test_every_case_is_exact(cli: Cli, cli_here: Cli, golden: Path, mode: tuple[str, ...]) -> None:
    run = cli_here if mode else cli
    done = run("golden", golden, *mode)
    assert re.fullmatch(r"\d+ passed, 0 failed\n", done.stdout), done.stdout
    assert int(done.stdout.split()[0]) >= 12
    assert (done.returncode, done.stderr) == (0, "")


def one_more_object(document: dict[str, Any], tensors: dict[str, Any]) -> None:
    expected = case_of(document, "case06")["expected"]
    expected["objects"].append(copy.copy(expected["objects"][0]))
    expected["n"] += 1


def test_a_difference_is_one_line_that_names_the_case(cli_here: Cli, edited: Edit) -> None:
    done = cli_here("golden", edited(one_more_object))
    assert done.stdout.splitlines() == [
        "case06 (detect 'red box' on vga): 2 objects, expected 3",
        "2 passed, 1 failed",
    ]
    assert (done.returncode, done.stderr) == (1, "")


# --- every check can fail: one answer of the engine against altered expectations ----------------


@dataclass(frozen=True)
class Answered:
    case: GoldenCase
    result: Result
    recording: Recording
    checkpoint: Checkpoint

    def problems(self, case: GoldenCase) -> list[str]:
        model, num_objects = self.checkpoint.model, len(self.result.detections)
        return [
            *check_answer(case, self.result, self.checkpoint.prompting),
            *check_recording(case, self.recording, model, num_objects),
        ]


@pytest.fixture(scope="module")
def answered() -> Answered:
    """The detect case of two objects, as the engine answers it."""
    name = os.environ.get("PHOTON_SHARED")
    if not name:
        pytest.skip("PHOTON_SHARED does not name a folder with reference outputs")
    folder = Path(name) / "golden" / "moondream"
    case = next(case for case in read_golden(folder) if case.name == "case06")
    checkpoint = load_checkpoint(folder)
    probe: Any = RecordingModel(checkpoint.model)
    with Photon(replace(checkpoint, model=probe)) as photon:
        result = photon.submit(case.request).result()
    return Answered(case, result, probe.recordings[0], checkpoint)


def test_the_unaltered_case_has_no_problem(answered: Answered) -> None:
    assert answered.problems(answered.case) == []


def expecting(**change: Any) -> Callable[[GoldenCase], GoldenCase]:
    return lambda case: replace(case, expected=dict(case.expected) | change)


def with_step(kind: str, **change: Any) -> Callable[[GoldenCase], GoldenCase]:
    """Change the first step of a kind."""

    def edit(case: GoldenCase) -> GoldenCase:
        steps = copy.deepcopy(case.expected["steps"])
        next(step for step in steps if step["kind"] == kind).update(change)
        return expecting(steps=steps)(case)

    return edit


def with_object(number: int, **change: Any) -> Callable[[GoldenCase], GoldenCase]:
    def edit(case: GoldenCase) -> GoldenCase:
        objects = copy.deepcopy(case.expected["objects"])
        objects[number].update(change)
        return expecting(objects=objects)(case)

    return edit


def with_facts(**change: Any) -> Callable[[GoldenCase], GoldenCase]:
    return lambda case: replace(case, facts=dict(case.facts) | change)


def with_tensor(name: str, by: float) -> Callable[[GoldenCase], GoldenCase]:
    """Change the last value of a tensor."""

    def edit(case: GoldenCase) -> GoldenCase:
        tensor = np.array(case.tensors[name])
        tensor.flat[-1] += by
        return replace(case, tensors=dict(case.tensors) | {name: tensor})

    return edit


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (expecting(n=3), "2 objects, expected 3"),
        (expecting(ended_by="max_objects"), "ended by eos, expected max_objects"),
        (
            with_step("x", bin=499),
            "bins differ from number 0 on: [498, 485, 878, 1004], expected [499, 485, 878, 1004]",
        ),
        (with_step("y", bin=484), "bins differ from number 1"),
        (with_step("size", w_bin=877), "bins differ from number 2"),
        (with_step("size", h_bin=1003), "bins differ from number 3"),
        (with_object(1, x_min=0.7775297), "object 1: x_min is 0.7775277, expected 0.7775297"),
        (with_object(0, y_max=0.9132375), "object 0: y_max is"),
        (
            lambda case: replace(case, prompt_ids=(*case.prompt_ids, 9)),
            "1321, 1326, 3, 9)",
        ),
        (
            with_step("boundary", logit_eos=0.0),
            "end and object logits of boundary 0 is off by up to 0.787",
        ),
        (with_tensor("prompt_hidden_last", 0.1), "prompt_hidden_last is off by up to 0.1"),
        (with_tensor("prompt_logits", 0.5), "prompt_logits is off by up to 0.5"),
        (with_tensor("x_logits_first", 0.5), "x_logits_first is off"),
        (with_tensor("y_logits_first", 0.5), "y_logits_first is off"),
        (with_tensor("size_logits_first", 0.5), "size_logits_first is off"),
        (with_tensor("fed_embeds", 0.1), "fed_embeds is off"),
        (with_tensor("step_hidden", 0.1), "step_hidden is off"),
        (with_tensor("last_step_hidden", 0.1), "last_step_hidden is off"),
        (with_tensor("image_embeds_rows", 0.1), "image_embeds_rows is off"),
        (with_tensor("image_embeds_mean", 0.1), "image_embeds_mean is off"),
        (with_tensor("prefix_hidden_rows", 0.1), "prefix_hidden_rows is off"),
        (with_tensor("prompt_hidden_last", float("nan")), "prompt_hidden_last is off"),
        (
            lambda case: replace(case, tensors={"prompt_logits": np.zeros(7, np.float32)}),
            "prompt_logits has shape (1408,), expected (7,)",
        ),
        (with_facts(tiling=[1, 1]), "tiling (2, 4), expected (1, 1)"),
        (with_facts(crops_sha256_pil="0" * 64), "the crops' pixels differ"),
    ],
)
def test_a_difference_is_found_and_said(
    answered: Answered, edit: Callable[[GoldenCase], GoldenCase], reason: str
) -> None:
    problems = answered.problems(edit(answered.case))
    assert any(reason in problem for problem in problems), problems


def test_a_difference_within_the_tolerances_is_none(answered: Answered) -> None:
    case = with_tensor("prompt_hidden_last", 1e-3)(answered.case)
    x_min = case.expected["objects"][0]["x_min"]
    assert answered.problems(with_object(0, x_min=x_min + 5e-7)(case)) == []


def test_every_tensor_of_the_case_is_compared(answered: Answered) -> None:
    """All but those inside the vision encoder, which the engine never sees."""
    inside = {"crop_mean", "vision_feats", "vision_feats_mean", "recon_samples", "pooled_rows"}
    spoilt = {name: np.zeros(0, np.float32) for name in answered.case.tensors}
    problems = answered.problems(replace(answered.case, tensors=spoilt))
    named = {problem.split()[0] for problem in problems}
    assert named == answered.case.tensors.keys() - inside


# --- folders ------------------------------------------------------------------------------------


def test_a_prompt_that_the_model_refuses_fails_its_case_only(cli_here: Cli, edited: Edit) -> None:
    folder = edited(lambda d, t: case_of(d, "case06").update(object="  "))
    for mode in ((), ("--batched",)):
        done = cli_here("golden", folder, *mode)
        line, count = done.stdout.splitlines()
        assert line.startswith("case06 (detect '  ' on vga): PromptError: ")
        assert (count, done.returncode) == ("2 passed, 1 failed", 1)


def test_answers_are_compared_where_there_are_no_tensors(cli_here: Cli, edited: Edit) -> None:
    folder = edited(one_more_object)
    (folder / "expected.safetensors").unlink()
    done = cli_here("golden", folder)
    assert done.stdout.splitlines()[-1] == "2 passed, 1 failed"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("expected.safetensors", b"rubbish", "expected.safetensors cannot be read"),
        ("images/vga.png", b"", "vga.png is empty"),
        ("model.safetensors", b"rubbish", "model.safetensors"),
        ("tokenizer.json", b"{}", "tokenizer.json"),
    ],
)
def test_a_damaged_folder_is_one_clear_line(
    cli_here: Cli, edited: Edit, name: str, content: bytes, reason: str
) -> None:
    folder = edited(lambda d, t: None)
    (folder / name).write_bytes(content)
    done = cli_here("golden", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr
