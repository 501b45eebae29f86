"""What an engine has done so far: counters, and a record of each of its latest steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_RECORDS = 4096


@dataclass(slots=True)
class StepRecord:
    """One step; times in seconds on the ``time.monotonic`` clock.

    ``launch_s`` to ``launched_s`` the host queued the forward, until ``sampled_s`` the sampling;
    from ``wait_s`` to ``copied_s`` it waited for the step's copy, until ``committed_s`` it
    advanced the sequences.
    """

    kind: str
    slot_id: int
    num_rows: int
    num_zombies: int = 0
    launch_s: float = 0.0
    launched_s: float = 0.0
    sample_s: float = 0.0
    sampled_s: float = 0.0
    wait_s: float = 0.0
    copied_s: float = 0.0
    committed_s: float = 0.0

    @property
    def bookkeeping_s(self) -> float:
        """Host time of the step without the wait for the device."""
        return (
            (self.launched_s - self.launch_s)
            + (self.sampled_s - self.sample_s)
            + (self.committed_s - self.copied_s)
        )


class EngineLoad(NamedTuple):
    """How full the engine is: requests running and waiting, private KV pages owned and there."""

    num_running: int
    num_waiting: int
    num_pages_used: int
    num_pages: int


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was built.

    ``num_zombie_rows`` are rows computed for sequences that had already ended; ``records`` are
    the latest committed steps, oldest first.
    """

    num_prefill_steps: int = 0
    num_decode_steps: int = 0
    num_decode_rows: int = 0
    num_zombie_rows: int = 0
    num_prefixes: int = 0
    num_tokens: int = 0
    num_held_steps: int = 0
    num_faults: int = 0
    records: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=MAX_RECORDS))

    @property
    def occupancy(self) -> float:
        """Mean rows of a decode step."""
        return self.num_decode_rows / max(1, self.num_decode_steps)
