"""The performance model, computed for named GPUs; nothing in this file was measured.

T_pipe = max(G, b), T_block = G + b, speed-up = T_block / T_pipe * (1 - z), where G is the time of
a forward (bytes read / memory bandwidth), b the bookkeeping of a step and z the share of zombie
rows. Bandwidths are the makers' published figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

GPUS_GB_PER_S = {"B200": 8000.0, "H100 SXM": 3350.0, "RTX 3090": 936.0, "Jetson AGX Orin": 204.8}

# moondream2 in bfloat16: weights a decode step reads, and keys and values of one position.
WEIGHT_BYTES = 2.63e9
KV_BYTES_PER_POSITION = 196_608
CONTEXT = 740
EFFICIENCY = 0.7  # of the published bandwidth, in practice
BOOKKEEPING_MS = 0.5
TOKENS = 110

CASES = (("B200", 32, 0.35), ("RTX 3090", 1, 0.12))
"""GPU, rows and the speed-up published for the original at that load."""


@dataclass(frozen=True, slots=True)
class ModelledRow:
    """A computed case; ``speed_up`` is pipelined over blocking, minus 1."""

    gpu: str
    batch_rows: int
    forward_ms: float
    bookkeeping_ms: float
    zombie_share: float
    speed_up: float
    published: float | None
    is_measured: bool = False


def compute_case(gpu: str, rows: int, published: float | None = None) -> ModelledRow:
    """Apply the model to one GPU and load."""
    bytes_read = WEIGHT_BYTES + rows * CONTEXT * KV_BYTES_PER_POSITION
    forward_ms = 1e3 * bytes_read / (GPUS_GB_PER_S[gpu] * 1e9 * EFFICIENCY)
    zombie_share = 1 / TOKENS if rows == 1 else 0.0
    ratio = (forward_ms + BOOKKEEPING_MS) / max(forward_ms, BOOKKEEPING_MS)
    return ModelledRow(
        gpu=gpu,
        batch_rows=rows,
        forward_ms=forward_ms,
        bookkeeping_ms=BOOKKEEPING_MS,
        zombie_share=zombie_share,
        speed_up=ratio * (1 - zombie_share) - 1,
        published=published,
    )


def measure(progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Return the computed cases under ``rows``, the published ones first."""
    progress("computing")
    rows = [compute_case(*case) for case in CASES]
    named = {(row.gpu, row.batch_rows) for row in rows}
    rows += [
        compute_case(gpu, count)
        for gpu in GPUS_GB_PER_S
        for count in (1, 32)
        if (gpu, count) not in named
    ]
    return {"note": "computed, not measured", "rows": [asdict(row) for row in rows]}
