"""The pipeline refuses every transition that could let a buffer be used twice."""

from __future__ import annotations

import re

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from photon_ros.engine.pipeline import Pipeline, PipelineError


def refused(message: str) -> pytest.RaisesExc[PipelineError]:
    return pytest.raises(PipelineError, match=re.escape(message))


def test_a_slot_is_not_launched_again_before_its_commit() -> None:
    pipeline = Pipeline(2)
    pipeline.launch(0)
    with refused("launch on slot 0: it is launched, must be free"):
        pipeline.launch(0)
    pipeline.sample(0, held=False)
    with refused("launch on slot 0: it is sampled, must be free"):
        pipeline.launch(0)
    pipeline.commit(0)
    pipeline.launch(0)


def test_a_step_is_not_committed_before_it_is_sampled() -> None:
    pipeline = Pipeline(2)
    with refused("commit on slot 1: it is free, must be sampled"):
        pipeline.commit(1)
    pipeline.launch(1)
    with refused("commit on slot 1: it is launched, must be sampled"):
        pipeline.commit(1)


def test_a_step_is_sampled_once_and_only_after_its_launch() -> None:
    pipeline = Pipeline(2)
    with refused("sample on slot 0: it is free, must be launched"):
        pipeline.sample(0, held=False)
    pipeline.launch(0)
    pipeline.sample(0, held=False)
    with refused("sample on slot 0: it is sampled, must be launched"):
        pipeline.sample(0, held=False)


def test_commits_are_first_in_first_out() -> None:
    pipeline = Pipeline(2)
    for slot in (1, 0):
        pipeline.launch(slot)
        pipeline.sample(slot, held=False)
    with refused("commit of slot 0 before that of slot 1"):
        pipeline.commit(0)
    pipeline.commit(1)
    pipeline.commit(0)
    assert pipeline.num_inflight == 0


def test_a_held_step_is_not_sampled_before_the_commit_it_waits_for() -> None:
    pipeline = Pipeline(2)
    pipeline.launch(0)
    pipeline.sample(0, held=False)
    pipeline.launch(1)
    with refused("held step on slot 1 sampled before the commit it waits for"):
        pipeline.sample(1, held=True)
    pipeline.commit(0)
    pipeline.sample(1, held=True)


def test_a_step_without_held_rows_may_be_sampled_a_step_ahead() -> None:
    pipeline = Pipeline(2)
    pipeline.launch(0)
    pipeline.sample(0, held=False)
    pipeline.launch(1)
    pipeline.sample(1, held=False)
    assert (pipeline.oldest, pipeline.newest) == (0, 1)


def test_nothing_is_launched_while_a_step_is_not_sampled() -> None:
    pipeline = Pipeline(2)
    pipeline.launch(0)
    assert pipeline.free_slot() is None
    pipeline.sample(0, held=False)
    assert pipeline.free_slot() == 1
    pipeline.launch(1)
    pipeline.sample(1, held=False)
    assert pipeline.free_slot() is None


def test_at_depth_one_there_is_one_slot() -> None:
    pipeline = Pipeline(1)
    pipeline.launch(0)
    pipeline.sample(0, held=True)
    assert pipeline.free_slot() is None
    pipeline.commit(0)
    assert pipeline.free_slot() == 0


def test_only_the_newest_step_can_be_abandoned() -> None:
    pipeline = Pipeline(2)
    pipeline.launch(0)
    pipeline.sample(0, held=False)
    pipeline.launch(1)
    with refused("abandon of slot 0, which is not the newest in flight"):
        pipeline.abandon(0)
    pipeline.abandon(1)
    pipeline.abandon(0)
    with refused("abandon of slot 0, which is not the newest in flight"):
        pipeline.abandon(0)


class PipelineMachine(RuleBasedStateMachine):
    """Any call in any order: what the model allows happens, everything else is refused."""

    @initialize(num_slots=st.integers(1, 3))
    def start(self, num_slots: int) -> None:
        self.pipeline = Pipeline(num_slots)
        self.num_slots = num_slots
        self.inflight: list[tuple[int, bool]] = []  # (slot, is sampled), oldest first

    def attempt(self, is_allowed: bool, action: str, slot: int, **arguments: bool) -> bool:
        call = getattr(self.pipeline, action)
        if is_allowed:
            call(slot, **arguments)
            return True
        with pytest.raises(PipelineError, match=f"slot {slot}"):
            call(slot, **arguments)
        return False

    def place(self, slot: int) -> int | None:
        return next((i for i, (s, _) in enumerate(self.inflight) if s == slot), None)

    @rule(slot=st.integers(0, 2))
    def launch(self, slot: int) -> None:
        slot %= self.num_slots
        if self.attempt(self.place(slot) is None, "launch", slot):
            self.inflight.append((slot, False))

    @rule(slot=st.integers(0, 2), held=st.booleans())
    def sample(self, slot: int, held: bool) -> None:
        slot %= self.num_slots
        place = self.place(slot)
        is_allowed = place is not None and not self.inflight[place][1] and (not held or place == 0)
        if self.attempt(is_allowed, "sample", slot, held=held):
            assert place is not None
            self.inflight[place] = (slot, True)

    @rule(slot=st.integers(0, 2))
    def commit(self, slot: int) -> None:
        slot %= self.num_slots
        is_allowed = bool(self.inflight) and self.inflight[0] == (slot, True)
        if self.attempt(is_allowed, "commit", slot):
            self.inflight.pop(0)

    @rule(slot=st.integers(0, 2))
    def abandon(self, slot: int) -> None:
        slot %= self.num_slots
        is_allowed = bool(self.inflight) and self.inflight[-1][0] == slot
        if self.attempt(is_allowed, "abandon", slot):
            self.inflight.pop()

    @invariant()
    def it_agrees_with_the_model(self) -> None:
        slots = [slot for slot, _ in self.inflight]
        assert self.pipeline.num_inflight == len(slots)
        assert self.pipeline.oldest == (slots[0] if slots else None)
        assert self.pipeline.newest == (slots[-1] if slots else None)
        free = self.pipeline.free_slot()
        if not all(is_sampled for _, is_sampled in self.inflight) or len(slots) == self.num_slots:
            assert free is None
        else:
            assert free is not None
            assert free not in slots


TestPipelineMachine = PipelineMachine.TestCase
TestPipelineMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
