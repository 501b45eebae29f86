"""Percentiles of durations as a report tells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from photon_ros.core.percentiles import Percentiles, percentiles_by_stage

_NAMES = {"p50": "p50", "p95": "p95", "p99": "p99", "p100": "max"}


def stage_percentiles(records: Iterable[Mapping[str, float]]) -> dict[str, Percentiles]:
    """Return {stage: {"p50", "p95", "p99", "max"}} over records of {stage: milliseconds}.

    Stages and samples are those of :func:`photon_ros.core.percentiles.percentiles_by_stage`.
    """
    return {
        stage: {_NAMES[rank]: round(value, 3) for rank, value in found.items()}
        for stage, found in percentiles_by_stage(records, (50, 95, 99, 100)).items()
    }
