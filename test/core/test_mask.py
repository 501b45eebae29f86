from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from photon_ros.core.mask import SAMPLES, mask_of

Ring = list[tuple[float, float]]
SQUARE: Ring = [(0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75)]
HOLE: Ring = [(0.375, 0.375), (0.375, 0.625), (0.625, 0.625), (0.625, 0.375)]


def winding(ring: Ring, x: float, y: float) -> int:
    """The winding number of a ring around a point: how often its edges cross the ray to the left,
    with their direction.
    """
    number = 0
    for (x1, y1), (x2, y2) in zip(ring, ring[1:] + ring[:1], strict=True):
        if (y1 <= y) != (y2 <= y) and x1 + (y - y1) * (x2 - x1) / (y2 - y1) <= x:
            number += 1 if y2 > y1 else -1
    return number


def slow_mask(rings: list[Ring], width: int, height: int) -> NDArray[np.bool_]:
    mask = np.zeros((height, width), bool)
    for row in range(height):
        for column in range(width):
            covered = 0
            for i in range(SAMPLES * SAMPLES):
                x = (column + (i % SAMPLES + 0.5) / SAMPLES) / width
                y = (row + (i // SAMPLES + 0.5) / SAMPLES) / height
                covered += sum(winding(ring, x, y) for ring in rings) != 0
            mask[row, column] = covered > SAMPLES * SAMPLES / 2
    return mask


def test_a_square_covers_its_pixels() -> None:
    mask = mask_of([SQUARE], width_px=8, height_px=4)
    wanted = np.zeros((4, 8), bool)
    wanted[1:3, 2:6] = True
    assert np.array_equal(mask, wanted)


def test_a_ring_the_other_way_round_is_a_hole_and_one_the_same_way_is_not() -> None:
    assert mask_of([SQUARE, HOLE], width_px=8, height_px=8).sum() == 16 - 4
    assert mask_of([SQUARE, HOLE[::-1]], width_px=8, height_px=8).sum() == 16


def test_the_direction_of_a_lone_ring_does_not_matter() -> None:
    there = mask_of([SQUARE], width_px=9, height_px=7)
    back = mask_of([SQUARE[::-1]], width_px=9, height_px=7)
    assert np.array_equal(there, back)


def test_what_lies_outside_is_cut_off() -> None:
    assert mask_of([[(-1, -1), (2, -1), (2, 2), (-1, 2)]], width_px=5, height_px=3).all()
    assert not mask_of([[(1.5, 0), (2, 0), (2, 1)]], width_px=5, height_px=3).any()
    assert not mask_of([[(-2, 0), (-1, 0), (-1, 1)]], width_px=5, height_px=3).any()
    left = mask_of([[(-5, 0), (0.5, 0), (0.5, 1), (-5, 1)]], width_px=4, height_px=4)
    assert np.array_equal(left, np.tile([True, True, False, False], (4, 1)))


def test_half_a_pixel_is_not_enough() -> None:
    half = [(0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)]
    assert not mask_of([half], width_px=1, height_px=1).any()
    more = [(0.0, 0.0), (0.7, 0.0), (0.7, 1.0), (0.0, 1.0)]
    assert mask_of([more], width_px=1, height_px=1).all()


@pytest.mark.parametrize(
    "rings", [[], [[]], [[(0.5, 0.5)]], [[(0, 0), (1, 1)]], [[(0, 0), (float("nan"), 1), (1, 1)]]]
)
def test_rings_that_enclose_nothing_make_an_empty_mask(rings: list[Ring]) -> None:
    assert not mask_of(rings, width_px=3, height_px=2).any()


# Off the grid of samples, so that rounding decides nothing.
values = st.integers(-13, 50).map(lambda n: (n + 0.3) / 37)
rings = st.lists(st.lists(st.tuples(values, values), min_size=3, max_size=7), max_size=3)


@settings(max_examples=60, deadline=None)
@given(rings, st.integers(1, 7), st.integers(1, 7))
def test_any_rings_are_filled_as_their_winding_numbers_say(
    rings: list[Ring], width: int, height: int
) -> None:
    fast = mask_of(rings, width_px=width, height_px=height)
    assert np.array_equal(fast, slow_mask(rings, width, height))


def test_a_small_ring_of_a_large_picture_and_its_centres_alone_agree_with_the_whole() -> None:
    ring = [(0.5, 0.5), (0.52, 0.5), (0.52, 0.53), (0.5, 0.53)]
    mask = mask_of([ring], width_px=1000, height_px=1000)
    assert mask[500:530, 500:520].all()
    assert mask.sum() == 600
    assert np.array_equal(mask, mask_of([ring], width_px=1000, height_px=1000, samples=1))


@pytest.mark.parametrize("shift", [(-2.0, 0.0), (2.0, 0.0), (0.0, -2.0), (0.0, 2.0)])
def test_a_ring_beside_the_picture_fills_nothing(shift: tuple[float, float]) -> None:
    ring = [(x + shift[0], y + shift[1]) for x, y in ((0.1, 0.1), (0.9, 0.1), (0.5, 0.9))]
    assert not mask_of([ring], width_px=30, height_px=20).any()
