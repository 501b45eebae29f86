"""What a callback does to other requests, and what a grammar may not answer."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from answers import assert_right
from grammars import CycleGrammar, ParityGrammar, TextGrammar, TwoPhaseGrammar
from harness import SMALL, Harness
from hash_model import SPEC, HashModel

from photon_ros.core.errors import (
    DeadlineExceeded,
    EngineFault,
    InputError,
    RequestCancelled,
)
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.interfaces import Constraint
from photon_ros.engine.sequence import Outcome, Sequence

CANCELLED = RequestCancelled("cancelled by a callback")
MODES = [(True, False), (True, True), (False, False), (False, True)]


def endless() -> TextGrammar:
    return TextGrammar(60, forbidden=(0,))


class Conspiracy:
    """Requests of which the first to end cancels all others from its callback, and asks again."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.sequences: list[Sequence] = []
        self.first: Sequence | None = None
        self.again = CycleGrammar(True, 2)

    def submit(self, state: object, deadline_s: float | None = None) -> Sequence:
        prompt = (len(self.sequences) + 1, 2)
        sequence = self.harness.submit(
            state, prompt=prompt, frame=1, deadline_s=deadline_s, on_done=self._on_done
        )
        self.sequences.append(sequence)
        return sequence

    def _on_done(self, sequence: Sequence, outcome: Outcome) -> None:
        if self.first is None:
            self.first = sequence
            for other in self.sequences:
                self.harness.engine.cancel(other, CANCELLED)
            self.harness.submit(self.again, prompt=(7, 7), frame=1)

    def finish(self) -> BaseException | None:
        """Run; return the error of the first to end. The harness objects to a second outcome."""
        self.harness.run()
        assert self.first is not None
        for sequence in self.sequences:
            if sequence is not self.first:
                assert self.harness.outcomes[sequence].error is CANCELLED
        assert_right(self.again, (7, 7), 1, CycleGrammar(True, 2))
        return self.harness.outcomes[self.first].error


def conspiracy(pipelined: bool = True, hold: bool = False, **kwargs: object) -> Conspiracy:
    sizes = {**SMALL, "num_private_pages": 80}
    config = EngineConfig(**sizes, pipelined=pipelined, hold_constrained=hold)
    return Conspiracy(Harness(config=config, **kwargs))


def test_one_of_several_expired_while_waiting_cancels_the_others() -> None:
    plot = conspiracy()
    for _ in range(3):
        plot.submit(endless(), deadline_s=time.monotonic() - 1)
    assert isinstance(plot.finish(), DeadlineExceeded)


@pytest.mark.parametrize(("pipelined", "hold"), MODES)
@pytest.mark.parametrize("num_ticks", [1, 2, 3])
def test_one_of_several_expired_while_running_cancels_the_others(
    pipelined: bool, hold: bool, num_ticks: int
) -> None:
    plot = conspiracy(pipelined, hold)
    for _ in range(4):
        plot.submit(endless())
    for _ in range(num_ticks):
        plot.harness.tick()
    for sequence in plot.sequences:
        sequence.deadline_s = time.monotonic() - 1
    assert isinstance(plot.finish(), DeadlineExceeded)


@pytest.mark.parametrize(("pipelined", "hold"), MODES)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_row_that_ends_cancels_the_other_rows_of_its_step(
    pipelined: bool, hold: bool, place: int
) -> None:
    plot = conspiracy(pipelined, hold)
    for number in range(4):
        plot.submit(TextGrammar(3, forbidden=(0,)) if number == place else endless())
    assert plot.finish() is None
    assert plot.first is plot.sequences[place]


class Raises(ParityGrammar):
    """Fails at a token, at the launch of its step or when its turn comes."""

    def __init__(self, at_token: int, *, when_held: bool) -> None:
        super().__init__(30)
        self.at_token, self.when_held = at_token, when_held

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        is_due = len(self.tokens) + num_ahead >= self.at_token
        if is_due and (num_ahead == 0 or not self.when_held):
            raise ValueError("planted in constraint_ahead")
        return super().constraint_ahead(num_ahead)

    def advance(self, token: object) -> bool:
        super().advance(token)
        return False


@pytest.mark.parametrize("when_held", [True, False])
@pytest.mark.parametrize("at_token", [0, 1, 4])
@pytest.mark.parametrize("place", [0, 2])
def test_a_row_whose_grammar_fails_cancels_the_other_rows_of_its_step(
    when_held: bool, at_token: int, place: int
) -> None:
    plot = conspiracy()
    for number in range(3):
        plot.submit(Raises(at_token, when_held=when_held) if number == place else endless())
    assert isinstance(plot.finish(), EngineFault)
    assert plot.first is plot.sequences[place]


@pytest.mark.parametrize("eagerness", [0.0, 0.5])
@pytest.mark.parametrize("is_synchronous", [True, False])
def test_a_row_of_a_failed_step_cancels_the_others(eagerness: float, is_synchronous: bool) -> None:
    model = HashModel({"vocab_logits": 2})
    plot = conspiracy(model=model, eagerness=eagerness, is_synchronous=is_synchronous)
    for _ in range(4):
        plot.submit(endless())
    assert isinstance(plot.finish(), EngineFault)


@pytest.mark.parametrize("num_ticks", [0, 1, 2, 30])
def test_a_sequence_is_submitted_once_and_not_after_its_end(num_ticks: int) -> None:
    harness = Harness()
    state = CycleGrammar(True, 2)
    sequence = harness.submit(state, prompt=(7, 7), frame=1)
    for _ in range(num_ticks):
        harness.tick()
    with pytest.raises(InputError, match="submitted or cancelled before"):
        harness.engine.submit(sequence)
    harness.run()
    assert_right(state, (7, 7), 1, CycleGrammar(True, 2))


def test_a_sequence_cancelled_before_it_was_submitted_cannot_be() -> None:
    harness = Harness()
    ended: list[Outcome] = []
    sequence = Sequence((1, 2), endless(), lambda _, outcome: ended.append(outcome))
    harness.engine.cancel(sequence, CANCELLED)
    with pytest.raises(InputError, match="submitted or cancelled before"):
        harness.engine.submit(sequence)
    assert [outcome.error for outcome in ended] == [CANCELLED]
    assert not harness.engine.has_work


# -- what a grammar may not answer ------------------------------------------------------------


class NeverKnown(TextGrammar):
    """Does not know what may come next even when all before is committed."""

    def __init__(self, from_token: int) -> None:
        super().__init__(30, forbidden=(0,))
        self.from_token = from_token

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        if len(self.tokens) + num_ahead >= self.from_token:
            return None
        return super().constraint_ahead(num_ahead)


@pytest.mark.parametrize(("pipelined", "hold"), MODES)
@pytest.mark.parametrize("from_token", [0, 1, 5])
def test_a_grammar_that_does_not_know_what_comes_next_fails_alone_and_is_told_why(
    pipelined: bool, hold: bool, from_token: int
) -> None:
    harness = Harness(config=EngineConfig(**SMALL, pipelined=pipelined, hold_constrained=hold))
    state = CycleGrammar(True, 5)
    harness.submit(state, prompt=(8, 8), frame=1)
    unsure_state = NeverKnown(from_token)
    unsure = harness.submit(unsure_state, prompt=(3, 4), frame=1)
    harness.engine.tick()
    while harness.engine.has_work:
        harness.engine.tick()
    error = harness.outcomes[unsure].error
    assert isinstance(error, EngineFault)
    assert "constraint_ahead(0) is None" in str(error)
    assert len(unsure_state.tokens) == from_token
    assert_right(state, (8, 8), 1, CycleGrammar(True, 5))


class LosesCount(TwoPhaseGrammar):
    """Cannot say how long its second phase may get."""

    @property
    def max_new_tokens(self) -> int:
        if self.is_answering:
            raise ValueError("planted in max_new_tokens")
        return super().max_new_tokens


@pytest.mark.parametrize("pipelined", [True, False])
def test_a_grammar_that_cannot_be_asked_for_its_second_length_fails_alone(pipelined: bool) -> None:
    harness = Harness(config=EngineConfig(**SMALL, pipelined=pipelined))
    broken = harness.submit(LosesCount(think=2, answer=2), prompt=(1, 2), frame=1)
    state = endless()
    harness.submit(state, prompt=(3,), frame=1)
    while harness.engine.has_work:
        harness.engine.tick()
    assert "planted in max_new_tokens" in str(harness.outcomes[broken].error)
    assert isinstance(harness.outcomes[broken].error, EngineFault)
    assert_right(state, (3,), 1, endless())


@pytest.mark.parametrize("method", ["max_new_tokens", "later_positions"])
def test_a_grammar_is_not_asked_how_long_it_gets_once_it_waits(method: str) -> None:
    """What it needs is settled when it is queued, so that planning a step cannot fail."""
    asked: list[str] = []

    class Counting(TextGrammar):
        def __getattribute__(self, name: str) -> object:
            if name == method:
                asked.append(name)
            return super().__getattribute__(name)

    harness = Harness(config=EngineConfig(**{**SMALL, "max_rows": 1}))
    make: Callable[[], TextGrammar] = lambda: Counting(6)  # noqa: E731
    for number in range(3):
        harness.submit(make(), prompt=(number + 1,), frame=1)
    asked.clear()
    harness.run()
    assert not asked


@pytest.mark.parametrize("suffix", [(), (24,), (-1,), (9, 4, 99)], ids=str)
def test_a_grammar_that_goes_on_with_ids_that_cannot_be_run_fails_alone(
    suffix: tuple[int, ...],
) -> None:
    harness = Harness()
    broken = harness.submit(TwoPhaseGrammar(think=2, suffix=suffix), prompt=(1, 2), frame=1)
    state = endless()
    harness.submit(state, prompt=(3,), frame=1)
    while harness.engine.has_work:
        harness.engine.tick()
    error = harness.outcomes[broken].error
    assert isinstance(error, EngineFault)
    assert isinstance(error.__cause__, InputError)
    assert_right(state, (3,), 1, endless())


VOCAB = SPEC.vocab_size


@pytest.mark.parametrize(
    ("constraint", "complaint"),
    [
        (Constraint(allowed=(VOCAB,)), f"token id {VOCAB}; the vocabulary is 0 to {VOCAB - 1}"),
        (Constraint(allowed=(-1, 3)), "token id -1; the vocabulary"),
        (Constraint(allowed=(5, VOCAB), spatial=True), f"token id {VOCAB};"),
        (Constraint(forbidden=(2, VOCAB + 7, 3)), f"token id {VOCAB + 7};"),
        (Constraint(fold_to=-2), "token id -2;"),
        (Constraint(allowed=()), "allows no token; at least 1 must be left"),
        (Constraint(forbidden=tuple(range(VOCAB))), "allows no token"),
    ],
    ids=str,
)
@pytest.mark.parametrize("at_token", [0, 3])
@pytest.mark.parametrize("when_held", [True, False])
@pytest.mark.parametrize(("pipelined", "hold"), MODES)
def test_a_constraint_that_names_no_token_fails_its_own_request(
    pipelined: bool,
    hold: bool,
    when_held: bool,
    at_token: int,
    constraint: Constraint,
    complaint: str,
) -> None:
    class Outside(ParityGrammar):
        def constraint_ahead(self, num_ahead: int) -> Constraint | None:
            if len(self.tokens) + num_ahead < at_token:
                return Constraint(forbidden=(0,))
            return None if when_held and num_ahead else constraint

        def advance(self, token: object) -> bool:
            super().advance(token)
            return False

    harness = Harness(
        config=EngineConfig(**SMALL, pipelined=pipelined, hold_constrained=hold),
        is_synchronous=at_token > 0,
    )
    before, after = endless(), CycleGrammar(True, 4)
    harness.submit(before, prompt=(3,), frame=1)
    state = Outside(30)
    broken = harness.submit(state, prompt=(1, 2), frame=1)
    harness.submit(after, prompt=(4,), frame=1)
    while harness.engine.has_work:
        harness.engine.tick()
    harness.check_idle()
    error = harness.outcomes[broken].error
    assert isinstance(error, EngineFault)
    assert isinstance(error.__cause__, InputError)
    assert complaint in str(error)
    assert len(state.tokens) in (at_token, at_token - 1)  # it is asked a step ahead
    assert harness.engine.stats.num_faults == 0
    assert_right(before, (3,), 1, endless())
    assert_right(after, (4,), 1, CycleGrammar(True, 4))


def test_every_constraint_is_checked_however_many_there_were_before() -> None:
    """Grammars may keep theirs or make new ones; a number in memory may be used again."""
    harness = Harness()

    class Fresh(TextGrammar):
        def constraint_ahead(self, num_ahead: int) -> Constraint | None:
            place = len(self.tokens) + num_ahead
            return Constraint(forbidden=(0, VOCAB if place == 50 else place % VOCAB))

    for number in range(8):  # more constraints than are remembered
        harness.submit(TextGrammar(40, forbidden=(0, number)), prompt=(number + 1,))
    harness.run()
    state = Fresh(53)
    broken = harness.submit(state, prompt=(9,))
    while harness.engine.has_work:
        harness.engine.tick()
    assert isinstance(harness.outcomes[broken].error, EngineFault)
    assert len(state.tokens) == 49  # it is asked a step ahead
