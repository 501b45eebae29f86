"""Scheduler: who waits, who is admitted, and what the next step computes. No torch.

Admission is in deadline order, then in order of arrival. A sequence is admitted whole: a lane,
every private page it can ever need, and a hold on its frame's prefix. So nothing admitted can
run out of pages. The head of the queue is never overtaken, so nothing starves.

Prefill and decode steps alternate while there is work for both: a burst of new requests does
not stop running answers, and running answers do not keep new requests waiting. A decode whose
rows are all in flight may be of zombies alone, so there a waiting prefill goes first.
"""

from __future__ import annotations

import bisect
import itertools
import math

from photon_ros.core.errors import CapacityError
from photon_ros.core.result import EndReason
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.metrics import EngineLoad
from photon_ros.engine.page_pool import PagePool
from photon_ros.engine.sequence import Sequence, SequenceStatus
from photon_ros.engine.shared_places import SharedPlaces
from photon_ros.engine.step import Step, StepKind


class Scheduler:
    """Waiting and running sequences over one page pool."""

    def __init__(
        self, pool: PagePool, config: EngineConfig, *, max_context: int, prefix_len: int
    ) -> None:
        self._pool = pool
        self._config = config
        self._max_context = max_context
        self._prefix_len = prefix_len
        self._free_lanes = list(range(config.max_rows - 1, -1, -1))
        self.adapters = SharedPlaces(range(1, config.num_lora_slots + 1))  # 0 is none
        self._arrivals = itertools.count()
        self._waiting: list[tuple[float, int, Sequence]] = []
        self.running: list[Sequence] = []  # in row order: one prefix's rows are neighbours
        self._resuming: list[Sequence] = []  # running ones whose next phase is to be prefilled
        self._last_kind: StepKind = "decode"
        self.is_paused = False  # nothing is launched; what is in flight can still be committed

    @property
    def num_waiting(self) -> int:
        """Sequences not yet admitted."""
        return len(self._waiting)

    @property
    def load(self) -> EngineLoad:
        """How full the engine is at this moment; may be read from any thread."""
        pool = self._pool
        num_used = pool.num_private_pages - pool.num_free_pages
        return EngineLoad(len(self.running), len(self._waiting), num_used, pool.num_private_pages)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence; raises CapacityError when it can never be admitted."""
        room = self._room_of(sequence)
        self._cap_length(sequence, room)
        # The last sampled token is never fed, so it needs no position.
        positions = len(sequence.prompt_ids) + sequence.max_new_tokens - 1
        positions = min(positions + sequence.state.later_positions, room)
        needed = sequence.num_pages = -(-positions // self._config.page_size)
        if needed > self._pool.num_private_pages:
            raise CapacityError(
                f"the request needs {needed} KV pages of {self._config.page_size} positions; "
                f"the cache holds {self._pool.num_private_pages}"
            )
        sequence.status = SequenceStatus.WAITING
        deadline_s = math.inf if sequence.deadline_s is None else sequence.deadline_s
        bisect.insort(
            self._waiting, (deadline_s, next(self._arrivals), sequence), key=lambda item: item[:2]
        )

    def resume(self, sequence: Sequence) -> None:
        """Queue the prefill of a running sequence's next phase; nothing may name it any more.

        Raises CapacityError when the phase's first ids do not fit the context, or the pages
        that the sequence was admitted with.
        """
        num_owned = len(sequence.pages) * self._config.page_size
        self._cap_length(sequence, min(self._room_of(sequence), num_owned))
        sequence.is_between_phases = False
        self._resuming.append(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence out of the queue or of the running set; it keeps what it owns."""
        if sequence.status is SequenceStatus.WAITING:
            self._waiting = [item for item in self._waiting if item[2] is not sequence]
        elif sequence in self.running:
            self.running.remove(sequence)
            if sequence in self._resuming:
                self._resuming.remove(sequence)

    def expired(self, now_s: float) -> list[Sequence]:
        """Return waiting and running sequences whose deadline has passed."""
        late = [sequence for deadline_s, _, sequence in self._waiting if deadline_s <= now_s]
        late += [s for s in self.running if s.deadline_s is not None and s.deadline_s <= now_s]
        return late

    def plan(self) -> Step | None:
        """Return the next step to launch, admitting its sequences; None when there is none."""
        if self.is_paused:
            return None
        limit = self._config.max_inflight_steps
        decode = [
            sequence
            for sequence in self.running
            if 1 <= sequence.num_launched < sequence.max_new_tokens
            and sequence.num_inflight < limit
        ]
        is_decode_due = self._last_kind == "prefill" and not all(s.num_inflight for s in decode)
        step = None
        if (self._waiting or self._resuming) and not is_decode_due:
            step = self._plan_prefill()
        if step is None and decode:
            step = Step("decode", decode)
        if step is not None:
            self._last_kind = step.kind
        return step

    def forget_prefix(self, sequence: Sequence) -> None:
        """Let no later request find the frame that a sequence reads; it may be garbage."""
        if sequence.prefix is not None:
            self._pool.prefixes.drop(sequence.prefix)

    def release(self, sequence: Sequence) -> None:
        """Take back everything a finalized sequence owns, exactly once."""
        if sequence.status is SequenceStatus.RUNNING:
            self._pool.give_pages(sequence.pages)
            if sequence.prefix is not None:
                self._pool.prefixes.let_go(sequence.prefix)
            if sequence.adapter_place is not None:
                self.adapters.let_go(sequence.adapter_place)
            self._free_lanes.append(sequence.lane)
        sequence.status = SequenceStatus.RELEASED
        sequence.pages = []
        sequence.prefix = sequence.adapter_place = None
        sequence.lane = -1

    def _plan_prefill(self) -> Step | None:
        step = Step("prefill", self._resuming)
        self._resuming = []
        while self._waiting:
            sequence = self._waiting[0][2]
            source = sequence.source
            is_new = source is not None and not self._pool.prefixes.has(source.key)
            if is_new and len(step.new_prefixes) == self._config.max_prefixes_per_step:
                break
            if not self._fits(sequence):
                break
            del self._waiting[0]
            self._admit(sequence, step)
        step.sequences.sort(key=_row_order)
        return step if step.sequences else None

    def _fits(self, sequence: Sequence) -> bool:
        return (
            bool(self._free_lanes)
            and sequence.num_pages <= self._pool.num_free_pages
            and (sequence.source is None or self._pool.prefixes.can_hold(sequence.source.key))
            and (sequence.adapter is None or self.adapters.can_hold(sequence.adapter))
        )

    def _admit(self, sequence: Sequence, step: Step) -> None:
        """Give a sequence all it needs, and a row in a step that also fills what is new."""
        sequence.lane = self._free_lanes.pop()
        sequence.pages = self._pool.take_pages(sequence.num_pages)
        if (adapter := sequence.adapter) is not None:
            is_new = not self.adapters.has(adapter)
            sequence.adapter_place = self.adapters.hold(adapter)
            if is_new:
                step.new_adapters.append((sequence.adapter_place, adapter))
        if (source := sequence.source) is not None:
            is_new = not self._pool.prefixes.has(source.key)
            sequence.prefix = self._pool.prefixes.hold(source.key)
            if is_new:
                sequence.prefix.lora_slot = sequence.lora_slot
                step.new_prefixes.append((sequence.prefix, source))
        sequence.status = SequenceStatus.RUNNING
        step.sequences.append(sequence)
        bisect.insort(self.running, sequence, key=_row_order)

    def _room_of(self, sequence: Sequence) -> int:
        """Return how many private positions the context leaves a sequence."""
        return self._max_context - (0 if sequence.source is None else self._prefix_len)

    def _cap_length(self, sequence: Sequence, room: int) -> None:
        """Set how many tokens the current phase may have in ``room``, and what stops it there."""
        prompt_end = sequence.prompt_start + len(sequence.prompt_ids)
        if prompt_end > room:
            raise CapacityError(
                f"the prompt needs {prompt_end} positions; beside the frame is room for {room}"
            )
        # Token n is sampled after n - 1 decode steps, the last at position prompt_end + n - 2.
        cap = room - prompt_end + 1
        sequence.max_new_tokens = sequence.state.max_new_tokens
        sequence.length_reason = sequence.state.length_reason
        if cap < sequence.max_new_tokens:
            sequence.max_new_tokens, sequence.length_reason = cap, EndReason.MAX_CONTEXT


def _row_order(sequence: Sequence) -> tuple[int, int]:
    return (-1 if sequence.prefix is None else sequence.prefix.number, sequence.lane)
