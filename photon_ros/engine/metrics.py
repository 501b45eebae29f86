"""EngineStats: what an engine has done so far, as plain counters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was built; times in seconds on the steady clock.

    ``num_zombie_rows`` are rows computed for sequences that had already ended;
    ``wait_s`` is the time the host waited for copies in commit.
    """

    num_prefill_steps: int = 0
    num_decode_steps: int = 0
    num_decode_rows: int = 0
    num_zombie_rows: int = 0
    num_prefixes: int = 0
    num_tokens: int = 0
    num_held_steps: int = 0
    num_faults: int = 0
    wait_s: float = 0.0
