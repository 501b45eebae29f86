"""Edges of the tick that a lone mistake would cross: frames, holds, faults, seeds, lanes."""

from __future__ import annotations

import math

import pytest
from answers import assert_right, lasting
from grammars import CycleGrammar, ParityGrammar, TextGrammar, TwoPhaseGrammar
from harness import SMALL, Harness, key_of
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.core.errors import EngineFault, InputError, RequestCancelled
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.interfaces import Constraint
from photon_ros.engine.sequence import Outcome, SamplingParams, Sequence, SequenceStatus

CANCELLED = RequestCancelled("cancelled by the test")
MODES = [(True, False), (True, True), (False, False), (False, True)]


def config(pipelined: bool = True, hold: bool = False, **sizes: int) -> EngineConfig:
    return EngineConfig(**{**SMALL, **sizes}, pipelined=pipelined, hold_constrained=hold)


# -- held rows --------------------------------------------------------------------------------


class FailsWhenHeld(ParityGrammar):
    """Says at launch that it must be held, and raises when its turn comes."""

    def __init__(self, at_token: int) -> None:
        super().__init__(20)
        self.at_token = at_token

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        if num_ahead == 0 and len(self.tokens) == self.at_token:
            raise ValueError("planted in constraint_ahead")
        return super().constraint_ahead(num_ahead)

    def advance(self, token: object) -> bool:
        super().advance(token)
        return False


@pytest.mark.parametrize("at_token", [1, 2, 5])
def test_a_held_grammar_that_raises_at_its_turn_fails_alone(at_token: int) -> None:
    harness = Harness()
    faulty = harness.submit(FailsWhenHeld(at_token), frame=1)
    asked = []
    for make, frame in ((lambda: CycleGrammar(True, 5), 1), (lambda: ParityGrammar(9), 2)):
        state, prompt = make(), lasting(make, frame)
        harness.submit(state, prompt=prompt, frame=frame)
        asked.append((state, prompt, frame, make))
    harness.run()
    assert isinstance(harness.outcomes[faulty].error, EngineFault)
    assert "planted" in str(harness.outcomes[faulty].error)
    for state, prompt, frame, make in asked:
        assert_right(state, prompt, frame, make())


def test_a_held_row_is_masked_by_the_token_just_committed() -> None:
    for seed in range(6):
        harness = Harness(seed=seed)
        states = [ParityGrammar(12) for _ in range(3)]
        for number, state in enumerate(states):
            harness.submit(state, prompt=(seed + 1, number + 1), frame=number % 2)
        harness.run()
        for number, state in enumerate(states):
            parities = [token.id % 2 for token in state.tokens]
            assert parities == [number % 2 for number in range(len(parities))]
            assert_right(state, (seed + 1, number + 1), number % 2, ParityGrammar(12))


class StrictlyAhead(CycleGrammar):
    """Checks what it is asked and told: it depends on the place, and never looks back."""

    def __init__(self) -> None:
        super().__init__(True, 4)
        self.asked: list[int] = []

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        assert 0 <= num_ahead <= 1
        self.asked.append(len(self.tokens) + num_ahead)
        return super().constraint_ahead(num_ahead)


def test_a_grammar_known_ahead_is_asked_once_for_each_token_and_in_order() -> None:
    harness = Harness()
    state = StrictlyAhead()
    harness.submit(state)
    harness.run()
    num_sampled = len(state.tokens) + harness.engine.stats.num_zombie_rows
    assert state.asked == list(range(num_sampled))


# -- requests that should never have been made ------------------------------------------------


BAD_PROMPTS = {
    "no ids": ((), ()),
    "an id below 0": ((1, -1), ()),
    "an id above the vocabulary": ((1, 24), ()),
    "a value beside the prompt": ((1, 5), ((2, (0.5,)),)),
    "a value before the prompt": ((1, 5), ((-1, (0.5,)),)),
    "a value of three numbers": ((1, 5), ((1, (0.5, 0.5, 0.5)),)),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_a_prompt_that_cannot_be_run_is_refused_when_it_is_submitted(name: str) -> None:
    prompt, values = BAD_PROMPTS[name]
    harness = Harness()
    with pytest.raises(InputError):
        harness.submit(TextGrammar(4), prompt=prompt, values=values)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=math.inf),  # as a float64 1e39 is on the device
        SamplingParams(temperature=1e39),
        SamplingParams(temperature=math.nan),
        SamplingParams(temperature=-1.0),
        SamplingParams(temperature=1.0, top_p=0.0),
        SamplingParams(temperature=1.0, top_p=math.nan),
        SamplingParams(temperature=1.0, seed=1.5),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_way_of_sampling_that_cannot_be_run_is_refused_when_it_is_submitted(
    sampling: SamplingParams,
) -> None:
    """An infinite temperature makes a forbidden id as likely as any."""
    harness = Harness()
    with pytest.raises(InputError, match=r"temperature|top_p|seed"):
        harness.submit(TextGrammar(8, forbidden=(0, 1, 2)), sampling=sampling)


def test_a_deadline_that_is_no_time_is_refused_and_does_not_disturb_the_queue() -> None:
    harness = Harness()
    with pytest.raises(InputError, match="deadline_s must be a time, got nan"):
        harness.submit(TextGrammar(8), deadline_s=math.nan)
    assert not harness.engine.has_work


class ToldTooLittle(TwoPhaseGrammar):
    """Announces fewer positions for its second phase than it then takes."""

    @property
    def later_positions(self) -> int:
        return 1


def test_a_grammar_that_announced_too_few_positions_fails_alone() -> None:
    harness = Harness()
    harness.submit(ToldTooLittle(think=2, answer=40), prompt=(1, 2), frame=1)
    state = TextGrammar(30, forbidden=(0,))
    neighbour = harness.submit(state, prompt=(3,), frame=1)
    while harness.engine.has_work:
        harness.engine.tick()
    assert harness.outcomes[neighbour].error is None
    assert_right(state, (3,), 1, TextGrammar(30, forbidden=(0,)))


# -- zombies ----------------------------------------------------------------------------------


class Counting(TextGrammar):
    """Ends at a set token and counts what it is told after."""

    def __init__(self, end_at: int) -> None:
        super().__init__(50, forbidden=(0,))
        self.end_at, self.num_after_end = end_at, 0

    def advance(self, token: object) -> bool:
        if len(self.tokens) == self.end_at:
            self.num_after_end += 1
        self.tokens.append(token)
        return len(self.tokens) == self.end_at


@pytest.mark.parametrize("end_at", [1, 2, 3, 7])
def test_a_zombie_is_told_nothing_delivers_nothing_and_gives_back_once(end_at: int) -> None:
    harness = Harness(eagerness=0.0)
    state = Counting(end_at)
    sequence = harness.submit(state)
    while not sequence.finalized:
        harness.tick()
    assert sequence.finalized
    assert sequence.inflight_refs
    assert sequence.pages
    lane = sequence.lane
    assert lane >= 0
    harness.run()
    assert state.num_after_end == 0
    assert len(state.tokens) == end_at
    assert harness.engine.stats.num_zombie_rows == 1
    assert sequence.status is SequenceStatus.RELEASED


def test_the_pages_and_the_lane_of_a_zombie_are_nobody_elses_yet() -> None:
    harness = Harness(eagerness=0.0, config=config(max_rows=1, num_private_pages=14))
    first = harness.submit(Counting(2), prompt=(1,), frame=1)
    state = CycleGrammar(True, 4)
    second = harness.submit(state, prompt=(2,), frame=1)
    while not first.finalized:
        harness.tick()
    assert first.finalized
    assert first.inflight_refs
    assert second.status is SequenceStatus.WAITING
    harness.run()
    assert_right(state, (2,), 1, CycleGrammar(True, 4))


# -- lanes and rows ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_lanes_and_rows_that_disagree_never_mix_two_answers(seed: int) -> None:
    """Short and long answers leave lanes in disorder, and frames sort rows across them."""
    harness = Harness(seed=seed, config=config(max_prefixes=3))
    asked = []
    for number in range(14):
        prompt, frame = (number + 1, seed + 1), (number * 2 + seed) % 3
        make = [lambda: CycleGrammar(True, 1), lambda: TextGrammar(9), lambda: ParityGrammar(4)]
        state = make[number % 3]()
        harness.submit(state, prompt=prompt, frame=frame)
        asked.append((state, prompt, frame, make[number % 3]))
        if number % 4 == 3:
            harness.tick()
    harness.run()
    for state, prompt, frame, fresh in asked:
        assert_right(state, prompt, frame, fresh())


def test_prompts_of_very_different_lengths_share_a_prefill() -> None:
    harness = Harness()
    asked = []
    for length in (1, 17, 3, 9):
        prompt = tuple(n % 22 + 1 for n in range(length))
        state = CycleGrammar(length % 2 == 1, 4)
        harness.submit(state, prompt=prompt, frame=length % 2)
        asked.append((state, prompt, length % 2, CycleGrammar(length % 2 == 1, 4)))
    harness.tick()
    assert harness.engine.stats.num_prefill_steps == 1
    harness.run()
    for state, prompt, frame, fresh in asked:
        assert_right(state, prompt, frame, fresh)


# -- callbacks on the engine's thread ---------------------------------------------------------


def test_a_callback_may_cancel_and_submit_on_the_engine_itself() -> None:
    harness = Harness(config=config(max_rows=2))
    others = [harness.submit(TextGrammar(30, forbidden=(0,)), frame=n) for n in (1, 2)]
    late = CycleGrammar(True, 2)

    def go_on(sequence: Sequence, outcome: Outcome) -> None:
        for other in others:
            harness.engine.cancel(other, CANCELLED)
        harness.submit(late, prompt=(6,), frame=2)

    harness.submit(CycleGrammar(True, 1), deadline_s=None, on_done=go_on)
    harness.engine.cancel(others[0], CANCELLED)
    harness.run()
    assert_right(late, (6,), 2, CycleGrammar(True, 2))


# -- sampled text -----------------------------------------------------------------------------


requests = st.lists(
    st.tuples(
        st.integers(1, 22),
        st.one_of(st.none(), st.integers(0, 2)),
        st.sampled_from([0.0, 900.0, 4000.0]),
        st.sampled_from([1.0, 0.7]),
        st.integers(0, 2**63 - 1),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
)


def sampled(mix: list, mode: tuple[bool, bool], seed: int) -> list[list[tuple]]:
    harness = Harness(seed=seed, config=config(*mode))
    states = []
    for first, frame, temperature, top_p, noise_seed, pause in mix:
        states.append(TextGrammar(8))
        harness.submit(
            states[-1],
            prompt=(first, 3),
            frame=frame,
            sampling=SamplingParams(temperature, top_p, noise_seed),
        )
        for _ in range(pause):
            harness.tick()
    harness.run()
    return [key_of(state.tokens) for state in states]


@settings(max_examples=25, deadline=None)
@given(requests, st.integers(0, 999))
def test_sampled_text_is_the_same_in_every_mode_batch_and_interleaving(
    mix: list, seed: int
) -> None:
    alone = [sampled([one], (False, False), 0)[0] for one in mix]
    for mode in MODES:
        assert sampled(mix, mode, seed) == alone


def test_sampled_text_depends_on_its_seed() -> None:
    answers = {
        tuple(sampled([(4, 1, 4000.0, 1.0, seed, 0)], (True, False), 0)[0]) for seed in range(8)
    }
    assert len(answers) == 8


def test_greedy_and_sampled_rows_of_one_batch_do_not_disturb_each_other() -> None:
    harness = Harness()
    greedy, detect = TextGrammar(9), CycleGrammar(True, 4)
    harness.submit(greedy, prompt=(5,), frame=1)
    harness.submit(TextGrammar(9), prompt=(6,), sampling=SamplingParams(4000.0, 0.9, 3))
    harness.submit(detect, prompt=(7,), frame=1)
    harness.run()
    assert_right(greedy, (5,), 1, TextGrammar(9))
    assert_right(detect, (7,), 1, CycleGrammar(True, 4))
