"""Where the time of real ticks goes: a model answering on this machine, as a Chrome trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean
from typing import Any

import numpy as np

from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.engine.metrics import StepRecord
from photon_ros.photon import Photon

NUM_FRAMES = 4
PROMPTS = ("person", "cone", "ball", "box")


def measure(
    progress: Callable[[str], None] = lambda _: None, *, model: str = "nano", device: str = "cpu"
) -> dict[str, Any]:
    """Ask about a few frames of noise; return what steps and requests took, and the trace.

    Returns ``rows``: per step kind their number, mean rows, zombies, and percentiles of the
    milliseconds of each part; ``requests``: the same of each stage; and ``trace``, the document.
    """
    rng = np.random.default_rng(0)
    with Photon(model, device=device) as photon:
        for number in range(NUM_FRAMES):
            progress(f"frame {number + 1} of {NUM_FRAMES}")
            frame = Frame(rng.integers(0, 255, (480, 640, 3), dtype=np.uint8))
            # Objects until the budget: noise has none, and the trace should show decoding.
            futures = [
                photon.submit(Request("point", prompt, frame, max_objects=8)) for prompt in PROMPTS
            ]
            for future in futures:
                future.result()
        stats = photon.engine_stats
        records = list(stats.records)
    rows = []
    for kind in sorted({record.kind for record in records}):
        steps = [record for record in records if record.kind == kind]
        counts = {
            "kind": kind,
            "steps": len(steps),
            "occupancy": mean(record.num_rows for record in steps),
            "zombies": sum(record.num_zombies for record in steps),
        }
        rows.append(counts | {f"{part}_ms": ms for part, ms in stats.step_ms(kind).items()})
    requests = [{"stage": stage} | ms for stage, ms in stats.request_ms().items()]
    return {"rows": rows, "requests": requests, "trace": chrome_trace(records)}


def chrome_trace(records: Iterable[StepRecord]) -> dict[str, Any]:
    """Return the records as a Chrome trace: one track a slot; load it in a trace viewer.

    The format is that of the "Trace Event Format" document of Chromium; times in microseconds.
    """
    events = []
    for record in records:
        spans = (
            ("launch", record.launch_s, record.launched_s),
            ("sampling", record.sample_s, record.sampled_s),
            ("wait", record.wait_s, record.copied_s),
            ("commit", record.copied_s, record.committed_s),
        )
        details = {"rows": record.num_rows, "zombies": record.num_zombies}
        for name, start_s, end_s in spans:
            events.append(
                {
                    "name": f"{name} {record.kind}",
                    "cat": name,
                    "ph": "X",
                    "ts": 1e6 * start_s,
                    "dur": 1e6 * (end_s - start_s),
                    "pid": 0,
                    "tid": record.slot_id,
                    "args": details,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms"}
