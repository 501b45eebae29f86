from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.skills.svg_path import CURVE_PARTS, Ring, rings_of

SQUARE: Ring = ((0, 0), (1, 0), (1, 1), (0, 1))


@pytest.mark.parametrize(
    "path",
    [
        "M 0 0 L 1 0 L 1 1 L 0 1 Z",
        "M 0 0 L 1 0 L 1 1 L 0 1",  # a ring that is not closed is closed anyway
        "M 0 0 1 0 1 1 0 1 z",  # what follows M is a line
        "m 0 0 1 0 0 1 -1 0 z",
        "M 0 0 l 1 0 0 1 l -1 0 Z",
        "M 0 0 H 1 V 1 H 0 Z",
        "M 0 0 h 1 v 1 h -1 z",
        "M 0 0 h 0.5 0.5 v 1 h -1 z",
        "M 0 0 L 1 0 1 1 0 1 7 Z",  # a number too many is dropped
    ],
)
def test_one_square_in_many_spellings(path: str) -> None:
    (ring,) = rings_of(path)
    corners = [point for point in ring if point in SQUARE]
    assert corners == list(SQUARE)
    assert len(ring) - len(corners) <= 1  # the point on the way


@pytest.mark.parametrize(
    "path", ["", "M 0 0", "M 0 0 L 1 1", "Z", "M 0 0 Z", "M 0 0 L 1", "L 1 1", "M 0 0 C 1 1 0 1"]
)
def test_fewer_than_three_points_are_no_ring(path: str) -> None:
    assert rings_of(path) == ()


def test_a_new_move_starts_a_new_ring_relative_to_where_the_pen_is() -> None:
    first, second = rings_of("M 0 0 L 1 0 L 1 1 m 1 1 l 1 0 0 1 z")
    assert first == ((0, 0), (1, 0), (1, 1))
    assert second == ((2, 2), (3, 2), (3, 3))


def test_after_a_ring_was_closed_the_pen_is_at_its_start() -> None:
    first, second = rings_of("M 1 1 l 1 0 0 1 z l 0 1 1 0 z")
    assert first == ((1, 1), (2, 1), (2, 2))
    assert second == ((1, 1), (1, 2), (2, 2))


def test_a_cubic_curve_passes_where_the_formula_says() -> None:
    (ring,) = rings_of("M 0 0 C 0 1 1 1 1 0")
    assert len(ring) == CURVE_PARTS + 1
    for n, (x, y) in enumerate(ring):
        t = n / CURVE_PARTS
        assert x == pytest.approx(3 * (1 - t) * t**2 + t**3)
        assert y == pytest.approx(3 * (1 - t) ** 2 * t + 3 * (1 - t) * t**2)


def test_a_quadratic_curve_passes_where_the_formula_says() -> None:
    (ring,) = rings_of("M 0 0 q 1 2 2 0")
    for n, (x, y) in enumerate(ring):
        t = n / CURVE_PARTS
        assert (x, y) == pytest.approx((2 * t, 4 * (1 - t) * t))


def test_a_circle_of_four_curves_is_round() -> None:
    k = 0.5523
    circle = f"M 1 0 C 1 {k} {k} 1 0 1 S -1 {k} -1 0 S -{k} -1 0 -1 S 1 -{k} 1 0 Z"
    (ring,) = rings_of(circle)
    assert all(math.hypot(x, y) == pytest.approx(1, abs=1e-3) for x, y in ring)
    assert len(ring) == 4 * CURVE_PARTS + 1


def test_a_smooth_curve_goes_on_in_the_direction_of_the_one_before() -> None:
    assert rings_of("M 0 0 Q 1 1 2 0 T 4 0") == rings_of("M 0 0 Q 1 1 2 0 Q 3 -1 4 0")
    assert rings_of("M 0 0 C 0 1 1 1 1 0 S 2 -1 2 0") == rings_of(
        "M 0 0 C 0 1 1 1 1 0 C 1 -1 2 -1 2 0"
    )


def test_a_smooth_curve_after_something_else_starts_straight() -> None:
    assert rings_of("M 0 0 L 1 1 S 2 0 3 0") == rings_of("M 0 0 L 1 1 C 1 1 2 0 3 0")
    assert rings_of("M 0 0 Q 1 1 2 0 S 3 1 4 0") == rings_of("M 0 0 Q 1 1 2 0 C 2 0 3 1 4 0")
    assert rings_of("M 0 0 C 0 1 1 1 2 0 T 4 0") == rings_of("M 0 0 C 0 1 1 1 2 0 Q 2 0 4 0")


def test_an_arc_is_a_line_to_its_end() -> None:
    assert rings_of("M 0 0 A 1 1 0 0 1 2 0 L 2 2") == rings_of("M 0 0 L 2 0 L 2 2")
    assert rings_of("M 0 0 L 1 0 A 1 1 0 0 1 2") == ()


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=3, max_size=9))
def test_relative_and_absolute_lines_are_the_same(points: list[tuple[float, float]]) -> None:
    absolute = "M " + " L ".join(f"{x!r} {y!r}" for x, y in points)
    steps = [points[0]] + [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(points)]
    relative = "m " + " l ".join(f"{x!r} {y!r}" for x, y in steps)
    for ring, other in zip(rings_of(absolute), rings_of(relative), strict=True):
        for point, same in zip(ring, other, strict=True):
            assert point == pytest.approx(same, abs=1e-9)
