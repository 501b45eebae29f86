"""Figures on cases small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from training.answering import Found
from training.measures import (
    Tally,
    count_boxes,
    count_points,
    iou,
    mask_iou,
    matched_boxes,
    matched_points,
)
from training.scene import SceneObject


def found_box(x_min: float, y_min: float, x_max: float, y_max: float) -> Found:
    centre = (x_min + x_max) / 2, (y_min + y_max) / 2
    return Found(*centre, x_max - x_min, y_max - y_min, 1.0)


def truth(*boxes: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(boxes, np.float32).reshape(-1, 4)


def test_overlap() -> None:
    assert iou((0, 0, 1, 1), (0, 0, 1, 1)) == 1
    assert iou((0, 0, 1, 1), (0.5, 0, 1.5, 1)) == pytest.approx(1 / 3)
    assert iou((0, 0, 1, 1), (1, 0, 2, 1)) == 0
    assert iou((0, 0, 1, 1), (5, 5, 6, 6)) == 0


def test_the_best_pairs_are_matched_first_and_each_only_once() -> None:
    found = [found_box(0, 0, 1, 1), found_box(0.1, 0, 1.1, 1)]
    assert [(i, j) for i, j, _ in matched_boxes(found, [(0.1, 0, 1.1, 1)])] == [(1, 0)]


def test_a_duplicate_counts_against_precision() -> None:
    tally = Tally()
    hits = count_boxes(tally, [found_box(0, 0, 1, 1)] * 2, truth((0, 0, 1, 1), (2, 2, 3, 3)))
    assert hits == [0]
    assert (tally.precision, tally.recall, tally.f1) == (0.5, 0.5, 0.5)
    assert tally.mean_iou == 1


def test_a_false_alarm_on_an_absent_thing_counts() -> None:
    tally = Tally()
    count_boxes(tally, [found_box(0, 0, 1, 1)], truth())
    assert (tally.num_found, tally.num_truth, tally.f1) == (1, 0, 0)


def test_nothing_to_find_and_nothing_found_changes_nothing() -> None:
    tally = Tally()
    count_boxes(tally, [], truth())
    assert (tally.precision, tally.recall, tally.f1, tally.mean_iou) == (0, 0, 0, 0)


def test_each_box_takes_one_point() -> None:
    points = [Found(0.5, 0.5, 0, 0, 1.0), Found(0.6, 0.5, 0, 0, 1.0), Found(3, 3, 0, 0, 1.0)]
    assert matched_points(points, [(0, 0, 1, 1)]) == [(0, 0)]
    tally = Tally()
    count_points(tally, points, truth((0, 0, 1, 1)))
    assert tally.precision == pytest.approx(1 / 3)
    assert tally.recall == 1


def test_a_point_in_two_boxes_takes_the_nearer_centre() -> None:
    point = [Found(0.9, 0.5, 0, 0, 1.0)]
    assert matched_points(point, [(0, 0, 1, 1), (0.5, 0, 1.5, 1)]) == [(0, 1)]


SQUARE = ((0.1, 0.2), (0.5, 0.2), (0.5, 0.6), (0.1, 0.6))


def object_of(mask: np.ndarray, left: int, top: int) -> SceneObject:
    height, width = mask.shape
    return SceneObject("box", "red", (left, top, left + width, top + height), mask)


def test_a_mask_is_compared_pixel_by_pixel() -> None:
    full = object_of(np.ones((40, 80), np.bool_), 20, 20)  # of a picture of 200 x 100
    assert mask_iou(SQUARE, full, (100, 200)) == 1
    half = object_of(np.ones((40, 40), np.bool_), 20, 20)
    assert mask_iou(SQUARE, half, (100, 200)) == pytest.approx(0.5)
    aside = object_of(np.ones((40, 80), np.bool_), 60, 20)
    assert mask_iou(SQUARE, aside, (100, 200)) == pytest.approx(1 / 3)
    assert mask_iou(SQUARE, object_of(np.ones((5, 5), np.bool_), 150, 80), (100, 200)) == 0


def test_holes_in_the_true_mask_count_against_a_filled_outline() -> None:
    mask = np.ones((40, 80), np.bool_)
    mask[10:30, 20:60] = False
    assert mask_iou(SQUARE, object_of(mask, 20, 20), (100, 200)) == pytest.approx(0.75)


def test_too_few_corners_enclose_nothing() -> None:
    full = object_of(np.ones((40, 80), np.bool_), 20, 20)
    assert mask_iou((), full, (100, 200)) == mask_iou(SQUARE[:2], full, (100, 200)) == 0
