"""Cancel, deadline and fault in every state: one outcome each, and nothing is kept."""

from __future__ import annotations

import time

import pytest
from grammars import CycleGrammar, ParityGrammar, TextGrammar, TwoPhaseGrammar
from harness import SMALL, Harness, key_of
from hash_model import HashModel, expected_tokens
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from photon_ros.core.errors import (
    CapacityError,
    DeadlineExceeded,
    EngineFault,
    RequestCancelled,
)
from photon_ros.core.result import EndReason
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.engine.sequence import Sequence, SequenceStatus

CANCELLED = RequestCancelled("cancelled by the test")


class FaultyGrammar(TextGrammar):
    """Raises at a chosen token, from a chosen method."""

    def __init__(self, at_token: int, method: str) -> None:
        super().__init__(max_new_tokens=30, forbidden=(0,))
        self.at_token, self.method = at_token, method

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        if self.method == "constraint" and len(self.tokens) + num_ahead >= self.at_token:
            raise ValueError("planted in constraint_ahead")
        return super().constraint_ahead(num_ahead)

    def advance(self, token: SampledToken) -> bool:
        if self.method == "advance" and len(self.tokens) >= self.at_token:
            raise ValueError("planted in advance")
        return super().advance(token)


def neighbour(harness: Harness, prompt: tuple[int, ...] = (8, 8)) -> CycleGrammar:
    """Submit a request that must not notice what happens to the others."""
    state = CycleGrammar(True, 5)
    harness.submit(state, prompt=prompt, frame=1)
    return state


def assert_undisturbed(state: CycleGrammar, prompt: tuple[int, ...] = (8, 8)) -> None:
    assert key_of(state.tokens) == key_of(expected_tokens(prompt, 1, CycleGrammar(True, 5)))


@pytest.mark.parametrize("num_ticks", range(7))
@pytest.mark.parametrize("pipelined", [True, False])
def test_cancel_in_any_state_ends_once_and_disturbs_nobody(pipelined: bool, num_ticks: int) -> None:
    harness = Harness(seed=num_ticks, config=EngineConfig(**SMALL, pipelined=pipelined))
    state = neighbour(harness)
    victim = harness.submit(TextGrammar(40, forbidden=(0,)), frame=1)
    for _ in range(num_ticks):
        harness.tick()
    harness.engine.cancel(victim, CANCELLED)
    harness.engine.cancel(victim, CANCELLED)
    harness.check()
    harness.run()
    assert harness.outcomes[victim].error is CANCELLED
    assert_undisturbed(state)


def test_a_cancelled_sequence_keeps_its_pages_until_its_last_step_commits() -> None:
    harness = Harness(eagerness=0.0)
    victim = harness.submit(TextGrammar(40, forbidden=(0,)))
    harness.tick()
    harness.tick()
    harness.engine.cancel(victim, CANCELLED)
    assert victim.finalized
    assert victim.inflight_refs
    assert victim.pages
    harness.tick()
    assert victim.status is SequenceStatus.RELEASED
    harness.run()


def test_a_request_past_its_deadline_is_shed_before_it_costs_a_forward() -> None:
    harness = Harness()
    late = harness.submit(CycleGrammar(), deadline_s=time.monotonic() - 0.01)
    harness.run()
    assert isinstance(harness.outcomes[late].error, DeadlineExceeded)
    assert "waiting" in str(harness.outcomes[late].error)
    assert not harness.outcomes[late].error.has_started
    assert harness.model.num_encoded_frames == 0
    assert harness.engine.stats.num_prefill_steps == 0


def test_a_deadline_that_passes_while_running_ends_the_request() -> None:
    harness = Harness()
    late = harness.submit(TextGrammar(100, forbidden=(0,)), deadline_s=time.monotonic() + 0.03)
    while late not in harness.outcomes:
        harness.tick()
    harness.run()
    assert isinstance(harness.outcomes[late].error, DeadlineExceeded)
    assert "running" in str(harness.outcomes[late].error)
    assert harness.outcomes[late].error.has_started


def test_earlier_deadlines_are_admitted_first() -> None:
    harness = Harness(config=EngineConfig(**{**SMALL, "max_rows": 1}))
    far = time.monotonic() + 1000
    order: list[Sequence] = []
    sequences = [
        harness.submit(
            CycleGrammar(True, 1), deadline_s=deadline_s, on_done=lambda s, _: order.append(s)
        )
        for deadline_s in (None, far + 2, far + 1, None, far)
    ]
    harness.run()
    assert order == [sequences[i] for i in (4, 2, 1, 0, 3)]


@pytest.mark.parametrize("method", ["encode_frames", "decode", "vocab_logits"])
@pytest.mark.parametrize("after", range(5))
@pytest.mark.parametrize("eagerness", [0.0, 0.5])
def test_a_fault_in_the_model_fails_its_requests_and_the_engine_goes_on(
    method: str, after: int, eagerness: float
) -> None:
    harness = Harness(seed=after, eagerness=eagerness, model=HashModel({method: after}))
    for number in range(6):
        harness.submit(TextGrammar(6), prompt=(number + 1,), frame=number % 3)
    harness.run()
    errors = [o.error for o in harness.outcomes.values() if o.error is not None]
    assert all(isinstance(error, EngineFault) for error in errors)
    assert all("planted fault" in str(error) for error in errors)
    harness.model.fail_on.clear()
    state = neighbour(harness)
    harness.run()
    assert_undisturbed(state)


@pytest.mark.parametrize("method", ["constraint", "advance"])
@pytest.mark.parametrize("at_token", [0, 1, 4])
@pytest.mark.parametrize("hold", [True, False])
def test_a_grammar_that_raises_fails_alone(method: str, at_token: int, hold: bool) -> None:
    harness = Harness(config=EngineConfig(**SMALL, hold_constrained=hold))
    state = neighbour(harness)
    faulty = harness.submit(FaultyGrammar(at_token, method), frame=1)
    harness.run()
    error = harness.outcomes[faulty].error
    assert isinstance(error, EngineFault)
    assert "planted in" in str(error)
    assert_undisturbed(state)


def test_a_callback_that_raises_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    def broken(sequence: Sequence, outcome: object) -> None:
        raise RuntimeError("planted in a callback")

    harness = Harness()
    harness.submit(CycleGrammar(True, 2), on_done=broken)
    state = neighbour(harness)
    harness.run()
    assert_undisturbed(state)
    assert "callback" in caplog.text


def test_a_request_that_can_never_fit_says_what_it_needs_and_what_there_is() -> None:
    harness = Harness(config=EngineConfig(**{**SMALL, "num_private_pages": 3}))
    with pytest.raises(CapacityError, match=r"needs 10 KV pages of 4 positions.*holds 3"):
        harness.submit(TextGrammar(40), prompt=(1,))
    with pytest.raises(CapacityError, match=r"needs 300 positions; .* room for 190"):
        harness.submit(TextGrammar(40), prompt=(1,) * 300)
    assert not harness.engine.has_work


def test_the_end_of_the_context_ends_an_answer_and_says_so() -> None:
    harness = Harness(config=EngineConfig(**{**SMALL, "num_private_pages": 60}))
    state = TextGrammar(500, forbidden=(0,))
    sequence = harness.submit(state, prompt=(3,) * 150, frame=0)
    harness.run()
    assert harness.outcomes[sequence].by_length is EndReason.MAX_CONTEXT
    assert len(state.tokens) == 200 - (10 + 150) + 1
    expected = expected_tokens((3,) * 150, 0, TextGrammar(500, forbidden=(0,)))
    assert key_of(state.tokens) == key_of(expected)


class EngineMachine(RuleBasedStateMachine):
    """Anything users, clocks and faults can do, in any order, with all invariants each tick."""

    def __init__(self) -> None:
        super().__init__()
        self.harness: Harness | None = None
        self.number = 0
        self.checked: list[tuple[Sequence, CycleGrammar | TextGrammar | ParityGrammar, object]] = []

    @precondition(lambda self: self.harness is None)
    @rule(
        seed=st.integers(0, 999),
        eagerness=st.sampled_from([0.0, 0.4, 0.9]),
        pipelined=st.booleans(),
        hold=st.booleans(),
        pages=st.sampled_from([12, 40]),
        is_synchronous=st.booleans(),
    )
    def start(
        self,
        seed: int,
        eagerness: float,
        pipelined: bool,
        hold: bool,
        pages: int,
        is_synchronous: bool,
    ) -> None:
        sizes = {**SMALL, "num_private_pages": pages}
        config = EngineConfig(**sizes, pipelined=pipelined, hold_constrained=hold)
        self.harness = Harness(seed, eagerness, config, is_synchronous=is_synchronous)

    @precondition(lambda self: self.harness is not None)
    @rule(
        kind=st.sampled_from(["cycle", "text", "parity", "phases"]),
        size=st.integers(1, 8),
        frame=st.one_of(st.none(), st.integers(0, 4)),
    )
    def submit(self, kind: str, size: int, frame: int | None) -> None:
        make = {
            "cycle": lambda: CycleGrammar(size % 2 == 0, size),
            "text": lambda: TextGrammar(size + 3),
            "parity": lambda: ParityGrammar(size + 1),
            "phases": lambda: TwoPhaseGrammar(size, size),
        }[kind]
        self.number += 1
        prompt = (self.number % 23 + 1, size)
        state = make()
        sequence = self.harness.submit(state, prompt=prompt, frame=frame)
        self.checked.append((sequence, state, (prompt, frame, make)))

    @precondition(lambda self: self.harness is not None)
    @rule(count=st.integers(1, 4))
    def tick(self, count: int) -> None:
        for _ in range(count):
            self.harness.tick()

    @precondition(lambda self: self.harness is not None and self.harness.sequences)
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        sequences = self.harness.sequences
        self.harness.engine.cancel(sequences[which % len(sequences)], CANCELLED)

    @precondition(lambda self: self.harness is not None and self.harness.sequences)
    @rule(which=st.integers(0, 99))
    def let_a_deadline_pass(self, which: int) -> None:
        sequences = [s for s in self.harness.sequences if s.status is SequenceStatus.RUNNING]
        if sequences:
            sequences[which % len(sequences)].deadline_s = time.monotonic() - 1

    @precondition(lambda self: self.harness is not None)
    @rule(method=st.sampled_from(["decode", "encode_frames", "coord_logits"]))
    def plant_a_fault(self, method: str) -> None:
        self.harness.model.fail_on[method] = 0

    @invariant()
    def nothing_is_broken(self) -> None:
        if self.harness is not None:
            self.harness.check()

    def teardown(self) -> None:
        if self.harness is None:
            return
        self.harness.model.fail_on.clear()
        self.harness.run()
        for sequence, state, (prompt, frame, make) in self.checked:
            got, whole = key_of(state.tokens), key_of(expected_tokens(prompt, frame, make()))
            if self.harness.outcomes[sequence].error is None:
                assert got == whole
            else:
                assert got == whole[: len(got)]


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
