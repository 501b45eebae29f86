"""Pipelined tokens are blocking tokens are the tokens of a request computed alone."""

from __future__ import annotations

import random

import pytest
from grammars import CycleGrammar, FoldGrammar, ParityGrammar, TextGrammar, TwoPhaseGrammar
from harness import SMALL, Harness, key_of
from hash_model import expected_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.core.errors import CapacityError
from photon_ros.core.result import EndReason
from photon_ros.engine.config import EngineConfig

GRAMMARS = {
    "detect": lambda n: CycleGrammar(True, 1 + n % 6),
    "point": lambda n: CycleGrammar(False, 1 + n % 7),
    "text": lambda n: TextGrammar(2 + n, forbidden=(3,) if n % 2 else ()),
    "parity": lambda n: ParityGrammar(2 + n),
    "two phases": lambda n: TwoPhaseGrammar(n, 1 + n % 4),
    "fold": lambda n: FoldGrammar(n % 2 == 0, 1 + n % 5),
}
MODES = [(True, False), (True, True), (False, False), (False, True)]

requests = st.lists(
    st.tuples(
        st.sampled_from(sorted(GRAMMARS)),
        st.integers(0, 9),
        st.lists(st.integers(1, 23), min_size=1, max_size=6).map(tuple),
        st.one_of(st.none(), st.integers(0, 3)),
        st.integers(0, 4),  # ticks before the next request arrives
    ),
    min_size=1,
    max_size=9,
)


def config(pipelined: bool = True, hold: bool = False, **sizes: int) -> EngineConfig:
    return EngineConfig(**{**SMALL, **sizes}, pipelined=pipelined, hold_constrained=hold)


@pytest.mark.parametrize(("pipelined", "hold"), MODES)
@pytest.mark.parametrize("name", sorted(GRAMMARS))
@pytest.mark.parametrize("frame", [None, 2])
def test_a_lone_request_gets_the_tokens_it_would_get_without_an_engine(
    name: str, frame: int | None, pipelined: bool, hold: bool
) -> None:
    for size in range(8):
        harness = Harness(seed=size, config=config(pipelined, hold))
        state = GRAMMARS[name](size)
        harness.submit(state, prompt=(4, 9, size + 1), frame=frame)
        harness.run()
        expected = expected_tokens((4, 9, size + 1), frame, GRAMMARS[name](size))
        assert key_of(state.tokens) == key_of(expected)


@settings(max_examples=60, deadline=None)
@given(
    requests,
    st.sampled_from(MODES),
    st.integers(0, 2**16),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.booleans(),
)
def test_any_mix_in_any_interleaving_gives_each_request_what_it_gets_alone(
    mix: list, mode: tuple[bool, bool], seed: int, eagerness: float, can_capture: bool
) -> None:
    harness = Harness(seed, eagerness, config(*mode), can_capture=can_capture)
    states = []
    for name, size, prompt, frame, pause in mix:
        states.append(GRAMMARS[name](size))
        harness.submit(states[-1], prompt=prompt, frame=frame)
        for _ in range(pause):
            harness.tick()
    harness.run()
    for state, (name, size, prompt, frame, _) in zip(states, mix, strict=True):
        expected = expected_tokens(prompt, frame, GRAMMARS[name](size))
        assert key_of(state.tokens) == key_of(expected)
    assert all(outcome.error is None for outcome in harness.outcomes.values())


def test_the_host_waits_once_per_step_and_only_in_commit() -> None:
    harness = Harness(seed=3)
    for number in range(6):
        harness.submit(CycleGrammar(True, 4), frame=number % 2)
    harness.run()
    stats = harness.engine.stats
    assert harness.device.num_host_waits == stats.num_prefill_steps + stats.num_decode_steps


def test_the_next_forward_is_queued_before_the_last_token_is_committed() -> None:
    harness = Harness(seed=0, eagerness=0.0)
    harness.submit(TextGrammar(8))
    harness.tick()  # launches the prefill
    harness.tick()  # launches a decode, then commits the prefill
    assert len(harness.engine.pipeline.steps) == 1
    assert harness.engine.stats.num_decode_steps == 1
    assert harness.engine.stats.num_tokens == 1


def test_blocking_never_has_a_step_in_flight_between_ticks() -> None:
    harness = Harness(config=config(pipelined=False))
    harness.submit(CycleGrammar())
    while harness.engine.has_work:
        harness.tick()
        assert not harness.engine.pipeline.steps


def test_only_grammars_that_cannot_look_ahead_are_held() -> None:
    ahead, held = Harness(), Harness()
    ahead.submit(CycleGrammar())
    ahead.submit(TextGrammar(6, forbidden=(2,)))
    held.submit(ParityGrammar(6))
    ahead.run()
    held.run()
    assert ahead.engine.stats.num_held_steps == 0
    assert held.engine.stats.num_held_steps > 0


def test_a_purely_spatial_batch_never_computes_the_vocabulary() -> None:
    harness = Harness()
    for number in range(4):
        harness.submit(CycleGrammar(number % 2 == 0, 5), frame=number % 2)
    harness.run()
    assert harness.model.num_vocab_rows == 0


def test_prompts_on_one_frame_encode_it_once_even_when_they_arrive_before_its_commit() -> None:
    harness = Harness(eagerness=0.0)
    harness.submit(CycleGrammar(), prompt=(1,), frame=4)
    harness.tick()
    harness.submit(CycleGrammar(), prompt=(2,), frame=4)
    harness.submit(CycleGrammar(False), prompt=(3,), frame=4)
    harness.run()
    assert harness.model.num_encoded_frames == 1


def test_more_frames_than_extents_are_served_one_after_the_other() -> None:
    harness = Harness()
    states = [CycleGrammar(True, 3) for _ in range(7)]
    for number, state in enumerate(states):
        harness.submit(state, prompt=(number + 1,), frame=number)
    harness.run()
    for number, state in enumerate(states):
        expected = expected_tokens((number + 1,), number, CycleGrammar(True, 3))
        assert key_of(state.tokens) == key_of(expected)


def test_a_length_stop_leaves_no_zombie_and_an_end_token_leaves_at_most_one() -> None:
    for seed in range(30):
        harness = Harness(seed=seed)
        rng = random.Random(seed)
        states = [CycleGrammar(True, rng.randint(1, 5)) for _ in range(4)]
        for number, state in enumerate(states):
            harness.submit(state, prompt=(rng.randint(1, 20), number + 1), frame=number % 2)
        harness.run()
        num_ended_by_eos = sum(outcome.by_length is None for outcome in harness.outcomes.values())
        assert harness.engine.stats.num_zombie_rows <= num_ended_by_eos


@pytest.mark.parametrize(("pipelined", "hold"), MODES)
def test_values_given_in_prompts_are_embedded_at_their_places(pipelined: bool, hold: bool) -> None:
    harness = Harness(config=config(pipelined, hold))
    asked = [
        ((1, 5, 5, 2), ((1, (0.25,)), (2, (0.5,)))),
        ((1, 2), ()),
        ((6, 5, 5, 5, 7, 8), ((0, (0.1, 0.9)), (1, (0.3,)), (2, (0.4,)), (3, (0.7,)))),
    ]
    states = [TextGrammar(6) for _ in asked]
    for state, (prompt, values) in zip(states, asked, strict=True):
        harness.submit(state, prompt=prompt, values=values)
    harness.run()
    for state, (prompt, values) in zip(states, asked, strict=True):
        expected = expected_tokens(prompt, 7, TextGrammar(6), values=values)
        assert key_of(state.tokens) == key_of(expected)


def test_more_values_than_a_slot_stages_are_refused_with_the_figures() -> None:
    harness = Harness()
    values = tuple((i, (0.5,)) for i in range(65))
    with pytest.raises(CapacityError, match=r"gives 65 coordinates and sizes; at most 64"):
        harness.submit(TextGrammar(2), prompt=(5,) * 65, values=values)


def test_the_next_phase_starts_where_the_last_fed_token_ended() -> None:
    harness = Harness(eagerness=0.0)
    state = TwoPhaseGrammar(think=4, answer=2)
    sequence = harness.submit(state, prompt=(1, 2))
    harness.run()
    assert sequence.prompt_start == 2 + len(state.thoughts)
    assert sequence.prompt_ids == state.suffix


def test_an_answer_whose_next_phase_has_no_room_ends_by_context() -> None:
    harness = Harness(config=config(num_private_pages=60))
    state = TwoPhaseGrammar(think=36, answer=4, suffix=(9,) * 8, forbidden=(0, 3))
    sequence = harness.submit(state, prompt=(4,) * 150, frame=0)
    harness.run()
    assert harness.outcomes[sequence].error is None
    assert harness.outcomes[sequence].by_length is EndReason.MAX_CONTEXT
    assert len(state.thoughts) == 36


def test_paused_launches_nothing_and_commits_what_is_in_flight() -> None:
    harness = Harness()
    state = TextGrammar(8)
    harness.submit(state)
    for _ in range(3):
        harness.tick()
    harness.engine.scheduler.is_paused = True
    launched = harness.engine.stats.num_decode_steps
    for _ in range(4):
        harness.tick()
    assert not harness.engine.pipeline.steps
    assert harness.engine.stats.num_decode_steps == launched
    harness.engine.scheduler.is_paused = False
    harness.run()
    assert key_of(state.tokens) == key_of(expected_tokens((1, 2, 3), 7, TextGrammar(8)))


def test_replayed_steps_serve_other_rows_frames_and_lengths_than_those_they_were_captured_on() -> (
    None
):
    harness = Harness(seed=5, config=config(num_private_pages=120), can_capture=True)
    for turn in range(6):
        asked = []
        for number in range(1 + turn % 4):
            state = CycleGrammar(number % 2 == 0, 4 + turn)
            prompt, frame = (turn + 1, number + 1), (None if number == 3 else (turn + number) % 3)
            harness.submit(state, prompt=prompt, frame=frame)
            asked.append((state, prompt, frame, CycleGrammar(number % 2 == 0, 4 + turn)))
        harness.settle()
        for state, prompt, frame, fresh in asked:
            assert key_of(state.tokens) == key_of(expected_tokens(prompt, frame, fresh))
    assert harness.engine.graphs.num_replays > 30
