"""Measure nano on held-out rendered scenes and, if given, on labelled frames of the film.

``python -m training.evaluate [--weights DIR] [--clip vtest.avi --labels person_coco.json]``

The scenes are rendered from a seed that training never uses; a table is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from photon_ros.core.errors import InputError
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.models.nano.checkpoint import WEIGHTS, load_nano
from photon_ros.models.nano.vocabulary import CLASSES, COLOURS
from training.answering import Asker, Found
from training.clip import read_frames
from training.cutting import CROP_PX, Sample
from training.cutting import cut as cut_scene
from training.measures import OutlineTally, Tally, count_boxes, count_points, mask_iou
from training.pool import Mix, Renderer
from training.questions import Question, Shares, ask
from training.scene import Scene

HELD_OUT_SEED = 9001
# Side of an object in pixels of the global crop, as the square root of its area.
SIZE_BOUNDS_PX = (16.0, 32.0)
# Questions of the same kinds, however often training asks them.
_BOXES_AND_POINTS = Shares(segment=0.0, absent=0.27, swapped=0.5, lookalike=0.0)
_OUTLINES = Shares(segment=1.0, absent=0.27, swapped=0.5, lookalike=0.0)
_CLIP_FPS = 10.0
_CLIP_START_NS = 1_000_000_000


@dataclass(slots=True)
class RenderedFigures:
    """What is measured on rendered scenes."""

    detect: Tally = field(default_factory=Tally)
    point: Tally = field(default_factory=Tally)
    num_absent: int = 0
    num_false_alarms: int = 0
    recall_by_size: list[Tally] = field(default_factory=lambda: [Tally(), Tally(), Tally()])
    outlines: OutlineTally = field(default_factory=OutlineTally)


def asker_for(checkpoint: Checkpoint, crops: torch.Tensor, tiling: tuple[int, int]) -> Asker:
    """Return the picture ``crops`` (N, crop, crop, 3) uint8, encoded."""
    prefix = checkpoint.model.encode_frames([crops], [tiling])[0]
    return Asker(checkpoint.model, checkpoint.prompting, prefix)


@torch.no_grad()
def evaluate_rendered(
    checkpoint: Checkpoint, num_scenes: int, *, tiled: bool, seed: int = HELD_OUT_SEED
) -> RenderedFigures:
    """Ask about ``num_scenes`` scenes rendered from ``seed``, with or without tiles.

    Outlines are asked for only of a model that has the skill.
    """
    mix = Mix(0, 1, 0, 0) if tiled else Mix(1, 0, 0, 0)
    renderer = Renderer(seed, mix, clip=None)
    figures = RenderedFigures()
    for index in range(num_scenes):
        scene, tiling, is_real = renderer.scene(index)
        sample = cut_scene(scene, tiling, is_real)
        rng = np.random.default_rng([seed, 3, index])
        questions = ask(sample, rng, max_questions=6, max_tokens=200, shares=_BOXES_AND_POINTS)
        crops = checkpoint.cut(scene.image, None if tiled else 0)
        asker = asker_for(checkpoint, torch.from_numpy(crops.pixels), crops.tiling)
        if "segment" in checkpoint.prompting.templates:
            rng = np.random.default_rng([seed, 4, index])
            outlines = ask(sample, rng, max_questions=6, max_tokens=300, shares=_OUTLINES)
            _count_outlines(figures.outlines, scene, asker, outlines)
        for skill in ("detect", "point"):
            asked = [question for question in questions if question.skill == skill]
            answers = asker.ask(skill, [question.prompt for question in asked])
            for question, found in zip(asked, answers, strict=True):
                _count(figures, sample, question, found)
    return figures


def _count(
    figures: RenderedFigures, sample: Sample, question: Question, found: list[Found]
) -> None:
    truth = sample.boxes[list(question.answer)]
    if not question.answer:
        figures.num_absent += 1
        figures.num_false_alarms += bool(found)
    if question.skill == "point":
        count_points(figures.point, found, truth)
        return
    hits = count_boxes(figures.detect, found, truth)
    sides = CROP_PX * np.sqrt((truth[:, 2] - truth[:, 0]) * (truth[:, 3] - truth[:, 1]))
    for j, size in enumerate(np.searchsorted(SIZE_BOUNDS_PX, sides)):
        figures.recall_by_size[int(size)].add(int(j in hits), 0, 1)


def _count_outlines(
    tally: OutlineTally, scene: Scene, asker: Asker, questions: list[Question]
) -> None:
    """Ask for outlines, with a point and without: their prompts are of different length."""
    for has_point in (True, False):
        asked = [question for question in questions if (question.point is not None) == has_point]
        points = [question.point for question in asked if question.point is not None]
        prompts = [question.prompt for question in asked]
        answers = asker.segment(prompts, points if has_point else None)
        for question, found in zip(asked, answers, strict=True):
            if not question.answer:
                tally.num_absent += 1
                tally.num_false_alarms += found is not None
                continue
            truth = scene.objects[question.answer[0]]
            overlap = mask_iou(found.ring, truth, scene.ids.shape) if found else 0.0
            (tally.with_point if has_point else tally.without_point).append(overlap)


def labelled_frames(labels: Path) -> list[tuple[int, NDArray[np.float32]]]:
    """Return (number of the frame from 1, boxes (N, 4) normalised) of each labelled frame.

    ``labels`` is COCO JSON of people; the stamps are those of a bag at 10 Hz from 1 s.
    """
    document: dict[str, Any] = json.loads(labels.read_text(encoding="utf-8"))
    frames = []
    for image in document["images"]:
        number = 1 + round((image["stamp_ns"] - _CLIP_START_NS) / 1e9 * _CLIP_FPS)
        boxes = [a["bbox"] for a in document["annotations"] if a["image_id"] == image["id"]]
        truth = np.array(boxes, np.float32).reshape(-1, 4)
        truth[:, 2:] += truth[:, :2]
        truth /= np.array([image["width"], image["height"]] * 2, np.float32)
        frames.append((number, truth))
    return frames


@dataclass(slots=True)
class ClipFigures:
    """What is measured on the film: people, and things that are not there."""

    person: Tally = field(default_factory=Tally)
    by_frame: list[tuple[int, Tally]] = field(default_factory=list)
    num_absent: int = 0
    num_false_alarms: int = 0


@torch.no_grad()
def evaluate_clip(
    checkpoint: Checkpoint, clip: Path, labels: Path, max_crops: int | None = None
) -> ClipFigures:
    """Ask for people, and for every coloured thing, on the labelled frames.

    Args:
        checkpoint: the model.
        clip: the film.
        labels: COCO JSON of people; the stamps are those of a bag at 10 Hz from 1 s.
        max_crops: budget of local crops; None takes the model's own.
    """
    figures = ClipFigures()
    # The traffic cones are really there.
    others = [f"{c} {k}" for c in COLOURS for k in CLASSES if k not in ("person", "cone")]
    for number, truth in labelled_frames(labels):
        frame = read_frames(clip, number, number, 1)[0]
        crops = checkpoint.cut(frame, max_crops)
        asker = asker_for(checkpoint, torch.from_numpy(crops.pixels), crops.tiling)
        tally = Tally()
        for target in (tally, figures.person):
            count_boxes(target, asker.ask("detect", ["person"])[0], truth)
        figures.by_frame.append((number, tally))
        answers = asker.ask("detect", others, max_objects=1)
        figures.num_absent += len(others)
        figures.num_false_alarms += sum(bool(answer) for answer in answers)
    return figures


def _print_rendered(name: str, figures: RenderedFigures) -> None:
    detect, point = figures.detect, figures.point
    small, middle, large = (tally.recall for tally in figures.recall_by_size)
    print(f"{name}")
    print(
        f"  detect F1@0.5 {detect.f1:.3f} (precision {detect.precision:.3f}, recall "
        f"{detect.recall:.3f}, IoU of matches {detect.mean_iou:.3f}; {detect.num_truth} objects)"
    )
    print(
        f"  recall by size: under 16 px {small:.3f}, 16 to 32 px {middle:.3f}, "
        f"larger {large:.3f} (of a 192 px global crop)"
    )
    print(f"  point in object: precision {point.precision:.3f}, recall {point.recall:.3f}")
    share = figures.num_false_alarms / max(1, figures.num_absent)
    print(f"  false alarms on absent prompts {100 * share:.1f} % of {figures.num_absent}")
    _print_outlines(figures.outlines)


def _print_outlines(tally: OutlineTally) -> None:
    num = len(tally.with_point) + len(tally.without_point)
    if not num:
        print("  segment: not a skill of these weights")
        return
    share = tally.num_false_alarms / max(1, tally.num_absent)
    print(
        f"  segment mask IoU {_mean(tally.with_point):.3f} with a point on the object, "
        f"{_mean(tally.without_point):.3f} without ({num} objects, nothing found counts as 0); "
        f"false alarms {100 * share:.1f} % of {tally.num_absent}"
    )


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _print_clip(name: str, figures: ClipFigures) -> None:
    person = figures.person
    print(
        f"{name}\n  person F1@0.5 {person.f1:.3f} (precision {person.precision:.3f}, "
        f"recall {person.recall:.3f}, IoU of matches {person.mean_iou:.3f}; "
        f"{person.num_truth} people)"
    )
    frames = ", ".join(f"{number}: {tally.f1:.2f}" for number, tally in figures.by_frame)
    print(f"  F1 by frame: {frames}")
    share = figures.num_false_alarms / max(1, figures.num_absent)
    print(
        f"  false alarms on things that are not there {100 * share:.1f} % of {figures.num_absent}"
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="folder of the model")
    parser.add_argument("--scenes", type=int, default=300, help="scenes looked at as a whole")
    parser.add_argument("--tiled-scenes", type=int, default=100, help="scenes looked at in tiles")
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED, help="seed of the scenes")
    parser.add_argument("--clip", type=Path, help="the film, OpenCV's vtest.avi")
    parser.add_argument("--labels", type=Path, help="COCO JSON of the people in it")
    parser.add_argument("--threads", type=int, default=1, help="processor threads to use")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    try:
        if (arguments.clip is None) != (arguments.labels is None):
            raise InputError("--clip and --labels go together")
        checkpoint = load_nano(folder=arguments.weights)
        for name, num, tiled in (
            ("rendered scenes, global crop only", arguments.scenes, False),
            ("rendered scenes, with tiles", arguments.tiled_scenes, True),
        ):
            if num > 0:
                figures = evaluate_rendered(checkpoint, num, tiled=tiled, seed=arguments.seed)
                _print_rendered(f"{num} {name}, seed {arguments.seed}", figures)
        if arguments.clip is not None:
            _print_clip("film", evaluate_clip(checkpoint, arguments.clip, arguments.labels))
    except InputError as error:
        print(f"evaluate: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
