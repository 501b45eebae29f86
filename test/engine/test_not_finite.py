"""A number that is not finite fails the request that computed it, and nobody else."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from grammars import (
    CycleGrammar,
    FoldGrammar,
    OnePhase,
    ParityGrammar,
    TextGrammar,
    TwoPhaseGrammar,
)
from harness import SMALL
from hash_model import PREFIX_LEN, expected_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from overflow import BAD_FRAME, BAD_ID, OverflowingModel, World, num_finite

from photon_ros.core.errors import EngineFault
from photon_ros.core.result import EndReason
from photon_ros.engine.interfaces import Constraint, SampledToken

MODES = [
    pytest.param({}, False, id="ahead"),
    pytest.param({"hold_constrained": True}, False, id="held"),
    pytest.param({"pipelined": False}, False, id="blocking"),
    pytest.param({}, True, id="captured"),
]
endless = partial(TextGrammar, 30, (0, BAD_ID))
detect = partial(CycleGrammar, True, 4)


class Forced(OnePhase):
    """An answer whose tokens are all given: the model decides nothing."""

    length_reason = EndReason.MAX_TOKENS

    def __init__(self, spatial: bool, max_new_tokens: int = 1, token_id: int = 0) -> None:
        self.max_new_tokens = max_new_tokens
        self._constraint = Constraint((token_id,), spatial=spatial)
        self.tokens: list[SampledToken] = []

    def constraint_ahead(self, num_ahead: int) -> Constraint:
        return self._constraint

    def advance(self, token: SampledToken) -> bool:
        self.tokens.append(token)
        return token.id == 0


def overflowing_text(frame: int | None) -> tuple[Any, tuple[int, ...]]:
    """Return a grammar and a prompt whose answer overflows after two finite tokens at least."""
    make = partial(TextGrammar, 20, (0,))
    for prompt in product(range(1, 23), repeat=2):
        right = expected_tokens(prompt, frame, make())
        if 2 <= num_finite(prompt, frame, right, make()) < 12:
            return make, prompt
    raise AssertionError("no prompt overflows")


# -- it fails, and says so --------------------------------------------------------------------


@pytest.mark.parametrize(("modes", "can_capture"), MODES)
@pytest.mark.parametrize("make", [detect, endless, ParityGrammar, FoldGrammar, TwoPhaseGrammar])
def test_a_frame_that_overflows_fails_its_requests_and_leaves_its_neighbours_alone(
    make: Any, modes: dict[str, bool], can_capture: bool
) -> None:
    world = World(modes=modes, can_capture=can_capture)
    bad = [world.ask(make, (1, 2), BAD_FRAME), world.ask(make, (4,), BAD_FRAME)]
    world.ask(make, (3, 1, 2), 1)
    world.ask(make, (3,), None)
    world.finish()
    assert all(case.has_overflowed for case in bad)


@pytest.mark.parametrize(("modes", "can_capture"), MODES)
def test_an_answer_that_overflows_half_way_fails_then(
    modes: dict[str, bool], can_capture: bool
) -> None:
    world = World(modes=modes, can_capture=can_capture)
    bad = world.ask(*overflowing_text(1), 1)
    world.ask(endless, (5,), 1)
    world.ask(endless, (6, 1, 4), 2)
    world.finish()
    assert bad.has_overflowed
    assert len(bad.state.tokens) >= 2
    assert "float16" in str(bad.error)


@pytest.mark.parametrize("spatial", [True, False])
def test_an_answer_of_forced_tokens_notices_it_too(spatial: bool) -> None:
    """Such as the one that encodes a frame ahead: nothing of the model decides its token."""
    world = World()
    make = partial(Forced, spatial)
    bad, good = world.ask(make, (1,), BAD_FRAME), world.ask(make, (1,), 1)
    world.finish()
    assert bad.has_overflowed
    assert not good.has_overflowed


# -- frames -----------------------------------------------------------------------------------


def test_a_frame_that_overflowed_is_not_read_by_later_requests() -> None:
    world = World()
    world.ask(detect, (1,), BAD_FRAME)
    while world.harness.engine.has_work:
        world.harness.tick()
    world.model.is_ill = False
    later = world.ask(detect, (2,), BAD_FRAME)
    world.harness.run()
    assert later.error is None
    assert world.model.num_encoded_frames == 2


def test_a_frame_whose_request_overflowed_stays_with_those_who_read_it() -> None:
    world = World()
    neighbour = world.ask(endless, (5,), 1)
    bad = world.ask(endless, (BAD_ID,), 1)
    world.finish()
    assert bad.has_overflowed
    assert not neighbour.has_overflowed
    assert world.model.num_encoded_frames == 1


# -- pages ------------------------------------------------------------------------------------


def private_values(world: World) -> torch.Tensor:
    """Return the private part of the cache, once everything queued has run."""
    world.harness.device.compute.record().synchronize()
    pool = world.harness.engine.pool
    first = (pool.num_pages - pool.num_private_pages) * SMALL["page_size"]
    cache = world.harness.engine._cache
    return torch.stack((cache.keys[:, first:], cache.values[:, first:]))


@pytest.mark.parametrize(("modes", "can_capture"), MODES)
def test_pages_of_a_failed_answer_are_clean_for_their_next_owner(
    modes: dict[str, bool], can_capture: bool
) -> None:
    world = World(modes=modes, can_capture=can_capture)
    for prompt in ((BAD_ID, 1, 2, 3, 4, 5), (1, BAD_ID)):
        world.ask(endless, prompt, 1)
        world.harness.settle()
        assert private_values(world).isfinite().all()
        world.ask(endless, (9, 2), None)
        world.ask(endless, (4,), 1)
        world.harness.settle()
    world.finish()


@pytest.mark.parametrize(("modes", "can_capture"), MODES)
@pytest.mark.parametrize("make", [endless, detect, partial(Forced, True, 9, 5)])
def test_pages_that_only_a_zombie_ruined_are_cleaned_too(
    make: Any, modes: dict[str, bool], can_capture: bool
) -> None:
    """Cancelled while the step that overflows is in flight: nobody is left to be told."""
    for num_ticks in range(1, 7):
        world = World(modes=modes, can_capture=can_capture)
        bad = world.ask(make, (1, 2), BAD_FRAME)
        other = world.ask(*overflowing_text(None), None)
        for _ in range(num_ticks):
            world.harness.tick()
        world.cancel(bad)
        world.cancel(other)
        world.harness.settle()
        assert private_values(world).isfinite().all()


def test_the_end_token_may_overflow_where_only_zombies_feed_it() -> None:
    """The answer is over and right; what was computed beyond it is cleaned away."""
    num_zombies = 0
    for number in range(1, 20):
        world = World(OverflowingModel(fatal_ids=(0,)), seed=number)
        for frame in (1, 2, None):
            world.ask(detect, (number,), frame)
            world.ask(TextGrammar, (number, 3), frame)
        world.finish()
        num_zombies += world.harness.engine.stats.num_zombie_rows
        assert private_values(world).isfinite().all()
    assert num_zombies > 20


@pytest.mark.parametrize("can_capture", [False, True])
def test_nobody_reads_the_reserved_page_or_a_frame_that_is_not_theirs(can_capture: bool) -> None:
    """Padding writes to that page, and padding of a row with a bad frame is not finite."""
    world = World(can_capture=can_capture)
    cache = world.harness.engine._cache
    shared = slice(0, SMALL["page_size"] + PREFIX_LEN)
    assert cache.values[:, shared].isnan().all(), "the surroundings are friendlier than said"
    assert cache.keys[:, shared].isnan().all()
    world.ask(endless, (1, 2), None)  # ragged, so that page tables are padded
    world.ask(endless, (1, 2, 3, 4, 5, 6, 7, 8, 9), None)
    world.harness.settle()
    world.ask(endless, (7,), 1)
    world.ask(endless, (8, 2), None)
    world.finish()


@pytest.mark.parametrize("method", ["decode", "vocab_logits", "coord_logits"])
@pytest.mark.parametrize("is_synchronous", [True, False])
def test_after_a_fault_nothing_that_was_in_flight_is_left_in_the_cache(
    method: str, is_synchronous: bool
) -> None:
    """The rows of a failed step never say whether they were finite."""
    num_faults = 0
    for at_call in range(5):
        model = OverflowingModel(fail_on={method: at_call})
        world = World(model, is_synchronous=is_synchronous)
        world.ask(endless, (BAD_ID, 4), 1)
        world.ask(detect, (2,), BAD_FRAME)
        for _ in range(20):
            world.harness.tick()
        num_faults += world.harness.engine.stats.num_faults
        model.fail_on.clear()
        world.asked.clear()
        world.ask(endless, (1,), None)
        world.ask(detect, (3, 4, 5, 6, 7), 1)
        world.finish()
        assert private_values(world).isfinite().all()
    assert num_faults


def test_a_bug_of_the_engine_leaves_nothing_in_the_cache_either() -> None:
    world = World()
    world.ask(endless, (BAD_ID, 4), 1)
    world.harness.engine.tick()
    world.harness.engine.recover(EngineFault("planted bug"))
    world.ask(endless, (1,), None)
    world.asked.pop(0)
    world.finish()
    assert private_values(world).isfinite().all()


# -- anything, anywhere -----------------------------------------------------------------------

GRAMMARS = (detect, endless, partial(TextGrammar, 14), ParityGrammar, FoldGrammar, TwoPhaseGrammar)
requests = st.tuples(
    st.sampled_from(GRAMMARS),
    st.lists(st.integers(1, BAD_ID), min_size=1, max_size=5).map(tuple),
    st.sampled_from([None, 1, 2, BAD_FRAME, BAD_FRAME + 1]),
    st.integers(0, 4),  # ticks before the next request
    st.booleans(),  # cancelled then
)


@settings(max_examples=80, deadline=None)
@given(
    asked=st.lists(requests, min_size=1, max_size=10),
    modes=st.sampled_from([{}, {"hold_constrained": True}, {"pipelined": False}]),
    can_capture=st.booleans(),
    seed=st.integers(0, 99),
    fatal_ids=st.sampled_from([(), (0,)]),
)
def test_overflows_anywhere_change_no_token_of_anybody_else(
    asked: list[Any],
    modes: dict[str, bool],
    can_capture: bool,
    seed: int,
    fatal_ids: tuple[int, ...],
) -> None:
    world = World(OverflowingModel(fatal_ids), modes, can_capture=can_capture, seed=seed)
    for make, prompt, frame, num_ticks, is_cancelled in asked:
        case = world.ask(make, prompt, frame)
        for _ in range(num_ticks):
            world.harness.tick()
        if is_cancelled:
            world.cancel(case)
    world.finish()
    assert private_values(world).isfinite().all()
    for frame in (None, 1):
        world.ask(endless, (3, 3), frame)
    world.finish()
