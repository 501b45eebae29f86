from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from photon_ros.core.errors import ImageError
from photon_ros.core.mask import mask_of
from photon_ros.core.result import Detection, DetectionKind
from photon_ros.overlay import draw, label_color, line_width_px

GREY = 120


def plain(width: int, height: int) -> NDArray[np.uint8]:
    return np.full((height, width, 3), GREY, np.uint8)


def box(
    x_min: float, y_min: float, x_max: float, y_max: float, label: str = "cup", score: float = 0.9
) -> Detection:
    return Detection(
        DetectionKind.BOX,
        label,
        (x_min + x_max) / 2,
        (y_min + y_max) / 2,
        x_max - x_min,
        y_max - y_min,
        score,
    )


def changed(image: NDArray[np.uint8]) -> NDArray[np.bool_]:
    touched: NDArray[np.bool_] = (image != GREY).any(2)
    return touched


def has_color(
    image: NDArray[np.uint8], color: Sequence[int], tolerance: int = 40
) -> NDArray[np.bool_]:
    near: NDArray[np.bool_] = np.abs(image.astype(int) - np.array(color)).max(2) <= tolerance
    return near


def test_the_picture_given_is_left_alone() -> None:
    image = plain(80, 60)
    drawn = draw(image, [box(0.2, 0.2, 0.8, 0.8)])
    assert (image == GREY).all()
    assert drawn.shape == image.shape
    assert drawn.dtype == np.uint8
    assert changed(drawn).any()


def test_nothing_found_draws_nothing() -> None:
    assert not changed(draw(plain(80, 60), [])).any()


def test_a_box_is_drawn_on_its_four_edges_and_not_inside() -> None:
    color = label_color("cup")
    drawn = draw(plain(400, 300), [box(0.25, 0.4, 0.75, 0.8)])
    on_color = has_color(drawn, color)
    for y, x in ((240, 200), (120, 200), (180, 100), (180, 300)):
        assert on_color[y - 2 : y + 3, x - 2 : x + 3].any(), (y, x)
    assert not changed(drawn)[150:220, 150:250].any()


def test_a_point_is_drawn_at_its_place() -> None:
    point = Detection(DetectionKind.POINT, "sign", 0.25, 0.5, score=0.8)
    drawn = draw(plain(400, 300), [point])
    assert has_color(drawn, label_color("sign"))[150, 100]
    ys, xs = np.nonzero(changed(drawn))
    assert np.hypot(ys - 150, xs - 100).min() < 2


def test_a_mask_lets_the_picture_through_and_keeps_its_hole() -> None:
    outer = ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8))
    hole = ((0.4, 0.6), (0.6, 0.6), (0.6, 0.4), (0.4, 0.4))
    mask = Detection(DetectionKind.MASK, "mat", 0.5, 0.5, 0.6, 0.6, 0.7, polygon=(outer, hole))
    drawn = draw(plain(400, 400), [mask]).astype(int)
    color = np.array(label_color("mat"))
    expected = 0.4 * color + 0.6 * GREY
    assert np.abs(drawn[300, 120] - expected).max() <= 2
    assert (drawn[200, 200] == GREY).all()


SQUARE = ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8))
INNER = ((0.4, 0.4), (0.6, 0.4), (0.6, 0.6), (0.4, 0.6))


@pytest.mark.parametrize("inner", [INNER, INNER[::-1]])
def test_a_mask_is_filled_as_its_raster_is(inner: tuple[tuple[float, float], ...]) -> None:
    mask = Detection(DetectionKind.MASK, "mat", 0.5, 0.5, 0.6, 0.6, 0.7, polygon=(SQUARE, inner))
    before = plain(400, 400)
    is_tinted = (draw(before, [mask]) != before).any(axis=2)
    raster = mask_of(mask.polygon, width_px=400, height_px=400)
    for x, y in ((200, 200), (120, 200), (200, 290), (40, 200)):
        assert is_tinted[y, x] == raster[y, x], (x, y)
    assert raster[200, 200] == (inner is INNER), "a hole is a ring of the other direction"


def test_a_mask_without_a_polygon_is_shown_by_its_box() -> None:
    mask = Detection(DetectionKind.MASK, "mat", 0.5, 0.5, 0.5, 0.5, 0.7)
    assert has_color(draw(plain(200, 200), [mask]), label_color("mat")).any()


def test_true_boxes_are_dashed_white() -> None:
    drawn = draw(plain(400, 300), [], truth=[(0.25, 0.25, 0.75, 0.75)])
    top = has_color(drawn, (255, 255, 255), 60)[73:77, 110:290].any(0)
    runs = np.abs(np.diff(top.astype(int))).sum()
    assert top.any()
    assert runs >= 8  # on and off again, several times
    corner = has_color(drawn, (255, 255, 255), 60)[72:78, 97:103]
    assert corner.any()


def test_a_colour_belongs_to_its_label_in_every_process() -> None:
    code = "from photon_ros.overlay import label_color as c; print(c('person'), c(' Red  cup'))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == f"{label_color('person')} {label_color(' Red  cup')}"


def test_labels_spread_over_the_palette() -> None:
    names = [f"thing {number}" for number in range(200)]
    assert len({label_color(name) for name in names}) >= 10
    assert label_color("Person ") == label_color("person")


def test_lines_grow_with_the_picture() -> None:
    widths = [line_width_px(plain(size, size)) for size in (1, 64, 640, 2000)]
    assert widths == sorted(widths)
    assert widths[0] == 1
    assert widths[-1] >= 3 * widths[1]


def labels_only(image: NDArray[np.uint8], label: str) -> NDArray[np.bool_]:
    """Return where a label's chip is: its colour over an area, rows of a text's height."""
    return has_color(image, label_color(label), 60)


@pytest.mark.parametrize(
    "place",
    [(0.0, 0.0, 0.1, 0.1), (0.9, 0.0, 1.0, 0.1), (0.0, 0.9, 0.1, 1.0), (0.9, 0.9, 1.0, 1.0)],
)
def test_a_label_in_a_corner_stays_whole(place: tuple[float, float, float, float]) -> None:
    reference = draw(plain(640, 480), [box(0.4, 0.4, 0.6, 0.6)])
    drawn = draw(plain(640, 480), [box(*place)])
    # The text's dark ink: as much of it as where there is room all around.
    ink = (drawn < 60).all(2).sum() - (drawn[:, :, 0] < 0).sum()
    wanted = (reference < 60).all(2).sum()
    outline = 2 * 4 * 0.1 * 560
    assert ink > 0.5 * (wanted - outline)


def chips(image: NDArray[np.uint8], detections: Sequence[Detection]) -> list[tuple[int, ...]]:
    """Return the rectangles on which labels are placed, as the drawing asks for them."""
    from photon_ros.overlay import drawing, labels

    placed: list[tuple[int, ...]] = []
    for detection in sorted(detections, key=lambda d: -d.score):
        chip = labels._chip(detection, 12, image.shape[1])
        where = drawing._box_px(image, detection.corners(), 2)
        placed.append(labels._place(image, where, 2, chip, placed, 2))  # type: ignore[arg-type]
    return placed


def test_labels_of_neighbours_do_not_hide_each_other() -> None:
    crowd = [
        box(0.30 + 0.05 * k, 0.4, 0.36 + 0.05 * k, 0.6, "person", 0.9 - 0.01 * k) for k in range(6)
    ]
    placed = chips(plain(640, 480), crowd)
    for i, a in enumerate(placed):
        for b in placed[:i]:
            overlap = min(a[2], b[2]) > max(a[0], b[0]) and min(a[3], b[3]) > max(a[1], b[1])
            assert not overlap, (a, b)


def test_two_of_the_same_still_both_get_a_label() -> None:
    same = [box(0.4, 0.4, 0.6, 0.6), box(0.4, 0.4, 0.6, 0.6, score=0.5)]
    first, second = chips(plain(640, 480), same)
    assert first != second


@given(
    st.lists(
        st.tuples(
            st.floats(-0.2, 1.2), st.floats(-0.2, 1.2), st.floats(0, 1), st.floats(0, 1),
            st.text(max_size=60), st.floats(0, 1),
        ),
        max_size=8,
    ),
    st.integers(100, 400),
    st.integers(60, 300),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_every_label_lies_inside_the_picture(
    found: list[tuple[float, float, float, float, str, float]], width: int, height: int
) -> None:
    image = plain(width, height)
    detections = [
        Detection(DetectionKind.BOX, label, x, y, w, h, score) for x, y, w, h, label, score in found
    ]
    for left, top, right, bottom in chips(image, detections):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


EVERYTHING = [
    box(0.1, 0.1, 0.9, 0.9),
    box(-3.0, -2.0, 4.0, 5.0, "huge"),
    box(0.5, 0.5, 0.5, 0.5, "nothing"),
    box(2.0, 2.0, 3.0, 3.0, "outside"),
    box(math.nan, 0.0, 1.0, 1.0, "nan"),
    box(0.0, 0.0, math.inf, 1.0, "infinite"),
    box(0.3, 0.3, 0.6, 0.6, "a very long prompt that could never fit beside its box " * 3),
    box(0.3, 0.3, 0.6, 0.6, "line\nbreak\tand \x00 control"),
    box(0.3, 0.3, 0.6, 0.6, "", math.nan),
    box(0.3, 0.3, 0.6, 0.6, "红色的杯子 чашка ☕"),
    Detection(DetectionKind.POINT, "point", 1.0, 1.0),
    Detection(DetectionKind.POINT, "point", 0.0, 0.0),
    Detection(
        DetectionKind.MASK,
        "mask",
        0.5,
        0.5,
        1.0,
        1.0,
        polygon=(((0.0, 0.0), (1e9, math.nan), (1.0, 1.0)), ((-1e9, 0.5), (1e9, 0.4), (0.5, 1e9))),
    ),
]
TRUTH = [(0.1, 0.1, 0.5, 0.5), (-5.0, -5.0, 5.0, 5.0), (math.nan, 0.0, 1.0, 1.0), (0.5,) * 4]


@pytest.mark.parametrize(
    "size", [(1, 1), (2, 1), (1, 500), (500, 1), (7, 5), (33, 21), (640, 480), (5000, 4000)]
)
def test_anything_can_be_drawn_on_a_picture_of_any_size(size: tuple[int, int]) -> None:
    image = plain(*size)
    drawn = draw(image, EVERYTHING, truth=TRUTH)  # type: ignore[arg-type]
    assert drawn.shape == image.shape


def test_a_box_larger_than_the_picture_shows_along_its_border() -> None:
    drawn = draw(plain(200, 100), [box(-1, -1, 2, 2)])
    touched = changed(drawn)
    assert touched[50, :4].any()
    assert touched[50, -4:].any()
    assert not touched[60:90, 20:180].any()


def test_a_box_outside_the_picture_is_not_drawn() -> None:
    assert not changed(draw(plain(200, 100), [box(1.5, 0.2, 1.8, 0.4)])).any()


@given(
    st.lists(
        st.builds(
            Detection,
            kind=st.sampled_from(DetectionKind),
            label=st.text(max_size=20),
            x=st.floats(),
            y=st.floats(),
            width=st.floats(),
            height=st.floats(),
            score=st.floats(),
            polygon=st.lists(
                st.lists(st.tuples(st.floats(), st.floats()), max_size=5).map(tuple), max_size=2
            ).map(tuple),
        ),
        max_size=4,
    ),
    st.integers(1, 60),
    st.integers(1, 60),
)
@settings(max_examples=100, deadline=None)
def test_no_numbers_make_drawing_fail(detections: list[Detection], width: int, height: int) -> None:
    assert draw(plain(width, height), detections).shape == (height, width, 3)


def test_a_view_or_a_read_only_picture_will_do() -> None:
    image = plain(80, 60)[::-1, ::2]
    image.flags.writeable = False
    assert draw(image, [box(0.2, 0.2, 0.8, 0.8)]).shape == (60, 40, 3)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_what_is_no_picture_is_refused(image: NDArray[np.uint8]) -> None:
    with pytest.raises(ImageError, match="cannot draw on"):
        draw(image, [])
