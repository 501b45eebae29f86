"""Percentiles of durations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

Percentiles = dict[str, float]
"""{"p50", "p95", "p99", "max"}, milliseconds."""


def percentiles(samples_ms: Sequence[float]) -> Percentiles | None:
    """Return p50, p95, p99 and max; None without a finite sample.

    A percentile is the smallest sample that at least that share of the samples does not
    exceed, so it is always a duration that was measured, never one between two.
    """
    finite = [value for value in samples_ms if math.isfinite(value)]
    if not finite:
        return None
    shares = np.percentile(finite, (50, 95, 99), method="inverted_cdf")
    p50, p95, p99 = (round(float(value), 3) for value in shares)
    return {"p50": p50, "p95": p95, "p99": p99, "max": round(max(finite), 3)}


def stage_percentiles(records: Iterable[Mapping[str, float]]) -> dict[str, Percentiles]:
    """Return {stage: percentiles} over records of {stage: milliseconds}.

    Stages keep the order in which they first appear; one without a finite sample (a transport
    time between clocks that disagree, say) is left out.
    """
    samples: dict[str, list[float]] = {}
    for record in records:
        for stage, value_ms in record.items():
            samples.setdefault(stage, []).append(value_ms)
    found = {stage: percentiles(values) for stage, values in samples.items()}
    return {stage: value for stage, value in found.items() if value is not None}
