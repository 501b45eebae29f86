from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from photon_ros.core.result import Detection, DetectionKind
from photon_ros.replay.scoring import MIN_IOU, Score, Tally, score
from photon_ros.replay.truth import Box, TrueBox, TruthImage


def image(*boxes: TrueBox) -> TruthImage:
    return TruthImage("/cam", 0, 100, 100, boxes)


def true(*box: float, label: str = "cup", is_crowd: bool = False) -> TrueBox:
    return TrueBox(label, (box[0], box[1], box[2], box[3]), is_crowd)


def found(*box: float, label: str = "cup", confidence: float = 0.9) -> Detection:
    x_min, y_min, x_max, y_max = box
    return Detection(
        DetectionKind.BOX,
        label,
        (x_min + x_max) / 2,
        (y_min + y_max) / 2,
        x_max - x_min,
        y_max - y_min,
        confidence,
    )


def one(
    truth: Sequence[TrueBox], answer: Sequence[Detection], labels: Sequence[str] = ("cup",)
) -> Tally:
    return score({0: image(*truth)}, {0: answer}, labels).total


def figures(tally: Tally) -> tuple[float, float, float]:
    return tally.precision, tally.recall, tally.f1


def test_two_of_three_found_with_one_wrong() -> None:
    truth = [true(0.0, 0.0, 0.2, 0.2), true(0.4, 0.4, 0.6, 0.6), true(0.8, 0.8, 1.0, 1.0)]
    answer = [found(0.0, 0.0, 0.2, 0.2), found(0.42, 0.4, 0.62, 0.6), found(0.2, 0.7, 0.3, 0.8)]
    tally = one(truth, answer)
    assert figures(tally) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (tally.num_truth, tally.num_predicted, tally.num_matched) == (3, 3, 2)
    assert (tally.num_false, tally.num_missed) == (1, 1)
    assert tally.as_dict() == {
        "f1_iou50": pytest.approx(2 / 3),
        "precision_iou50": pytest.approx(2 / 3),
        "recall_iou50": pytest.approx(2 / 3),
        "num_truth": 3,
        "num_predicted": 3,
    }


def test_an_overlap_of_exactly_half_counts() -> None:
    # 2 x 1 against its half: intersection 1, union 2.
    assert one([true(0.0, 0.0, 0.5, 0.25)], [found(0.0, 0.0, 0.25, 0.25)]).num_matched == 1
    assert one([true(0.0, 0.0, 0.5, 0.25)], [found(0.0, 0.0, 0.24, 0.25)]).num_matched == 0


def test_a_true_box_is_found_once() -> None:
    tally = one([true(0.1, 0.1, 0.3, 0.3)], [found(0.1, 0.1, 0.3, 0.3)] * 3)
    assert (tally.num_matched, tally.num_false) == (1, 2)
    assert figures(tally) == pytest.approx((1 / 3, 1.0, 0.5))


def test_the_surest_detection_chooses_first() -> None:
    # Both overlap the left box enough; the sure one is nearer to the right box and takes it
    # only if it chooses the best overlap, and leaves the left one to the other.
    left, right = true(0.0, 0.0, 0.4, 0.4), true(0.1, 0.0, 0.5, 0.4)
    sure, unsure = (
        found(0.09, 0.0, 0.49, 0.4, confidence=0.9),
        found(0.0, 0.0, 0.4, 0.4, confidence=0.6),
    )
    assert one([left, right], [unsure, sure]).num_matched == 2


def test_greedy_matching_is_by_score_even_where_another_order_finds_more() -> None:
    # The sure one takes the only box that the unsure one could have had.
    a, b = true(0.0, 0.0, 0.30, 0.3), true(0.10, 0.0, 0.40, 0.3)
    sure = found(0.04, 0.0, 0.34, 0.3, confidence=0.9)  # overlaps a more, and b enough
    unsure = found(0.0, 0.0, 0.26, 0.3, confidence=0.5)  # overlaps only a enough
    assert one([a, b], [sure, unsure]).num_matched == 1


def test_labels_do_not_match_each_other() -> None:
    tally = one(
        [true(0.1, 0.1, 0.3, 0.3, label="cat")], [found(0.1, 0.1, 0.3, 0.3)], ("cat", "cup")
    )
    assert (tally.num_matched, tally.num_false, tally.num_missed) == (0, 1, 1)


def test_frames_do_not_match_each_other() -> None:
    truth = {0: image(true(0.1, 0.1, 0.3, 0.3)), 1: image()}
    result = score(truth, {1: [found(0.1, 0.1, 0.3, 0.3)]}, ["cup"])
    assert result.total.num_matched == 0
    assert (result.by_frame[0].num_missed, result.by_frame[1].num_false) == (1, 1)


def test_labels_that_were_not_asked_do_not_count() -> None:
    truth = [true(0.1, 0.1, 0.3, 0.3), true(0.5, 0.5, 0.7, 0.7, label="cat")]
    tally = one(truth, [found(0.1, 0.1, 0.3, 0.3)])
    assert figures(tally) == (1.0, 1.0, 1.0)


def test_labels_and_prompts_meet_without_case_and_spacing() -> None:
    truth = [true(0.1, 0.1, 0.3, 0.3, label="Red  Cup")]
    answer = [found(0.1, 0.1, 0.3, 0.3, label=" red cup")]
    assert (
        score({0: image(*truth)}, {0: answer}, ["red cup "]).by_label["red cup "].num_matched == 1
    )


def test_detections_in_a_crowd_are_not_judged() -> None:
    truth = [true(0.0, 0.0, 0.5, 0.5, is_crowd=True), true(0.6, 0.6, 0.8, 0.8)]
    answer = [
        found(0.1, 0.1, 0.2, 0.2),
        found(0.3, 0.3, 0.4, 0.4),
        found(0.6, 0.6, 0.8, 0.8),
        found(0.85, 0.1, 0.95, 0.2),
    ]
    tally = one(truth, answer)
    assert (tally.num_truth, tally.num_predicted, tally.num_ignored) == (1, 4, 2)
    assert (tally.num_matched, tally.num_false) == (1, 1)
    assert figures(tally) == pytest.approx((0.5, 1.0, 2 / 3))


def test_what_lies_outside_the_picture_does_not_count_against_a_box() -> None:
    truth = [true(0.8, 0.0, 1.4, 0.5)]  # labelled in full, past the edge
    assert one(truth, [found(0.8, 0.0, 1.0, 0.5)]).num_matched == 1
    assert one([true(0.8, 0.0, 1.0, 0.5)], [found(0.8, 0.0, 1.6, 0.5)]).num_matched == 1


@pytest.mark.parametrize(
    ("truth", "answer", "expected"),
    [
        ([], [], (1.0, 1.0, 1.0)),
        ([true(0, 0, 1, 1)], [], (0.0, 0.0, 0.0)),
        ([], [found(0, 0, 1, 1)], (0.0, 0.0, 0.0)),
        ([true(0, 0, 1, 1, is_crowd=True)], [], (1.0, 1.0, 1.0)),
        ([true(0, 0, 1, 1, is_crowd=True)], [found(0.1, 0.1, 0.2, 0.2)], (1.0, 1.0, 1.0)),
        ([true(0, 0, 0.1, 0.1)], [found(0.5, 0.5, 0.5, 0.5)], (0.0, 0.0, 0.0)),
    ],
)
def test_empty_cases_are_defined(
    truth: list[TrueBox], answer: list[Detection], expected: tuple[float, float, float]
) -> None:
    assert figures(one(truth, answer)) == expected


def test_no_labelled_frame_at_all_is_an_empty_score() -> None:
    assert score({}, {0: [found(0, 0, 1, 1)]}, ["cup"]) == Score({"cup": Tally()}, {})


def test_a_labelled_frame_without_an_answer_is_missed() -> None:
    assert score({3: image(true(0, 0, 1, 1))}, {}, ["cup"]).total.num_missed == 1


def test_a_score_that_is_no_number_comes_last() -> None:
    truth = [true(0.1, 0.1, 0.3, 0.3)]
    answer = [found(0.1, 0.1, 0.3, 0.3, confidence=float("nan")), found(0.1, 0.1, 0.29, 0.3)]
    assert one(truth, answer).num_matched == 1


# --- an oracle: COCO's greedy rule, written down again with plain loops ----------------------


def clipped(box: Box) -> Box:
    return tuple(min(max(value, 0.0), 1.0) for value in box)  # type: ignore[return-value]


def overlap(answer: Box, truth: Box, is_crowd: bool) -> float:
    a, b = clipped(answer), clipped(truth)
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    area_a, area_b = ((box[2] - box[0]) * (box[3] - box[1]) for box in (a, b))
    whole = area_a if is_crowd else area_a + area_b - width * height
    return width * height / whole if whole > 0 else 0.0


def greedy(truth: Sequence[TrueBox], answer: Sequence[Detection]) -> tuple[int, int]:
    """Return (matched, ignored)."""
    free = [box for box in truth if not box.is_crowd]
    crowds = [box for box in truth if box.is_crowd]
    matched = ignored = 0
    for detection in sorted(answer, key=lambda d: -d.score):
        corners = detection.corners()
        best = max(free, key=lambda box: overlap(corners, box.box, False), default=None)
        if best is not None and overlap(corners, best.box, False) >= MIN_IOU:
            matched += 1
            free.remove(best)
        elif any(overlap(corners, box.box, True) >= MIN_IOU for box in crowds):
            ignored += 1
    return matched, ignored


# Sides off a grid of sevenths: overlaps seldom fall on 0.5 itself, where rounding decides.
side = st.sampled_from([k / 7 for k in range(-1, 9)])


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    x_min, x_max = sorted((draw(side), draw(side)))
    y_min, y_max = sorted((draw(side), draw(side)))
    return x_min, y_min, x_max + 1 / 11, y_max + 1 / 11


true_boxes = st.builds(TrueBox, st.just("cup"), boxes(), st.sampled_from([False] * 4 + [True]))


@st.composite
def answers(draw: st.DrawFn) -> list[Detection]:
    drawn = draw(st.lists(boxes(), max_size=6))
    # All different: between equal scores the order of the answer decides, on both sides.
    scores = draw(st.permutations([0.5 + k / 20 for k in range(len(drawn))]))
    return [found(*box, confidence=value) for box, value in zip(drawn, scores, strict=True)]


@given(st.lists(st.tuples(st.lists(true_boxes, max_size=5), answers()), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_the_library_matches_as_the_oracle_does(
    frames: list[tuple[list[TrueBox], list[Detection]]],
) -> None:
    # Boxes cut off at the edge of the picture can overlap by 0.5 to the last digit.
    for boxes, detections in frames:
        pairs = itertools.product(boxes, detections)
        shares = [overlap(other.corners(), box.box, box.is_crowd) for box, other in pairs]
        assume(all(abs(share - MIN_IOU) > 1e-9 for share in shares))
    truth = {index: image(*boxes) for index, (boxes, _) in enumerate(frames)}
    answer = {index: found for index, (_, found) in enumerate(frames)}
    result = score(truth, answer, ["cup"])
    for index, (true_ones, detections) in enumerate(frames):
        tally = result.by_frame[index]
        assert (tally.num_matched, tally.num_ignored) == greedy(true_ones, detections)
        assert tally.num_truth == sum(not box.is_crowd for box in true_ones)
        assert tally.num_predicted == len(detections)
    assert sum(result.by_frame.values(), Tally()) == result.total


@given(answers(), st.lists(true_boxes, max_size=5))
@settings(deadline=None)
def test_figures_are_shares_and_f1_lies_between_them(
    answer: list[Detection], truth: list[TrueBox]
) -> None:
    precision, recall, f1 = figures(one(truth, answer))
    assert min(precision, recall) - 1e-12 <= f1 <= max(precision, recall) + 1e-12
    assert all(0 <= value <= 1 for value in (precision, recall, f1))


def test_many_boxes_are_all_judged() -> None:
    """COCO's usual limit of 100 detections a picture does not apply."""
    grid = [k / 15 for k in range(15)]
    truth = [true(x, y, x + 0.06, y + 0.06) for x, y in itertools.product(grid, grid)]
    answer = [found(*box.box) for box in truth]
    assert one(truth, answer).num_matched == 225
