"""Forwards wasted on rows that had already ended, against the expectation of 1 / N.

An answer of N tokens takes N steps; when its end is only seen in the last token, one more step
has been launched by then. Time does not matter here, so the device takes none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from photon_ros.bench.sleep_device import SleepDevice
from photon_ros.bench.workload import FixedLengthState, build_engine, submit

NUM_TOKENS = (1, 3, 10, 30, 110)  # 1: nothing was found
BATCH_ROWS = (1, 32)
ANSWERS_PER_ROW = 4


@dataclass(frozen=True, slots=True)
class ZombieRow:
    """One case.

    ``zombie_share`` is zombie rows over all rows computed; ``wasted_forwards`` are forwards
    that computed nothing but zombies, as a share of all ``num_steps``, prefills included;
    ``expected`` is 1 / num_tokens. ``with_prefill``: new requests wait while others end.
    """

    num_tokens: int
    batch_rows: int
    with_prefill: bool
    zombie_share: float
    wasted_forwards: float
    num_steps: int
    expected: float


def measure_case(num_tokens: int, rows: int, *, with_prefill: bool) -> ZombieRow:
    """Run answers of one length to their end and count."""
    engine = build_engine(SleepDevice(0.0), rows, pipelined=True)
    rounds = ANSWERS_PER_ROW
    num_useful_steps = 0
    pending = list(range(rows * rounds))
    if with_prefill:
        for number in pending:
            submit(engine, number, FixedLengthState(num_tokens))
        pending = []
    while pending or engine.has_work:
        if pending and not engine.has_work:
            for number in pending[:rows]:
                submit(engine, number, FixedLengthState(num_tokens))
            del pending[:rows]
        before = engine.stats.num_tokens
        engine.tick()
        num_useful_steps += engine.stats.num_tokens > before
    stats = engine.stats
    num_steps = stats.num_prefill_steps + stats.num_decode_steps
    num_rows = stats.num_tokens + stats.num_zombie_rows
    return ZombieRow(
        num_tokens=num_tokens,
        batch_rows=rows,
        with_prefill=with_prefill,
        zombie_share=stats.num_zombie_rows / num_rows,
        wasted_forwards=1 - num_useful_steps / num_steps,
        num_steps=num_steps,
        expected=1 / num_tokens,
    )


def measure(progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Return all cases under ``rows``."""
    rows = []
    for batch_rows in BATCH_ROWS:
        for num_tokens in NUM_TOKENS:
            for with_prefill in (False, True):
                progress(f"{num_tokens} tokens, {batch_rows} rows")
                case = measure_case(num_tokens, batch_rows, with_prefill=with_prefill)
                rows.append(asdict(case))
    return {"rows": rows}
