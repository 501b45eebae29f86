"""A scheduler, its pool, and an obvious stand-in for the engine around them."""

from __future__ import annotations

from grammars import TextGrammar
from hash_model import crops_of

from photon_ros.engine.config import EngineConfig
from photon_ros.engine.page_pool import PagePool
from photon_ros.engine.scheduler import Scheduler
from photon_ros.engine.sequence import PrefixSource, Sequence
from photon_ros.engine.step import Step

PREFIX_LEN = 6
MAX_CONTEXT = 60


class Bench:
    """A scheduler, its pool, and an obvious stand-in for the engine around them."""

    def __init__(self, max_context: int = MAX_CONTEXT, **sizes: int) -> None:
        defaults = {"max_rows": 4, "max_prefixes": 2, "page_size": 4, "num_private_pages": 20}
        self.config = EngineConfig(**{**defaults, **sizes})
        self.pool = PagePool(
            num_private_pages=self.config.num_private_pages,
            max_prefixes=self.config.max_prefixes,
            pages_per_prefix=2,
        )
        self.scheduler = Scheduler(
            self.pool, self.config, max_context=max_context, prefix_len=PREFIX_LEN
        )
        self.inflight: list[Step] = []

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences not yet admitted, first to be admitted first."""
        return [sequence for _, _, sequence in self.scheduler._waiting]

    def add(
        self,
        num_tokens: int = 5,
        prompt_len: int = 2,
        frame: int | None = None,
        deadline_s: float | None = None,
    ) -> Sequence:
        source = None if frame is None else PrefixSource(frame, crops_of(frame))
        sequence = Sequence(
            tuple(range(1, prompt_len + 1)),
            TextGrammar(num_tokens),
            lambda *_: None,
            source=source,
            deadline_s=deadline_s,
        )
        self.scheduler.add(sequence)
        return sequence

    def launch(self) -> Step | None:
        plan = self.scheduler.plan()
        if plan is not None:
            for sequence in plan.sequences:
                sequence.inflight_refs += 1
                sequence.num_launched += 1
            for prefix, _ in plan.new_prefixes:
                prefix.is_launched = True
            self.inflight.append(plan)
        return plan

    def commit(self) -> Step:
        plan = self.inflight.pop(0)
        for sequence in plan.sequences:
            sequence.inflight_refs -= 1
            sequence.num_committed += not sequence.finalized
            if sequence.num_committed >= sequence.max_new_tokens:
                self.end(sequence)
            elif sequence.finalized and sequence.inflight_refs == 0:
                self.scheduler.release(sequence)
        return plan

    def end(self, sequence: Sequence) -> None:
        if sequence.finalized:
            return
        sequence.finalized = True
        self.scheduler.withdraw(sequence)
        if sequence.inflight_refs == 0:
            self.scheduler.release(sequence)

    def step(self) -> str | None:
        """Launch a step, keep at most one in flight; return its kind."""
        plan = self.launch()
        while len(self.inflight) > (plan is not None):
            self.commit()
        return None if plan is None else plan.kind
