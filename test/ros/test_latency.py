"""The window of the last seconds: rate and percentiles."""

import math

import numpy as np
import pytest

from photon_ros.ros.latency import WINDOW_S, LatencyWindow


def test_empty_window_has_no_percentiles_and_no_rate() -> None:
    summary = LatencyWindow(now_s=5.0).summary(now_s=5.0)
    assert summary.fps == 0.0
    assert math.isnan(summary.p50_ms)
    assert math.isnan(summary.p95_ms)
    assert math.isnan(summary.p99_ms)


def test_percentiles_are_those_of_the_samples() -> None:
    window = LatencyWindow(now_s=0.0)
    samples = np.random.default_rng(1).gamma(2.0, 20.0, size=200)
    for index, sample in enumerate(samples):
        window.add(float(sample), now_s=index * 0.01)
    summary = window.summary(now_s=2.0)
    wanted = np.percentile(samples, [50, 95, 99], method="inverted_cdf")
    assert [summary.p50_ms, summary.p95_ms, summary.p99_ms] == pytest.approx(wanted)


def test_rate_right_after_the_start_is_over_the_time_that_passed() -> None:
    window = LatencyWindow(now_s=100.0)
    for index in range(20):
        window.add(1.0, now_s=100.0 + index * 0.1)
    assert window.summary(now_s=102.0).fps == pytest.approx(10.0)


def test_samples_leave_the_window_with_time() -> None:
    window = LatencyWindow(now_s=0.0)
    window.add(1000.0, now_s=1.0)
    window.add(10.0, now_s=2.0 + WINDOW_S)
    summary = window.summary(now_s=2.0 + WINDOW_S)
    assert summary.p99_ms == 10.0
    assert summary.fps == pytest.approx(1 / WINDOW_S)
    assert window.summary(now_s=3.0 + 2 * WINDOW_S).fps == 0.0


def test_slope_tells_growing_from_steady_latency_and_waits_until_it_can() -> None:
    growing, steady = LatencyWindow(now_s=0.0), LatencyWindow(now_s=0.0)
    for index in range(200):
        now_s = index / 10
        growing.add(50.0 + 3.0 * now_s, now_s=now_s)
        steady.add(50.0 + (index % 2) * 4.0, now_s=now_s)
        if now_s == 5.0:
            assert math.isnan(growing.summary(now_s=now_s).slope_ms_per_min)
    assert growing.summary(now_s=20.0).slope_ms_per_min == pytest.approx(180.0)
    assert abs(steady.summary(now_s=20.0).slope_ms_per_min) < 3.0
    # The percentiles still are of the last seconds alone.
    assert growing.summary(now_s=20.0).p50_ms == pytest.approx(50.0 + 3.0 * 15.0, abs=1.0)
