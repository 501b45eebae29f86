from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.percentiles import Percentiles
from photon_ros.replay.latency import stage_percentiles


def percentiles(samples: list[float]) -> Percentiles | None:
    return stage_percentiles({"stage": sample} for sample in samples).get("stage")


def test_percentiles_of_one_to_a_hundred() -> None:
    assert percentiles([float(k) for k in range(100, 0, -1)]) == {
        "p50": 50.0,
        "p95": 95.0,
        "p99": 99.0,
        "max": 100.0,
    }


def test_one_sample_is_every_percentile() -> None:
    assert percentiles([7.25]) == {"p50": 7.25, "p95": 7.25, "p99": 7.25, "max": 7.25}


@pytest.mark.parametrize("samples", [[], [math.nan], [math.inf, math.nan]])
def test_without_a_finite_sample_there_is_nothing_to_say(samples: list[float]) -> None:
    assert percentiles(samples) is None


def test_times_that_could_not_be_measured_do_not_count() -> None:
    assert percentiles([math.nan, 4.0, math.inf]) == percentiles([4.0])


@given(st.lists(st.integers(0, 10**6).map(lambda n: n / 1000), min_size=1, max_size=200))
def test_a_percentile_is_the_smallest_sample_that_covers_its_share(samples: list[float]) -> None:
    found = percentiles(samples)
    assert found is not None
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        covering = [
            value for value in samples if sum(s <= value for s in samples) >= share * len(samples)
        ]
        assert found[name] == min(covering)
    assert found["max"] == max(samples)


def test_stages_keep_their_order_and_unmeasured_ones_are_left_out() -> None:
    records = [{"queue": 1.0, "transport": math.nan}, {"decode": 2.0, "queue": 3.0}, {"total": 9.0}]
    table = stage_percentiles(records)
    assert list(table) == ["queue", "decode", "total"]
    assert table["queue"]["max"] == 3.0
    assert stage_percentiles([]) == {}
