"""Percentiles are samples, of the finite ones, by the names asked for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.percentiles import percentiles, percentiles_by_stage


def test_percentiles_of_one_to_a_hundred() -> None:
    samples = [float(number) for number in range(100, 0, -1)]
    assert percentiles(samples) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert percentiles(samples, (1, 95)) == {"p1": 1.0, "p95": 95.0}


def test_one_sample_is_every_percentile() -> None:
    assert percentiles([7.25]) == {"p50": 7.25, "p90": 7.25, "p99": 7.25}


@pytest.mark.parametrize("samples", [[], [math.nan], [math.inf, -math.inf]])
def test_without_a_finite_sample_there_are_none(samples: list[float]) -> None:
    assert percentiles(samples) is None


def test_what_is_not_finite_is_left_out() -> None:
    assert percentiles([math.nan, 4.0, math.inf]) == percentiles([4.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(1, 99))
def test_a_percentile_is_the_smallest_sample_that_enough_do_not_exceed(
    samples: list[float], rank: int
) -> None:
    found = percentiles(samples, (rank,))
    assert found is not None
    value = found[f"p{rank}"]
    assert value in samples
    share = sum(sample <= value for sample in samples) / len(samples)
    below = sum(sample < value for sample in samples) / len(samples)
    assert share >= rank / 100 - 1e-9
    assert below < rank / 100 + 1e-9


def test_stages_keep_the_order_of_their_first_sample_and_empty_ones_are_left_out() -> None:
    records = [{"wait": 1.0, "run": 5.0}, {"run": 7.0, "late": math.nan}, {"first": 2.0}]
    found = percentiles_by_stage(records, (50,))
    assert found == {"wait": {"p50": 1.0}, "run": {"p50": 5.0}, "first": {"p50": 2.0}}
    assert list(found) == ["wait", "run", "first"]
