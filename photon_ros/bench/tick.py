"""Where the time of real ticks goes: a model answering on this machine, as a Chrome trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
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
    """Ask about a few frames of noise and return medians a step kind, and the trace.

    Returns ``rows``: per step kind the number of steps and the median milliseconds of launch,
    sampling, wait and commit; and ``trace``, the trace document.
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
        records = list(photon.engine_stats.records)
    kinds = sorted({record.kind for record in records})
    rows = [_medians(kind, [r for r in records if r.kind == kind]) for kind in kinds]
    return {"rows": rows, "trace": chrome_trace(records)}


def _medians(kind: str, records: list[StepRecord]) -> dict[str, Any]:
    return {
        "kind": kind,
        "steps": len(records),
        "rows": median(r.num_rows for r in records),
        "launch_ms": 1e3 * median(r.launched_s - r.launch_s for r in records),
        "sampling_ms": 1e3 * median(r.sampled_s - r.sample_s for r in records),
        "wait_ms": 1e3 * median(r.copied_s - r.wait_s for r in records),
        "commit_ms": 1e3 * median(r.committed_s - r.copied_s for r in records),
    }


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
