"""What a tick costs the host: the forward is stubbed out, the bookkeeping is the real one."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from photon_ros.bench.sleep_device import SleepDevice
from photon_ros.bench.workload import (
    FixedLengthState,
    build_engine,
    run_until_decoding,
    submit,
)
from photon_ros.engine.engine import Engine

BATCH_ROWS = (1, 8, 32)
NUM_TICKS = 400
STAGES = ("_launch_next", "_finalize_sampling", "_commit_oldest")


@dataclass(frozen=True, slots=True)
class HostRow:
    """Microseconds of host work a tick; ``stages_us`` are medians of its three parts."""

    batch_rows: int
    median_us: float
    p90_us: float
    stages_us: dict[str, float]


class _StageClock:
    """Times calls of an engine's stages; an instance attribute shadows the method."""

    def __init__(self, engine: Engine) -> None:
        self.spent_s: dict[str, list[float]] = {name: [] for name in STAGES}
        for name in STAGES:
            setattr(engine, name, self._timed(name, getattr(engine, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start_s = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.spent_s[name].append(time.perf_counter() - start_s)

        return timed


def measure_case(rows: int) -> HostRow:
    """Measure ``rows`` answers in their steady state, at contexts of about 750 positions."""
    ticks_s = _ticks(_steady_engine(rows))
    staged = _steady_engine(rows)
    clock = _StageClock(staged)  # a second engine: the clock itself costs a little
    _ticks(staged)
    return HostRow(
        batch_rows=rows,
        median_us=1e6 * float(np.median(ticks_s)),
        p90_us=1e6 * float(np.percentile(ticks_s, 90)),
        stages_us={
            name.lstrip("_"): 1e6 * float(np.median(spent)) for name, spent in clock.spent_s.items()
        },
    )


def _steady_engine(rows: int) -> Engine:
    engine = build_engine(SleepDevice(0.0), rows, pipelined=True)
    for number in range(rows):
        submit(engine, number, FixedLengthState(10_000))
    run_until_decoding(engine, rows)
    return engine


def _ticks(engine: Engine) -> list[float]:
    ticks_s = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(NUM_TICKS):
            start_s = time.perf_counter()
            engine.tick()
            ticks_s.append(time.perf_counter() - start_s)
    finally:
        gc.enable()
    return ticks_s


def measure(progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Return all cases under ``rows``."""
    rows = []
    for batch_rows in BATCH_ROWS:
        progress(f"{batch_rows} rows")
        rows.append(asdict(measure_case(batch_rows)))
    return {"rows": rows}
