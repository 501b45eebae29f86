"""Frames and adapters: encoded once, read by many, and never read when they are not there."""

from __future__ import annotations

import pytest
from answers import assert_right, lasting
from grammars import CycleGrammar, TextGrammar
from harness import SMALL, Harness, key_of
from hash_model import HashModel, adapter_of, expected_tokens

from photon_ros.core.errors import EngineFault, RequestCancelled
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.interfaces import Constraint

CANCELLED = RequestCancelled("cancelled by the test")


def config(**sizes: int) -> EngineConfig:
    return EngineConfig(**{**SMALL, **sizes})


def test_a_frame_stays_readable_after_all_its_readers_have_left() -> None:
    harness = Harness()
    for prompt in (1, 2, 3):
        state = CycleGrammar(True, 4)
        harness.submit(state, prompt=(prompt,), frame=5)
        harness.settle()
        assert_right(state, (prompt,), 5, CycleGrammar(True, 4))
    assert harness.model.num_encoded_frames == 1
    harness.run()


@pytest.mark.parametrize("eagerness", [0.0, 0.4])
@pytest.mark.parametrize("is_synchronous", [True, False])
@pytest.mark.parametrize("method", ["encode_frames", "decode"])
def test_a_frame_whose_prefill_failed_is_encoded_again(
    method: str, is_synchronous: bool, eagerness: float
) -> None:
    harness = Harness(
        eagerness=eagerness, model=HashModel({method: 0}), is_synchronous=is_synchronous
    )
    failed = [harness.submit(CycleGrammar(), prompt=(n,), frame=3) for n in (1, 2)]
    harness.settle()
    assert all(isinstance(harness.outcomes[s].error, EngineFault) for s in failed)
    make = lambda: CycleGrammar(True, 6)  # noqa: E731
    state, prompt = make(), lasting(make, 3)
    harness.submit(state, prompt=prompt, frame=3)
    harness.run()
    assert_right(state, prompt, 3, make())
    # Where a launch fails at once, it does not count as one.
    assert harness.engine.stats.num_prefixes == (1 if is_synchronous else 2)


def test_a_sibling_admitted_a_step_later_reads_the_frame_without_waiting_for_its_commit() -> None:
    harness = Harness(eagerness=0.0)
    make = lambda: CycleGrammar(True, 4)  # noqa: E731
    state, prompt = make(), lasting(make, 4)
    harness.submit(TextGrammar(1), prompt=(1,), frame=4)  # needs no decode step
    harness.tick()
    assert harness.engine.stats.num_tokens == 0
    harness.submit(state, prompt=prompt, frame=4)
    launches = harness.engine.stats.num_prefill_steps
    harness.tick()  # launches before it commits
    assert harness.engine.stats.num_prefill_steps == launches + 1
    harness.run()
    assert harness.model.num_encoded_frames == 1
    assert_right(state, prompt, 4, make())


def test_a_cancelled_reader_leaves_the_frame_to_its_siblings() -> None:
    harness = Harness(seed=2)
    make = lambda: CycleGrammar(True, 6)  # noqa: E731
    state, prompt = make(), lasting(make, 4)
    victim = harness.submit(TextGrammar(20, forbidden=(0,)), prompt=(1,), frame=4)
    harness.submit(state, prompt=prompt, frame=4)
    harness.tick()
    harness.engine.cancel(victim, CANCELLED)
    for frame in (5, 6, 7):
        harness.submit(CycleGrammar(True, 2), prompt=(3,), frame=frame)
    harness.run()
    assert_right(state, prompt, 4, make())


def test_a_frame_cancelled_before_its_launch_is_not_mistaken_for_an_encoded_one() -> None:
    harness = Harness(config=config(max_rows=1))
    blocker = harness.submit(TextGrammar(6), frame=None)
    gone = harness.submit(CycleGrammar(), prompt=(1,), frame=8)
    harness.tick()
    harness.engine.cancel(gone, CANCELLED)
    state = CycleGrammar(True, 3)
    harness.submit(state, prompt=(2,), frame=8)
    harness.run()
    assert harness.outcomes[blocker].error is None
    assert_right(state, (2,), 8, CycleGrammar(True, 3))


class FailsAtLaunch(CycleGrammar):
    """Cannot say what its first token may be."""

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        raise ValueError("planted in constraint_ahead")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_frame_first_asked_about_by_a_broken_grammar_is_still_encoded_for_the_next(
    order: tuple[int, int],
) -> None:
    harness = Harness()
    states = [FailsAtLaunch(), CycleGrammar(True, 4)]
    sequences = {n: harness.submit(states[n], prompt=(n + 1,), frame=4) for n in order}
    harness.settle()
    assert isinstance(harness.outcomes[sequences[0]].error, EngineFault)
    assert_right(states[1], (2,), 4, CycleGrammar(True, 4))
    lone = harness.submit(FailsAtLaunch(), prompt=(3,), frame=9)
    harness.settle()
    assert isinstance(harness.outcomes[lone].error, EngineFault)
    state = CycleGrammar(True, 4)
    harness.submit(state, prompt=(4,), frame=9)
    harness.run()
    assert_right(state, (4,), 9, CycleGrammar(True, 4))


def test_a_sibling_that_ran_on_a_failed_frame_does_not_get_an_answer_from_it() -> None:
    harness = Harness(eagerness=0.0, model=HashModel({"encode_frames": 0}))
    first = harness.submit(TextGrammar(1), prompt=(1,), frame=4)  # needs no decode step
    harness.tick()
    state = TextGrammar(6)
    second = harness.submit(state, prompt=(2,), frame=4)
    harness.tick()  # launches the sibling, then learns of the fault
    harness.run()
    for sequence in (first, second):
        assert isinstance(harness.outcomes[sequence].error, EngineFault)
    assert not state.tokens


@pytest.mark.parametrize("eagerness", [0.0, 0.5])
def test_a_launch_that_fails_half_queued_leaves_nothing_queued_behind_it(eagerness: float) -> None:
    harness = Harness(eagerness=eagerness)
    broken = harness.submit(CycleGrammar(), prompt=(1, 5), frame=3, values=((1, (0.5,)),))
    slot = harness.engine._slots[0]
    staged = slot.stage_values

    def fails_once(*args: object) -> None:
        slot.stage_values = staged
        raise RuntimeError("planted in the staging")

    slot.stage_values = fails_once
    harness.tick()  # its frame is queued before its values are staged
    assert isinstance(harness.outcomes[broken].error, EngineFault)
    asked = []
    for frame in (4, 3, 5):
        make = lambda: CycleGrammar(True, 4)  # noqa: E731
        state, prompt = make(), lasting(make, frame)
        harness.submit(state, prompt=prompt, frame=frame)
        asked.append((state, prompt, frame, make()))
    harness.run()
    for state, prompt, frame, fresh in asked:
        assert_right(state, prompt, frame, fresh)


def test_an_adapter_first_asked_for_by_a_broken_grammar_is_loaded_for_the_next() -> None:
    sizes = {**SMALL, "num_lora_slots": 1, "max_lora_rank": 4}
    for frame in (None, 3):
        harness, adapter = Harness(config=EngineConfig(**sizes)), adapter_of(1)
        broken = harness.submit(FailsAtLaunch(), frame=frame, adapter=adapter)
        harness.settle()
        assert isinstance(harness.outcomes[broken].error, EngineFault)
        state = TextGrammar(8)
        harness.submit(state, prompt=(4, 2), frame=frame, adapter=adapter)
        harness.run()
        wanted = expected_tokens((4, 2), frame, TextGrammar(8), adapter=adapter)
        assert key_of(state.tokens) == key_of(wanted)
