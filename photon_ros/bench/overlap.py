"""How much of the host's work hides behind the forward, on a device that only takes time.

Ideal, from the two times of the blocking loop (forward G, bookkeeping b): blocking takes G + b a
step, pipelined max(G, b). The share of the ideal is the measured speed-up over (G + b)/max(G, b).
Pipelined and blocking run in turns in one process, because machines change speed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from photon_ros.bench.sleep_device import SleepDevice
from photon_ros.bench.workload import (
    FixedLengthState,
    build_engine,
    run_until_decoding,
    submit,
)
from photon_ros.engine.engine import Engine

FORWARDS_MS = (1.0, 2.0, 4.0)
BATCH_ROWS = (1, 8, 32)
HOST_WORKS_MS = (0.0, 1.0)
NUM_TURNS = 5
TICKS_PER_TURN = 60


@dataclass(frozen=True, slots=True)
class OverlapRow:
    """One case; times are medians a step, in milliseconds.

    ``idle_ms`` is the device's own, pipelined; ``bubble_hidden`` is 1 - idle pipelined / idle
    blocking; ``share_of_ideal`` as in the module's docstring. ``bubble_bound`` is what of the
    bubble any loop of one host thread can hide, min(1, forward / bookkeeping): where the host
    needs longer than the forward, the device idles for the difference. Both may be exceeded a
    little there, because the blocking loop's bookkeeping holds a wake-up that the other is spared.
    """

    forward_ms: float
    batch_rows: int
    host_work_ms: float
    blocking_ms: float
    pipelined_ms: float
    bookkeeping_ms: float
    share_of_ideal: float
    idle_ms: float
    bubble_hidden: float
    bubble_bound: float


class _StraySyncDevice(SleepDevice):
    """Waits wherever sampling is queued, as a mask copied from unpinned memory would."""

    def __init__(self, forward_s: float) -> None:
        super().__init__(forward_s)
        submit_quietly = self.compute.submit

        def submit_and_wait(op: Callable[[], None], name: str) -> None:
            submit_quietly(op, name)
            if name == "sample":
                self.compute.record().synchronize()

        self.compute.submit = submit_and_wait  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class _Loop:
    """An engine in its steady state and the device it runs on."""

    engine: Engine
    device: SleepDevice

    def turn(self) -> tuple[float, float]:
        """Return (seconds a step, seconds of device idleness a step) over one turn."""
        spans = self.device.compute.spans
        spans.clear()
        # From commit to commit: the step that is in flight when a turn begins was paid before.
        self.engine.tick()
        start_s = time.perf_counter()
        for _ in range(TICKS_PER_TURN):
            self.engine.tick()
        wall_s = time.perf_counter() - start_s
        idle_s = sum(max(0.0, b[0] - a[1]) for a, b in pairwise(spans))
        return wall_s / TICKS_PER_TURN, idle_s / max(1, len(spans) - 1)


def _loop(device: SleepDevice, rows: int, host_work_s: float, *, pipelined: bool) -> _Loop:
    engine = build_engine(device, rows, pipelined=pipelined)
    for number in range(rows):
        work_s = host_work_s if number == 0 else 0.0
        submit(engine, number, FixedLengthState(10_000, work_s))
    run_until_decoding(engine, rows)
    return _Loop(engine, device)


def measure_case(
    forward_ms: float,
    rows: int,
    host_work_ms: float,
    candidate: Callable[[float, int, float], _Loop] | None = None,
) -> OverlapRow:
    """Measure one case; ``candidate`` builds the loop that should overlap."""
    forward_s, work_s = forward_ms / 1e3, host_work_ms / 1e3
    build = candidate or pipelined_loop
    blocking, pipelined = blocking_loop(forward_s, rows, work_s), build(forward_s, rows, work_s)
    blocking_turns, pipelined_turns = [], []
    gc.collect()
    gc.disable()  # its pauses would fall on either loop by chance
    try:
        for _ in range(NUM_TURNS):
            blocking_turns.append(blocking.turn())
            pipelined_turns.append(pipelined.turn())
    finally:
        gc.enable()
    block_ms, block_idle_ms = (1e3 * median(column) for column in zip(*blocking_turns, strict=True))
    pipe_ms, pipe_idle_ms = (1e3 * median(column) for column in zip(*pipelined_turns, strict=True))
    bookkeeping_ms = max(block_ms - forward_ms, 1e-6)
    ideal = block_ms / max(forward_ms, bookkeeping_ms)
    return OverlapRow(
        forward_ms=forward_ms,
        batch_rows=rows,
        host_work_ms=host_work_ms,
        blocking_ms=block_ms,
        pipelined_ms=pipe_ms,
        bookkeeping_ms=bookkeeping_ms,
        share_of_ideal=block_ms / pipe_ms / ideal,
        idle_ms=pipe_idle_ms,
        bubble_hidden=1 - pipe_idle_ms / block_idle_ms if block_idle_ms else 0.0,
        bubble_bound=min(1.0, forward_ms / bookkeeping_ms),
    )


def pipelined_loop(forward_s: float, rows: int, host_work_s: float) -> _Loop:
    """Return the loop that ships."""
    return _loop(SleepDevice(forward_s), rows, host_work_s, pipelined=True)


def blocking_loop(forward_s: float, rows: int, host_work_s: float) -> _Loop:
    """Return the same loop at depth one."""
    return _loop(SleepDevice(forward_s), rows, host_work_s, pipelined=False)


def stray_sync_loop(forward_s: float, rows: int, host_work_s: float) -> _Loop:
    """Return the pipelined loop with one synchronous copy in its sampling."""
    return _loop(_StraySyncDevice(forward_s), rows, host_work_s, pipelined=True)


def measure(progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Return all cases under ``rows`` and two loops that must fail under ``controls``."""
    rows = []
    for host_work_ms in HOST_WORKS_MS:
        for forward_ms in FORWARDS_MS:
            for batch_rows in BATCH_ROWS:
                progress(f"forward {forward_ms} ms, {batch_rows} rows, host {host_work_ms} ms")
                rows.append(asdict(measure_case(forward_ms, batch_rows, host_work_ms)))
    controls = {}
    for name, loop in (("blocking", blocking_loop), ("stray_sync", stray_sync_loop)):
        progress(f"control: {name}")
        controls[name] = [asdict(measure_case(2.0, batch, 1.0, loop)) for batch in BATCH_ROWS]
    return {"rows": rows, "controls": controls}
