"""The pipeline refuses every transition that could let a buffer be used twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from photon_ros.engine.pipeline import Pipeline, PipelineError
from photon_ros.engine.step import Step

SLOTS = [cast(Any, SimpleNamespace(slot_id=number)) for number in range(3)]


def step_on(slot: int, *, is_held: bool = False) -> Step:
    step = Step("decode", [], is_held=is_held)
    step.slot = SLOTS[slot]
    return step


def refused(message: str) -> pytest.RaisesExc[PipelineError]:
    return pytest.raises(PipelineError, match=message)


def test_a_slot_is_not_launched_again_before_its_commit() -> None:
    pipeline = Pipeline(2)
    first, second = step_on(0), step_on(0)
    pipeline.launch(first)
    with refused("launch of a decode step of 0 rows on slot 0: the slot is in flight"):
        pipeline.launch(second)
    pipeline.sample(first)
    with refused("the slot is in flight"):
        pipeline.launch(second)
    pipeline.commit(first)
    pipeline.launch(second)


def test_a_step_is_not_committed_before_it_is_sampled() -> None:
    pipeline = Pipeline(2)
    step = step_on(1)
    with refused("commit of a .* on slot 1: it is not the oldest, or was not sampled"):
        pipeline.commit(step)
    pipeline.launch(step)
    with refused("commit of a .* on slot 1"):
        pipeline.commit(step)


def test_a_step_is_sampled_once_and_only_after_its_launch() -> None:
    pipeline = Pipeline(2)
    step = step_on(0)
    with refused("sampling of a .* on slot 0: it is not in flight, or was sampled before"):
        pipeline.sample(step)
    pipeline.launch(step)
    pipeline.sample(step)
    with refused("sampling of a .* on slot 0"):
        pipeline.sample(step)


def test_commits_are_first_in_first_out() -> None:
    pipeline = Pipeline(2)
    first, second = steps = step_on(1), step_on(0)
    for step in steps:
        pipeline.launch(step)
        pipeline.sample(step)
    with refused("commit of a .* on slot 0: it is not the oldest"):
        pipeline.commit(second)
    pipeline.commit(first)
    pipeline.commit(second)
    assert not pipeline.steps


def test_a_held_step_is_not_sampled_before_the_commit_it_waits_for() -> None:
    pipeline = Pipeline(2)
    first, held = step_on(0), step_on(1, is_held=True)
    pipeline.launch(first)
    pipeline.sample(first)
    pipeline.launch(held)
    with refused("sampling of a held .* on slot 1 before the commit it waits for"):
        pipeline.sample(held)
    pipeline.commit(first)
    pipeline.sample(held)


def test_a_step_without_held_rows_may_be_sampled_a_step_ahead() -> None:
    pipeline = Pipeline(2)
    first, second = steps = step_on(0), step_on(1)
    for step in steps:
        pipeline.launch(step)
        pipeline.sample(step)
    assert (pipeline.oldest, pipeline.newest) == (first, second)


def test_nothing_is_launched_while_a_step_is_not_sampled() -> None:
    pipeline = Pipeline(2)
    for step, free_slot in ((step_on(0), 1), (step_on(1), None)):
        pipeline.launch(step)
        assert pipeline.free_slot() is None
        pipeline.sample(step)
        assert pipeline.free_slot() == free_slot


def test_at_depth_one_there_is_one_slot() -> None:
    pipeline = Pipeline(1)
    step = step_on(0, is_held=True)
    pipeline.launch(step)
    pipeline.sample(step)
    assert pipeline.free_slot() is None
    pipeline.commit(step)
    assert pipeline.free_slot() == 0


def test_only_the_newest_step_can_be_abandoned() -> None:
    pipeline = Pipeline(2)
    first, second = step_on(0), step_on(1)
    pipeline.launch(first)
    pipeline.sample(first)
    pipeline.launch(second)
    with refused("abandon of a .* on slot 0: it is not the newest in flight"):
        pipeline.abandon(first)
    pipeline.abandon(second)
    pipeline.abandon(first)
    with refused("abandon of a .* on slot 0"):
        pipeline.abandon(first)


class PipelineMachine(RuleBasedStateMachine):
    """Any call in any order: what the model allows happens, everything else is refused."""

    @initialize(num_slots=st.integers(1, 3))
    def start(self, num_slots: int) -> None:
        self.pipeline = Pipeline(num_slots)
        self.num_slots = num_slots
        self.inflight: list[Step] = []  # oldest first
        self.sampled: list[Step] = []
        self.ended: list[Step] = []

    def attempt(self, is_allowed: bool, action: str, step: Step) -> bool:
        call = getattr(self.pipeline, action)
        if is_allowed:
            call(step)
            return True
        with pytest.raises(PipelineError, match=f"slot {step.slot.slot_id}"):
            call(step)
        return False

    def pick(self, which: int) -> Step:
        """Return a step that is in flight, is over, or was never launched."""
        known = [*self.inflight, *self.ended[-2:], step_on(which % self.num_slots)]
        return known[which % len(known)]

    @rule(slot=st.integers(0, 2), is_held=st.booleans())
    def launch(self, slot: int, is_held: bool) -> None:
        step = step_on(slot % self.num_slots, is_held=is_held)
        is_free = all(other.slot is not step.slot for other in self.inflight)
        if self.attempt(is_free, "launch", step):
            self.inflight.append(step)

    @rule(which=st.integers(0, 99))
    def sample(self, which: int) -> None:
        step = self.pick(which)
        is_due = step in self.inflight and step not in self.sampled
        is_allowed = is_due and (not step.is_held or step is self.inflight[0])
        if self.attempt(is_allowed, "sample", step):
            self.sampled.append(step)

    @rule(which=st.integers(0, 99))
    def commit(self, which: int) -> None:
        step = self.pick(which)
        is_allowed = self.inflight[:1] == [step] and step in self.sampled
        if self.attempt(is_allowed, "commit", step):
            self.ended.append(self.inflight.pop(0))

    @rule(which=st.integers(0, 99))
    def abandon(self, which: int) -> None:
        step = self.pick(which)
        if self.attempt(self.inflight[-1:] == [step], "abandon", step):
            self.ended.append(self.inflight.pop())

    @invariant()
    def it_agrees_with_the_model(self) -> None:
        steps = self.inflight
        assert list(self.pipeline.steps) == steps
        assert self.pipeline.oldest is (steps[0] if steps else None)
        assert self.pipeline.newest is (steps[-1] if steps else None)
        free = self.pipeline.free_slot()
        if not all(step in self.sampled for step in steps) or len(steps) == self.num_slots:
            assert free is None
        else:
            assert free is not None
            assert free not in [step.slot.slot_id for step in steps]


TestPipelineMachine = PipelineMachine.TestCase
TestPipelineMachine.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
