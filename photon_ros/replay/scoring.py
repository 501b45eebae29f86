"""Boxes found against boxes labelled: precision, recall and F1 at IoU 0.5.

Matching is COCO's, by faster-coco-eval: detections of a frame and label in order of falling
score, each takes the free true box that it overlaps most, if by at least 0.5. A detection
whose best match is a crowd region is not judged. Boxes are clipped to the image first, on both
sides: what lies outside the picture cannot be seen.

Where nothing is asked for, nothing is undefined: without true boxes and without detections
precision, recall and F1 are 1; with only one of the two they are 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from faster_coco_eval import COCO, COCOeval_faster

from photon_ros.core.result import Detection
from photon_ros.replay.truth import Box, TrueBox, TruthImage, label_key

MIN_IOU: Final = 0.5


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over some frames and labels.

    Attributes:
        num_matched: detections that found a true box.
        num_ignored: detections in a crowd region, not judged.
    """

    num_truth: int = 0
    num_predicted: int = 0
    num_matched: int = 0
    num_ignored: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.num_truth + other.num_truth,
            self.num_predicted + other.num_predicted,
            self.num_matched + other.num_matched,
            self.num_ignored + other.num_ignored,
        )

    @property
    def num_false(self) -> int:
        """Detections that found nothing."""
        return self.num_predicted - self.num_ignored - self.num_matched

    @property
    def num_missed(self) -> int:
        """True boxes that nothing found."""
        return self.num_truth - self.num_matched

    @property
    def precision(self) -> float:
        """Share of the judged detections that are right."""
        judged = self.num_matched + self.num_false
        return self.num_matched / judged if judged else float(self.num_truth == 0)

    @property
    def recall(self) -> float:
        """Share of the true boxes that were found."""
        nothing_right = float(self.num_false == 0)
        return self.num_matched / self.num_truth if self.num_truth else nothing_right

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN)."""
        total = 2 * self.num_matched + self.num_false + self.num_missed
        return 2 * self.num_matched / total if total else 1.0

    def as_dict(self) -> dict[str, float | int]:
        """Return the figures under the names of the results document."""
        return {
            "f1_iou50": self.f1,
            "precision_iou50": self.precision,
            "recall_iou50": self.recall,
            "num_truth": self.num_truth,
            "num_predicted": self.num_predicted,
        }


@dataclass(frozen=True, slots=True)
class Score:
    """The tallies of an evaluation, by label and by frame."""

    by_label: Mapping[str, Tally]
    by_frame: Mapping[int, Tally]

    @property
    def total(self) -> Tally:
        """All labels together."""
        return sum(self.by_label.values(), Tally())


def score(
    truth: Mapping[int, TruthImage],
    found: Mapping[int, Sequence[Detection]],
    labels: Sequence[str],
) -> Score:
    """Score the detections of the labelled frames.

    Args:
        truth: labelled frames by index; boxes of other labels than ``labels`` do not count.
        found: detections by index; a labelled frame that is missing here found nothing.
        labels: the prompts that were asked.
    """
    frames = sorted(truth)
    pairs = [(frame, label) for frame in frames for label in labels]
    true = {(f, label): _labelled(truth[f].boxes, label) for f, label in pairs}
    predicted = {(f, label): _predicted(found.get(f, ()), label) for f, label in pairs}
    outcomes = _match(true, predicted)
    by_label = {label: Tally() for label in labels}
    by_frame = {frame: Tally() for frame in frames}
    for frame, label in pairs:
        matched, ignored = outcomes[frame, label]
        tally = Tally(
            num_truth=sum(not box.is_crowd for box in true[frame, label]),
            num_predicted=len(predicted[frame, label]),
            num_matched=matched,
            num_ignored=ignored,
        )
        by_label[label] += tally
        by_frame[frame] += tally
    return Score(by_label, by_frame)


_Key = tuple[int, str]


def _labelled(boxes: Iterable[TrueBox], label: str) -> list[TrueBox]:
    return [box for box in boxes if label_key(box.label) == label_key(label)]


def _predicted(detections: Iterable[Detection], label: str) -> list[Detection]:
    return [found for found in detections if label_key(found.label) == label_key(label)]


def _match(
    true: Mapping[_Key, Sequence[TrueBox]], predicted: Mapping[_Key, Sequence[Detection]]
) -> dict[_Key, tuple[int, int]]:
    """Return (matched, ignored) detections of every pair of frame and label.

    Each pair becomes one COCO image, so that nothing can match across frames or labels.
    """
    keys = list(true)
    annotations = [
        _annotation(image_id, box.box) | {"iscrowd": int(box.is_crowd)}
        for image_id, key in enumerate(keys, 1)
        for box in true[key]
    ]
    results = [
        _annotation(image_id, found.corners()) | {"score": _finite_score(found)}
        for image_id, key in enumerate(keys, 1)
        for found in predicted[key]
    ]
    if not annotations or not results:
        return dict.fromkeys(keys, (0, 0))
    for annotation_id, annotation in enumerate(annotations, 1):
        annotation["id"] = annotation_id
    matched, ignored = _coco_matches(len(keys), annotations, results)
    return {key: (matched.count(i), ignored.count(i)) for i, key in enumerate(keys, 1)}


def _coco_matches(
    num_images: int, annotations: list[dict[str, Any]], results: list[dict[str, Any]]
) -> tuple[list[int], list[int]]:
    """Return the image ids of matched detections, and of those matched to a crowd region."""
    dataset = {
        "images": [{"id": image_id} for image_id in range(1, num_images + 1)],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "object"}],
    }
    truth = COCO(dataset)
    evaluation = COCOeval_faster(
        truth, truth.loadRes(results), "bbox", print_function=lambda *_: None
    )
    evaluation.params.iouThrs = [MIN_IOU]
    evaluation.params.maxDets = [len(results)]
    evaluation.params.areaRng = [[0, math.inf]]
    evaluation.params.areaRngLbl = ["all"]
    evaluation.evaluate()
    evaluation.accumulate()
    pairs = [tuple(map(int, pair.split("_"))) for pair in evaluation.eval["matched"]]
    crowd = {item["id"] for item in annotations if item["iscrowd"]}
    image_of = {item["id"]: item["image_id"] for item in annotations}
    matched = [image_of[true_id] for _, true_id in pairs if true_id not in crowd]
    ignored = [image_of[true_id] for _, true_id in pairs if true_id in crowd]
    return matched, ignored


def _annotation(image_id: int, box: Box) -> dict[str, Any]:
    x_min, y_min, x_max, y_max = (min(max(value, 0.0), 1.0) for value in box)
    width, height = x_max - x_min, y_max - y_min
    return {
        "image_id": image_id,
        "category_id": 1,
        "bbox": [x_min, y_min, width, height],
        "area": width * height,
    }


def _finite_score(found: Detection) -> float:
    return found.score if math.isfinite(found.score) else 0.0
