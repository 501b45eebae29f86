"""What was found in the labelled frames as COCO results, and the average precision of it.

The results are a list of {"image_id", "category_id", "bbox": [x, y, width, height], "score"}
with the ids of the truth file and boxes in pixels, clipped to the image: what pycocotools and
faster-coco-eval load beside that file. The figures here are those that they print for the two:
101 recall levels, at most 100 detections an image, all areas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

from photon_ros.core.result import Detection
from photon_ros.replay.truth import Box, TruthImage, label_key

_ALL_AREAS: Final = [[0, 1e10]]


@dataclass(frozen=True, slots=True)
class AveragePrecision:
    """Mean precision over all recall levels; None where there is nothing to find.

    Attributes:
        iou50: at IoU 0.5.
        iou50_95: mean over IoU 0.5, 0.55, ... 0.95.
    """

    iou50: float | None = None
    iou50_95: float | None = None

    def as_dict(self) -> dict[str, float | None]:
        """Return the figures under the names of the results document."""
        return {"ap_iou50": self.iou50, "ap_iou50_95": self.iou50_95}


def coco_results(
    truth: Mapping[int, TruthImage],
    found: Mapping[int, Sequence[Detection]],
    category_ids: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return the detections in the labelled frames.

    Args:
        truth: labelled frames by index.
        found: detections by index.
        category_ids: the truth file's id of each prompt.
    """
    ids = {label_key(label): category_id for label, category_id in category_ids.items()}
    return [
        {
            "image_id": image.image_id,
            "category_id": ids[label_key(detection.label)],
            "bbox": _bbox(_clipped(detection.corners()), image),
            "score": detection.score if math.isfinite(detection.score) else 0.0,
        }
        for index, image in sorted(truth.items())
        for detection in found.get(index, ())
        if label_key(detection.label) in ids
    ]


def average_precisions(
    truth: Mapping[int, TruthImage],
    results: Sequence[dict[str, Any]],
    category_ids: Mapping[str, int],
) -> dict[str, AveragePrecision]:
    """Return the average precision of each prompt.

    Args:
        truth: labelled frames by index, their image ids all different.
        results: what :func:`coco_results` returned for them.
        category_ids: the truth file's id of each prompt.
    """
    dataset = _dataset(truth, category_ids)
    with_truth = {annotation["category_id"] for annotation in dataset["annotations"]}
    if not with_truth:
        return dict.fromkeys(category_ids, AveragePrecision())
    if not results:
        zero = AveragePrecision(0.0, 0.0)
        return {
            label: zero if category_id in with_truth else AveragePrecision()
            for label, category_id in category_ids.items()
        }
    # (IoU thresholds, recall levels, categories by rising id, areas, numbers of detections)
    precision = _precision(dataset, [dict(result) for result in results])
    places = {category_id: k for k, category_id in enumerate(sorted(category_ids.values()))}
    return {
        label: _average(precision[:, :, places[category_id], 0, -1])
        for label, category_id in category_ids.items()
    }


def mean_of(precisions: Mapping[str, AveragePrecision]) -> AveragePrecision:
    """Return the mean over the prompts for which there is something to find (COCO's mAP)."""
    return AveragePrecision(
        _mean([found.iou50 for found in precisions.values()]),
        _mean([found.iou50_95 for found in precisions.values()]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def _average(precision: Any) -> AveragePrecision:
    if (precision < 0).all():  # -1: there is nothing to find
        return AveragePrecision()
    return AveragePrecision(float(precision[0].mean()), float(precision.mean()))


def _precision(dataset: dict[str, Any], results: list[dict[str, Any]]) -> Any:
    coco = COCO(dataset)
    evaluation = COCOeval_faster(coco, coco.loadRes(results), "bbox", print_function=_silent)
    evaluation.params.areaRng = _ALL_AREAS
    evaluation.params.areaRngLbl = ["all"]
    evaluation.evaluate()
    evaluation.accumulate()
    return np.asarray(evaluation.eval["precision"]).reshape(evaluation.eval["counts"])


def _silent(*_: object) -> None:
    """Print nothing."""


def _dataset(truth: Mapping[int, TruthImage], category_ids: Mapping[str, int]) -> dict[str, Any]:
    ids = {label_key(label): category_id for label, category_id in category_ids.items()}
    annotations: list[dict[str, Any]] = []
    for image in truth.values():
        for box in image.boxes:
            if label_key(box.label) not in ids:
                continue
            bbox = _bbox(box.box, image)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image.image_id,
                    "category_id": ids[label_key(box.label)],
                    "bbox": bbox,
                    "area": bbox[2] * bbox[3],
                    "iscrowd": int(box.is_crowd),
                }
            )
    return {
        "images": [
            {"id": image.image_id, "width": image.width_px, "height": image.height_px}
            for image in truth.values()
        ],
        "annotations": annotations,
        "categories": [{"id": number, "name": label} for label, number in category_ids.items()],
    }


def _clipped(box: Box) -> Box:
    x_min, y_min, x_max, y_max = (min(max(value, 0.0), 1.0) for value in box)
    return x_min, y_min, x_max, y_max


def _bbox(box: Box, image: TruthImage) -> list[float]:
    """Return [x, y, width, height] in pixels."""
    x_min, y_min, x_max, y_max = box
    return [
        x_min * image.width_px,
        y_min * image.height_px,
        (x_max - x_min) * image.width_px,
        (y_max - y_min) * image.height_px,
    ]
