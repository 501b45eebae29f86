from __future__ import annotations

import math
import random

import pytest
from faster_coco_eval import COCO, COCOeval_faster

from photon_ros.core.result import Detection, DetectionKind
from photon_ros.replay.coco import AveragePrecision, average_precisions, coco_results, mean_of
from photon_ros.replay.truth import TrueBox, TruthImage

IDS = {"person": 7, "cone": 2}


def image_of(*boxes: TrueBox, image_id: int = 1) -> TruthImage:
    return TruthImage("/cam", image_id, 200, 100, boxes, image_id)


def box(label: str, x: float, y: float, width: float, height: float, score: float) -> Detection:
    return Detection(DetectionKind.BOX, label, x + width / 2, y + height / 2, width, height, score)


def test_results_have_the_ids_of_the_truth_file_and_pixels_within_the_image() -> None:
    truth = {4: image_of(image_id=40), 9: image_of(image_id=90)}
    found = {
        4: [box("Person", 0.5, 0.5, 0.25, 0.5, 0.75)],
        9: [box("cone", -0.5, 0.25, 1.0, 9.0, math.nan), box("dog", 0, 0, 1, 1, 1)],
        5: [box("cone", 0, 0, 1, 1, 1)],
    }
    assert coco_results(truth, found, IDS) == [
        {"image_id": 40, "category_id": 7, "bbox": [100, 50, 50, 50], "score": 0.75},
        {"image_id": 90, "category_id": 2, "bbox": [0, 25, 100, 75], "score": 0.0},
    ]


def test_a_wrong_detection_costs_precision_only_from_its_score_on() -> None:
    truth = {0: image_of(TrueBox("person", (0, 0, 0.5, 0.5)))}
    right, wrong = box("person", 0, 0, 0.5, 0.5, 0.5), box("person", 0.6, 0.6, 0.3, 0.3, 0.4)
    for score, wanted in ((0.4, 1.0), (0.9, 0.5)):
        worse = box("person", wrong.x - 0.15, wrong.y - 0.15, 0.3, 0.3, score)
        results = coco_results(truth, {0: [right, worse]}, IDS)
        found = average_precisions(truth, results, IDS)
        assert found["person"].iou50 == pytest.approx(wanted)
        assert found["cone"] == AveragePrecision()


def test_a_box_of_iou_062_counts_at_three_of_ten_thresholds() -> None:
    truth = {0: image_of(TrueBox("person", (0, 0, 0.62, 1)))}
    results = coco_results(truth, {0: [box("person", 0, 0, 1, 1, 0.5)]}, IDS)
    found = average_precisions(truth, results, IDS)["person"]
    assert found.iou50 == pytest.approx(1.0)
    assert found.iou50_95 == pytest.approx(0.3)


def test_where_there_is_nothing_to_find_there_is_no_figure() -> None:
    nothing = dict.fromkeys(IDS, AveragePrecision())
    assert average_precisions({}, [], {}) == {}
    assert average_precisions({0: image_of()}, [], IDS) == nothing
    results = coco_results({0: image_of()}, {0: [box("person", 0, 0, 1, 1, 1)]}, IDS)
    assert average_precisions({0: image_of()}, results, IDS) == nothing
    assert mean_of(nothing) == AveragePrecision()


def test_where_nothing_was_found_the_figure_is_zero() -> None:
    truth = {0: image_of(TrueBox("person", (0, 0, 0.5, 0.5)))}
    found = average_precisions(truth, [], IDS)
    assert found == {"person": AveragePrecision(0.0, 0.0), "cone": AveragePrecision()}
    assert mean_of(found) == AveragePrecision(0.0, 0.0)


def test_a_crowd_region_judges_nothing() -> None:
    crowd = TrueBox("person", (0.5, 0.0, 1.0, 1.0), is_crowd=True)
    truth = {0: image_of(TrueBox("person", (0, 0, 0.4, 0.5)), crowd)}
    among = [box("person", 0.6, 0.1 * k, 0.1, 0.1, 0.9) for k in range(5)]
    results = coco_results(truth, {0: [box("person", 0, 0, 0.4, 0.5, 0.1), *among]}, IDS)
    assert average_precisions(truth, results, IDS)["person"].iou50 == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_figures_are_those_of_the_evaluators_own_summary(seed: int) -> None:
    """On scenes of chance, through its public summary and not its arrays."""
    chance = random.Random(seed)
    truth, found = {}, {}
    annotations = []
    for index in range(30):
        boxes = []
        for _ in range(chance.randrange(5)):
            label, x, y = chance.choice(list(IDS)), chance.random() / 2, chance.random() / 2
            boxes.append(TrueBox(label, (x, y, x + 0.3, y + 0.4)))
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": index + 1,
                    "category_id": IDS[label],
                    "bbox": [x * 200, y * 100, 60, 40],
                    "area": 2400,
                    "iscrowd": 0,
                }
            )
        truth[index] = image_of(*boxes, image_id=index + 1)
        found[index] = [
            box(true.label, true.box[0] + chance.gauss(0, 0.05), true.box[1], 0.3, 0.4,
                chance.random())
            for true in boxes
            if chance.random() < 0.8
        ] + [box("cone", 0.1, 0.1, 0.2, 0.2, chance.random())]  # fmt: skip
    results = coco_results(truth, found, IDS)
    coco = COCO(
        {
            "images": [{"id": index + 1, "width": 200, "height": 100} for index in truth],
            "annotations": annotations,
            "categories": [{"id": number, "name": name} for name, number in IDS.items()],
        }
    )
    check = COCOeval_faster(
        coco, coco.loadRes([dict(one) for one in results]), "bbox", print_function=lambda *_: None
    )
    check.run()
    mean = mean_of(average_precisions(truth, results, IDS))
    assert mean.iou50 == pytest.approx(check.stats_as_dict["AP_50"])
    assert mean.iou50_95 == pytest.approx(check.stats_as_dict["AP_all"])
    assert 0 < check.stats_as_dict["AP_all"] < check.stats_as_dict["AP_50"] < 1
