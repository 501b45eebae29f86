"""In which precision this processor multiplies matrices faster."""

from __future__ import annotations

import time

import torch

# The shape of the products that training does most: patches of a batch through the first
# matrix of an MLP.
_ROWS, _INNER, _COLUMNS = 1024, 128, 512
_REPEATS = 5


def faster_in_bf16() -> bool:
    """Return True if bfloat16 products take less time than float32 ones, measured now.

    Processors without bfloat16 instructions are slower in it by a factor of fifty.
    """
    return _best_s(torch.bfloat16) < _best_s(torch.float32)


def _best_s(dtype: torch.dtype) -> float:
    """Return the least time of a product in ``dtype``, seconds."""
    a = torch.ones(_ROWS, _INNER, dtype=dtype)
    b = torch.ones(_INNER, _COLUMNS, dtype=dtype)
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - started)
    return min(times)
