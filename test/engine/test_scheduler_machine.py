"""Arrivals, launches, commits and endings in any order leave nothing owned twice or starved."""

from __future__ import annotations

import math

from harness import num_free_when_cleared
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from scheduler_bench import Bench

from photon_ros.engine.sequence import Sequence, SequenceStatus


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, launches, commits and endings in any order, with small and scarce sizes."""

    @initialize(
        rows=st.integers(1, 4),
        prefixes=st.integers(1, 3),
        pages=st.integers(3, 14),
        per_step=st.integers(1, 2),
    )
    def start(self, rows: int, prefixes: int, pages: int, per_step: int) -> None:
        self.bench = Bench(
            max_rows=rows,
            max_prefixes=prefixes,
            num_private_pages=pages,
            max_prefixes_per_step=per_step,
        )
        self.sequences: list[Sequence] = []

    @rule(
        tokens=st.integers(1, 9),
        prompt=st.integers(1, 4),
        frame=st.one_of(st.none(), st.integers(0, 4)),
        deadline_s=st.one_of(st.none(), st.integers(1, 5).map(float)),
    )
    def add(self, tokens: int, prompt: int, frame: int | None, deadline_s: float | None) -> None:
        self.sequences.append(self.bench.add(tokens, prompt, frame, deadline_s))

    @precondition(lambda self: len(self.bench.inflight) < 2)
    @rule()
    def launch(self) -> None:
        before = self.bench.waiting
        could_decode = [
            s for s in self.bench.scheduler.running if 1 <= s.num_launched < s.max_new_tokens
        ]
        plan = self.bench.launch()
        if plan is None:
            assert not [s for s in could_decode if s.num_inflight < 2]
            assert self.bench.inflight or not before or self.bench.scheduler.running
            return
        assert plan.sequences
        if plan.kind == "decode":
            assert not plan.new_prefixes
            assert set(plan.sequences) == {s for s in could_decode if s.num_inflight <= 2}
        else:
            count = len(plan.sequences)
            assert set(plan.sequences) == set(before[:count]), "the head was overtaken"
            assert len(plan.new_prefixes) <= self.bench.config.max_prefixes_per_step
            new = [prefix for prefix, _ in plan.new_prefixes]
            assert len(set(map(id, new))) == len(new), "a frame is encoded twice"
            for sequence in plan.sequences:
                positions = len(sequence.prompt_ids) + sequence.max_new_tokens - 1
                assert len(sequence.pages) == math.ceil(positions / 4)
                assert (sequence.prefix is None) == (sequence.source is None)
        extents = [-1 if s.prefix is None else s.prefix.number for s in plan.sequences]
        assert extents == sorted(extents)

    @precondition(lambda self: self.bench.inflight)
    @rule()
    def commit(self) -> None:
        self.bench.commit()

    @precondition(lambda self: self.sequences)
    @rule(which=st.integers(0, 99))
    def end(self, which: int) -> None:
        self.bench.end(self.sequences[which % len(self.sequences)])

    @invariant()
    def everything_owned_is_owned_once(self) -> None:
        bench = self.bench
        bench.pool.check()
        owners = [s for s in self.sequences if s.status is SequenceStatus.RUNNING]
        lanes = [s.lane for s in owners]
        assert len(set(lanes)) == len(lanes)
        assert len(bench.scheduler._free_lanes) + len(lanes) == bench.config.max_rows
        pages = [page for s in owners for page in s.pages]
        assert len(set(pages)) == len(pages)
        assert len(pages) + bench.pool.num_free_pages == bench.config.num_private_pages
        for sequence in self.sequences:
            is_released = sequence.status is SequenceStatus.RELEASED
            assert is_released == (sequence.finalized and sequence.inflight_refs == 0)
            if sequence.status is not SequenceStatus.RUNNING:
                assert (sequence.lane, sequence.pages, sequence.prefix) == (-1, [], None)

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        for _ in range(600):
            self.bench.step()
        assert all(s.status is SequenceStatus.RELEASED for s in self.sequences), "starved"
        assert self.bench.pool.num_free_pages == self.bench.config.num_private_pages
        assert num_free_when_cleared(self.bench.pool.prefixes) == self.bench.config.max_prefixes


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
