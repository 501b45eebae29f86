"""Latency percentiles and output rate over the last seconds, free of ROS."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """What the window held: frames per second, and percentiles in ms (NaN without frames)."""

    fps: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


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
        while self._samples and self._samples[0][0] < now_s - WINDOW_S:
            self._samples.popleft()

    def summary(self, *, now_s: float) -> LatencySummary:
        """Return rate and percentiles of the window that ends now."""
        self._expire(now_s)
        # Right after the start the window is as long as the time that passed.
        span_s = min(WINDOW_S, now_s - self._started_s)
        fps = len(self._samples) / span_s if span_s > 0 else 0.0
        if not self._samples:
            return LatencySummary(fps, float("nan"), float("nan"), float("nan"))
        p50, p95, p99 = np.percentile([ms for _, ms in self._samples], [50, 95, 99])
        return LatencySummary(fps, float(p50), float(p95), float(p99))
