"""Percentiles of durations, the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

Percentiles = dict[str, float]
"""By name, as in ``{"p50": 3.0, "p90": 7.25, "p99": 8.5}``."""

RANKS = (50, 90, 99)


def percentiles(samples: Iterable[float], ranks: Iterable[int] = RANKS) -> Percentiles | None:
    """Return the percentiles of the finite samples; None when there are none.

    A percentile is the smallest sample that at least that share of the samples does not
    exceed, so it is always one that was measured.
    """
    finite = sorted(float(sample) for sample in samples if math.isfinite(sample))
    if not finite:
        return None
    return {f"p{rank}": finite[_index(rank, len(finite))] for rank in ranks}


def _index(rank: int, num_samples: int) -> int:
    """Return the place of a percentile among the sorted samples."""
    # In whole numbers: the rounding up must not depend on how a float came out.
    return max(0, -(-rank * num_samples // 100) - 1)


def percentiles_by_stage(
    records: Iterable[Mapping[str, float]], ranks: Iterable[int] = RANKS
) -> dict[str, Percentiles]:
    """Return {stage: percentiles} over records of {stage: duration}.

    Stages keep the order in which they first appear; one without a finite sample is left out.
    """
    samples: dict[str, list[float]] = {}
    for record in records:
        for stage, value in record.items():
            samples.setdefault(stage, []).append(value)
    found = {stage: percentiles(values, ranks) for stage, values in samples.items()}
    return {stage: value for stage, value in found.items() if value is not None}
