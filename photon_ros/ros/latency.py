"""Latency percentiles, their trend and the output rate over the last seconds, free of ROS."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from photon_ros.core.percentiles import percentiles

WINDOW_S = 10.0
# A queue that grows for minutes shows in the slope long before a percentile alarms anybody.
TREND_S = 60.0
MIN_TREND_S = 10.0


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """What the window held: frames per second, and percentiles in ms (NaN without frames).

    ``slope_ms_per_min`` is that of the straight line through the latencies of the last
    :data:`TREND_S` seconds; NaN until they span :data:`MIN_TREND_S`.
    """

    fps: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    slope_ms_per_min: float = float("nan")


class LatencyWindow:
    """The total latency of the frames published within the last :data:`WINDOW_S` seconds.

    Used by one thread. Times are seconds of the steady clock.
    """

    def __init__(self, *, now_s: float) -> None:
        self._started_s = now_s
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, total_ms: float, *, now_s: float) -> None:
        """Take one published frame."""
        self._samples.append((now_s, total_ms))
        self._expire(now_s)

    def _expire(self, now_s: float) -> None:
        while self._samples and self._samples[0][0] < now_s - TREND_S:
            self._samples.popleft()

    def summary(self, *, now_s: float) -> LatencySummary:
        """Return rate and percentiles of the window that ends now."""
        self._expire(now_s)
        recent = [ms for time_s, ms in self._samples if time_s >= now_s - WINDOW_S]
        # Right after the start the window is as long as the time that passed.
        span_s = min(WINDOW_S, now_s - self._started_s)
        fps = len(recent) / span_s if span_s > 0 else 0.0
        slope = self._slope_ms_per_min()
        found = percentiles(recent, (50, 95, 99))
        if found is None:
            return LatencySummary(fps, math.nan, math.nan, math.nan, slope)
        return LatencySummary(fps, found["p50"], found["p95"], found["p99"], slope)

    def _slope_ms_per_min(self) -> float:
        if not self._samples or self._samples[-1][0] - self._samples[0][0] < MIN_TREND_S:
            return math.nan
        times_s, latencies_ms = np.array(self._samples).T
        centred_s = times_s - times_s.mean()
        return float(60.0 * (centred_s @ latencies_ms) / (centred_s @ centred_s))
