"""The evaluation: its table, its film, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.models.nano import load_nano
from training import evaluate
from training.answering import Asker, Found
from training.architecture import CONFIG
from training.evaluate import evaluate_clip, evaluate_rendered
from training.export import export
from training.network import Network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = Network(CONFIG)
    with torch.no_grad():
        network.text.lm_head.weight.zero_()
        network.text.lm_head.bias[CONFIG.tokenizer.eos_id] = 5.0  # never finds anything
    path = tmp_path_factory.mktemp("weights")
    export(network, path)
    return path


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Checkpoint:
    return load_nano(folder=folder)


def test_a_model_that_finds_nothing_scores_nothing(checkpoint: Checkpoint) -> None:
    figures = evaluate_rendered(checkpoint, 6, tiled=False)
    assert figures.detect.num_truth + figures.point.num_truth > 0
    assert figures.detect.f1 == figures.point.f1 == 0
    assert figures.num_absent > 0
    assert figures.num_false_alarms == figures.outlines.num_false_alarms == 0
    assert set(figures.outlines.with_point) == set(figures.outlines.without_point) == {0.0}
    by_size = sum(tally.num_truth for tally in figures.recall_by_size)
    assert by_size == figures.detect.num_truth


def test_a_model_that_knows_the_truth_scores_all(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An asker that answers from the truth: the counting itself loses nothing."""
    answers: dict[tuple[object, ...], list[Found]] = {}
    real_ask = evaluate.ask

    def ask_and_note(sample, rng, **limits):
        questions = real_ask(sample, rng, **limits)
        for question in questions:
            answers[question.skill, question.prompt, question.point] = [
                Found(
                    (b[0] + b[2]) / 2, (b[1] + b[3]) / 2, b[2] - b[0], b[3] - b[1], 1.0,
                    tuple((b[:2] + corners * (b[2:] - b[:2])).tolist()),
                )
                for b, corners in zip(
                    sample.boxes[list(question.answer)],
                    sample.corners[list(question.answer)],
                    strict=True,
                )
            ]  # fmt: skip
        return questions

    def segment(self, prompts, points=None):
        found = [
            answers["segment", prompt, point]
            for prompt, point in zip(prompts, points or [None] * len(prompts), strict=True)
        ]
        return [things[0] if things else None for things in found]

    monkeypatch.setattr(evaluate, "ask", ask_and_note)
    monkeypatch.setattr(
        Asker, "ask", lambda self, skill, prompts: [answers[skill, p, None] for p in prompts]
    )
    monkeypatch.setattr(Asker, "segment", segment)
    figures = evaluate_rendered(checkpoint, 8, tiled=False)
    assert figures.detect.f1 == 1
    assert figures.detect.mean_iou == pytest.approx(1, abs=1e-4)
    assert figures.point.recall >= 0.9  # two centres may lie in each other's box
    assert figures.num_false_alarms == 0
    assert all(tally.num_right == tally.num_truth for tally in figures.recall_by_size)
    outlines = figures.outlines
    assert outlines.num_false_alarms == 0 < outlines.num_absent
    assert len(outlines.with_point) > 5
    assert len(outlines.without_point) > 5
    overlaps = outlines.with_point + outlines.without_point
    assert min(overlaps) > 0.5
    assert 0.88 < sum(overlaps) / len(overlaps) < 1, "sixteen corners lose a little"


def test_labels_of_a_film_are_found_by_their_stamps(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(film), cv2.VideoWriter_fourcc(*"MJPG"), 10, (320, 240))
    for number in range(1, 13):
        writer.write(np.full((240, 320, 3), 20 * number, np.uint8))
    writer.release()
    labels = tmp_path / "labels.json"
    document = {
        "images": [
            {"id": 1, "stamp_ns": 1_000_000_000, "width": 320, "height": 240},
            {"id": 2, "stamp_ns": 1_900_000_000, "width": 320, "height": 240},
        ],
        "annotations": [
            {"id": 1, "image_id": 2, "category_id": 1, "bbox": [32, 24, 64, 48]},
        ],
        "categories": [{"id": 1, "name": "person"}],
    }
    labels.write_text(json.dumps(document))
    seen: list[int] = []
    real_cut = Checkpoint.cut

    def cut_and_note(checkpoint, frame, max_crops):
        seen.append(round(float(frame.mean()) / 20))
        return real_cut(checkpoint, frame, max_crops)

    monkeypatch.setattr(Checkpoint, "cut", cut_and_note)
    figures = evaluate_clip(checkpoint, film, labels, max_crops=0)
    assert seen == [1, 10], "frames counted from one, a tenth of a second apart"
    assert [number for number, _ in figures.by_frame] == [1, 10]
    assert figures.person.num_truth == 1
    assert figures.num_absent == 2 * 8 * 9


def test_the_command_prints_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--weights", str(folder), "--scenes", "2", "--tiled-scenes", "1"]
    assert evaluate.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "2 rendered scenes, global crop only, seed 9001" in printed
    assert "1 rendered scenes, with tiles" in printed
    figures = ("detect F1@0.5", "recall by size", "point in object", "false alarms on absent")
    for figure in (*figures, "segment mask IoU 0.000 with a point on the object, 0.000 without"):
        assert printed.count(figure) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--clip", "film.avi"], "--clip and --labels go together"),
        (["--weights", "nowhere"], "nowhere"),
    ],
)
def test_bad_arguments_are_one_clear_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("evaluate: ")
    assert message in error
    assert error.count("\n") == 1
