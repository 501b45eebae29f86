from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Grounding
from photon_ros.engine.interfaces import SampledToken
from photon_ros.skills import skill_named
from photon_ros.skills.reasoning import ReasoningState

from .conftest import FIRST_TEXT_ID, ByteTokenizer, tiny_prompting
from .test_text import Heard

ANSWER, START, END, COORD, SIZE, EOS = 3, 7, 9, 5, 6, 0


def start(prompting: Prompting, max_tokens: int, heard: Heard | None = None) -> ReasoningState:
    request = Request("query", "where?", max_tokens=max_tokens, reasoning=True)
    state = skill_named("query").start(prompting, request, heard)
    assert isinstance(state, ReasoningState)
    return state


def words(text: str) -> list[SampledToken]:
    return [SampledToken(token_id) for token_id in ByteTokenizer().encode(text)]


def place(*bins: int) -> list[SampledToken]:
    return [SampledToken(COORD, coord_bin=b) for b in bins]


def feed(state: ReasoningState, *tokens: SampledToken) -> bool:
    """Take tokens as the engine does: none may come after the end of a phase."""
    ends = [state.advance(token) for token in tokens]
    assert not any(ends[:-1])
    return ends[-1]


# --- phases -------------------------------------------------------------------------------------


def test_the_answer_token_ends_the_thought_and_the_suffix_starts_the_answer(
    prompting: Prompting,
) -> None:
    state = start(prompting, 10)
    assert feed(state, *words("hm"), SampledToken(ANSWER))
    assert state.next_phase() == (3,)
    assert feed(state, *words("ok"), SampledToken(EOS))
    assert state.next_phase() is None
    result = state.build_result(Request("query", "where?"), EndReason.EOS)
    assert result.text == "ok"
    assert result.reasoning is not None
    assert result.reasoning.text == "hm"
    assert result.token_ids == tuple(token.id for token in words("ok"))
    assert result.reasoning.token_ids == tuple(token.id for token in words("hm"))


@pytest.mark.parametrize("extra", [40, ANSWER, EOS, COORD])
def test_a_thought_cut_by_its_budget_takes_one_more_token_and_throws_it_away(
    prompting: Prompting, extra: int
) -> None:
    state = start(prompting, 3)
    assert state.max_new_tokens == 4
    assert feed(state, *words("abc"), SampledToken(extra))
    assert state.build_reasoning().text == "abc"
    assert state.next_phase() == (3,)
    assert state.max_new_tokens == 3


def test_a_thought_may_be_empty(prompting: Prompting) -> None:
    state = start(prompting, 3)
    assert feed(state, SampledToken(ANSWER))
    assert state.next_phase() == (3,)
    assert state.build_reasoning().text == ""


def test_later_positions_are_those_of_the_suffix_and_of_the_answer_that_is_fed(
    prompting: Prompting,
) -> None:
    state = start(prompting, 10)
    assert state.later_positions == 1 + 10 - 1
    feed(state, SampledToken(ANSWER))
    assert state.later_positions == 0


# --- what may come ------------------------------------------------------------------------------


def test_a_thought_has_coordinates_and_no_end_and_no_size_but_for_its_first_token(
    prompting: Prompting,
) -> None:
    state = start(prompting, 10)
    assert state.constraint_ahead(0).forbidden == ()
    assert state.constraint_ahead(1).forbidden == (EOS, SIZE)
    feed(state, *words("a"))
    for ahead in (0, 1):
        constraint = state.constraint_ahead(ahead)
        assert constraint.forbidden == (EOS, SIZE)
        assert constraint.spatial
        assert constraint.permits(ANSWER)


def test_an_answer_after_a_thought_is_constrained_like_any_answer(prompting: Prompting) -> None:
    state = start(prompting, 10)
    feed(state, *words("a"), SampledToken(ANSWER))
    assert state.constraint_ahead(0).forbidden == ()
    assert state.constraint_ahead(1).forbidden == (ANSWER,)
    assert not state.constraint_ahead(0).spatial


def test_an_end_token_as_the_first_one_of_a_thought_does_not_end_it(prompting: Prompting) -> None:
    state = start(prompting, 10)
    assert not feed(state, SampledToken(EOS))
    assert feed(state, *words("a"), SampledToken(ANSWER))
    assert state.build_reasoning().token_ids == (EOS, FIRST_TEXT_ID + ord("a"))


# --- grounding ----------------------------------------------------------------------------------


def test_words_between_ground_tokens_carry_their_points(prompting: Prompting) -> None:
    state = start(prompting, 40)
    feed(
        state,
        *words("see "),
        SampledToken(START), *place(4, 8, 2, 1), *words("the cups"), SampledToken(END),
        *words(", ok"),
        SampledToken(ANSWER),
    )  # fmt: skip
    reasoning = state.build_reasoning()
    assert reasoning.text == "see the cups, ok"
    assert reasoning.grounding == (Grounding(4, 12, ((0.25, 0.5), (0.125, 0.0625))),)
    assert reasoning.text[4:12] == "the cups"


def test_a_lone_coordinate_is_no_point_and_an_odd_one_is_dropped(prompting: Prompting) -> None:
    state = start(prompting, 40)
    feed(
        state,
        *place(4), SampledToken(START), *words("a"), *place(1, 2, 3), SampledToken(ANSWER),
    )  # fmt: skip
    assert state.build_reasoning().grounding == (Grounding(0, 1, ((0.0625, 0.125),)),)


def test_points_without_ground_tokens_belong_to_the_whole_thought(prompting: Prompting) -> None:
    state = start(prompting, 40)
    feed(state, *words("ab"), *place(8, 8), SampledToken(ANSWER))
    assert state.build_reasoning().grounding == (Grounding(0, 2, ((0.5, 0.5),)),)


def test_a_listener_hears_the_end_of_the_thought_and_then_only_the_answer(
    prompting: Prompting,
) -> None:
    heard = Heard()
    state = start(prompting, 40, heard)
    feed(state, *words("hm"))
    assert (heard.token_ids, heard.reasoning) == ([], None)
    feed(state, SampledToken(ANSWER))
    assert heard.reasoning is not None
    assert heard.reasoning.text == "hm"
    feed(state, *words("ok"), SampledToken(EOS))
    assert heard.token_ids == [token.id for token in words("ok")]


@given(
    st.lists(st.sampled_from([START, END, COORD, 30, 40, 50]), max_size=30),
    st.integers(1, 30),
)
def test_grounded_spans_lie_in_the_text_in_order_and_hold_every_pair(
    ids: list[int], max_tokens: int
) -> None:
    state = start(tiny_prompting(), max_tokens)
    tokens = [SampledToken(i, coord_bin=n % 16 if i == COORD else -1) for n, i in enumerate(ids)]
    for token in tokens[:max_tokens]:
        assert not state.advance(token)
    assert state.advance(SampledToken(ANSWER))
    reasoning = state.build_reasoning()
    assert reasoning.token_ids == tuple(ids[:max_tokens])
    spans = [(part.start, part.end) for part in reasoning.grounding]
    assert spans == sorted(spans)
    assert all(0 <= begin <= end <= len(reasoning.text) for begin, end in spans)
    assert all(part.points for part in reasoning.grounding)
    num_points = sum(len(part.points) for part in reasoning.grounding)
    assert num_points <= reasoning.token_ids.count(COORD) // 2
