"""What an engine has done so far: counters, and records of its latest steps and requests."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from photon_ros.core.percentiles import Percentiles, percentiles_by_stage

MAX_RECORDS = 4096


@dataclass(slots=True)
class StepRecord:
    """One step; times in seconds on the ``time.monotonic`` clock.

    ``launch_s`` to ``launched_s`` the host queued the forward, until ``sampled_s`` the sampling;
    from ``wait_s`` to ``copied_s`` it waited for the step's copy, until ``committed_s`` it
    advanced the sequences. For ``idle_s`` before its launch the device had nothing to do
    although there was work; ``is_last``: after this step there was none.
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
    idle_s: float = 0.0
    is_last: bool = False

    def parts_ms(self) -> dict[str, float]:
        """Return what the step took; ``bookkeeping`` is the host's part, without the wait.

        Where a device runs all at once, its work is the host's.
        """
        forward_s, sampling_s = self.launched_s - self.launch_s, self.sampled_s - self.sample_s
        commit_s = self.committed_s - self.copied_s
        return {
            "forward": 1e3 * forward_s,
            "sampling": 1e3 * sampling_s,
            "wait": 1e3 * (self.copied_s - self.wait_s),
            "commit": 1e3 * commit_s,
            "bookkeeping": 1e3 * (forward_s + sampling_s + commit_s),
            "idle": 1e3 * self.idle_s,
        }


@dataclass(slots=True)
class RequestClock:
    """Times of one request on the ``time.monotonic`` clock, in seconds, and its steps' rows.

    It starts when the sequence is made; what it waits for the engine's thread is queueing, too.
    """

    submitted_s: float = field(default_factory=time.monotonic)
    launched_s: float = 0.0
    first_token_s: float = 0.0
    finalized_s: float = 0.0
    num_decode_steps: int = 0
    num_decode_rows: int = 0  # summed over its decode steps

    def stages_ms(self) -> dict[str, float]:
        """Return what a request that got a token took."""
        return {
            "queue": 1e3 * (self.launched_s - self.submitted_s),
            "prefill": 1e3 * (self.first_token_s - self.launched_s),
            "decode": 1e3 * (self.finalized_s - self.first_token_s),
            "time_to_first_token": 1e3 * (self.first_token_s - self.submitted_s),
        }


class EngineLoad(NamedTuple):
    """How full the engine is: requests running and waiting, private KV pages owned and there."""

    num_running: int
    num_waiting: int
    num_pages_used: int
    num_pages: int


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was built, and records of the latest :data:`MAX_RECORDS`.

    ``num_zombie_rows`` are rows computed for sequences that had already ended; ``records`` are
    committed steps and ``requests`` those that ended with a token at least, oldest first.
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
    requests: deque[RequestClock] = field(default_factory=lambda: deque(maxlen=MAX_RECORDS))

    def step_ms(self, kind: str) -> dict[str, Percentiles]:
        """Return percentiles of the parts of the latest steps of a kind; empty without any."""
        # A copy first, as in request_ms: the engine's thread may append meanwhile.
        return percentiles_by_stage(r.parts_ms() for r in self.records.copy() if r.kind == kind)

    def request_ms(self) -> dict[str, Percentiles]:
        """Return percentiles of the stages of the latest requests; empty without any."""
        return percentiles_by_stage(clock.stages_ms() for clock in self.requests.copy())

    def count_launch(self, record: StepRecord, num_prefixes: int, *, is_held: bool) -> None:
        """Count a step that was launched."""
        if record.kind == "prefill":
            self.num_prefill_steps += 1
            self.num_prefixes += num_prefixes
        else:
            self.num_decode_steps += 1
            self.num_decode_rows += record.num_rows
        self.num_held_steps += is_held

    def count_commit(self, record: StepRecord) -> None:
        """Count a step that was committed, and keep its record."""
        if self.records and not self.records[-1].is_last:
            record.idle_s = max(0.0, record.launched_s - self.records[-1].copied_s)
        self.num_zombie_rows += record.num_zombies
        self.records.append(record)
