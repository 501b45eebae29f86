from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from photon_ros.core.errors import InputError, PromptError, UnsupportedSkillError
from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Reasoning
from photon_ros.engine.interfaces import SampledToken
from photon_ros.skills import skill_named
from photon_ros.skills.text import TextState

from .conftest import ByteTokenizer


class Heard:
    """Keeps what a listener is told."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.reasoning: Reasoning | None = None

    def on_token(self, token_id: int) -> None:
        self.token_ids.append(token_id)

    def on_reasoning(self, build: Callable[[], Reasoning]) -> None:
        self.reasoning = build()


def advance_all(state: TextState, ids: list[int]) -> bool:
    return [state.advance(SampledToken(i)) for i in ids][-1]


# --- the grammar of an answer -------------------------------------------------------------------


def test_the_first_token_may_be_any_and_later_ones_not_the_start_of_an_answer(
    prompting: Prompting,
) -> None:
    state = TextState(prompting, 10)
    assert state.constraint_ahead(0).forbidden == ()
    assert state.constraint_ahead(1).forbidden == (3,)
    state.advance(SampledToken(30))
    assert state.constraint_ahead(0).forbidden == (3,)
    assert not state.constraint_ahead(0).spatial


def test_a_model_without_an_answer_token_forbids_nothing(older: Prompting) -> None:
    state = TextState(older, 10)
    state.advance(SampledToken(30))
    assert state.constraint_ahead(0).forbidden == ()


def test_constraints_are_one_object_so_that_masks_are_not_written_again(
    prompting: Prompting,
) -> None:
    one, other = TextState(prompting, 10), TextState(prompting, 20)
    assert one.constraint_ahead(1) is other.constraint_ahead(2)


def test_the_end_token_ends_the_answer_and_is_not_part_of_it(
    prompting: Prompting, tokenizer: ByteTokenizer
) -> None:
    heard = Heard()
    state = TextState(prompting, 10, heard)
    ids = tokenizer.encode("a cup")
    assert not advance_all(state, ids)
    assert state.advance(SampledToken(0))
    assert state.next_phase() is None
    assert heard.token_ids == ids
    result = state.build_result(Request("query", "what?"), EndReason.EOS)
    assert (result.text, result.token_ids) == ("a cup", tuple(ids))
    assert (result.skill, result.prompt, result.end_reason) == ("query", "what?", EndReason.EOS)
    assert result.reasoning is None


def test_a_coordinate_token_in_an_answer_is_a_word_like_any_other(prompting: Prompting) -> None:
    state = TextState(prompting, 10)
    advance_all(state, [5, 6, 30])
    assert state.build_result(Request("query", "x"), EndReason.MAX_TOKENS).token_ids == (5, 6, 30)


# --- prompts ------------------------------------------------------------------------------------


def query(prompting: Prompting, *, has_frame: bool = True, **options: object) -> tuple[int, ...]:
    request = Request("query", options.pop("prompt", "hi"), **options)  # type: ignore[arg-type]
    return skill_named("query").prompt(prompting, request, has_frame=has_frame).ids


def test_a_question_is_followed_by_its_suffix_twice(
    prompting: Prompting, tokenizer: ByteTokenizer
) -> None:
    assert query(prompting) == (1, 11, *tokenizer.encode("hi"), 3, 3)


def test_a_question_is_taken_as_it_is_written(
    prompting: Prompting, tokenizer: ByteTokenizer
) -> None:
    assert query(prompting, prompt=" hi ") == (1, 11, *tokenizer.encode(" hi "), 3, 3)


def test_without_an_image_the_prompt_starts_with_bos(
    prompting: Prompting, tokenizer: ByteTokenizer
) -> None:
    ids = query(prompting, has_frame=False)
    assert ids == (2, 1, 11, *tokenizer.encode("hi"), 3, 3)


def test_a_reasoning_starts_with_its_token_after_one_suffix(
    prompting: Prompting, tokenizer: ByteTokenizer
) -> None:
    assert query(prompting, reasoning=True) == (1, 11, *tokenizer.encode("hi"), 3, 4)


def test_points_and_boxes_come_before_the_question_as_values(
    prompting: Prompting, tokenizer: ByteTokenizer
) -> None:
    request = Request("query", "hi", spatial_refs=((0.25, 0.5), (0.125, 0.25, 0.625, 0.5)))
    prompt = skill_named("query").prompt(prompting, request, has_frame=True)
    assert prompt.ids == (1, 11, 5, 5, 5, 5, 6, *tokenizer.encode("hi"), 3, 3)
    assert prompt.values == (
        (2, (0.25,)), (3, (0.5,)), (4, (0.375,)), (5, (0.375,)), (6, (0.5, 0.25)),
    )  # fmt: skip


def test_values_are_counted_from_bos_when_there_is_no_image(prompting: Prompting) -> None:
    request = Request("query", "hi", spatial_refs=((0.25, 0.5),))
    prompt = skill_named("query").prompt(prompting, request, has_frame=False)
    assert [prompt.ids[index] for index, _ in prompt.values] == [5, 5]


@pytest.mark.parametrize(("has_frame", "room"), [(True, 74), (False, 100)])
def test_a_question_that_does_not_fit_says_how_long_it_is_and_what_fits(
    prompting: Prompting, has_frame: bool, room: int
) -> None:
    overhead = 4 + (0 if has_frame else 1)
    longest = "x" * (room - overhead)
    assert len(query(prompting, prompt=longest, has_frame=has_frame)) == room
    with pytest.raises(PromptError, match=rf"makes {room + 1} tokens.*holds {room}"):
        query(prompting, prompt=longest + "x", has_frame=has_frame)


@pytest.mark.parametrize("prompt", ["", " ", "\n"])
def test_an_empty_question_is_refused(prompting: Prompting, prompt: str) -> None:
    with pytest.raises(PromptError, match="the prompt of query is empty"):
        query(prompting, prompt=prompt)


def test_a_model_that_cannot_reason_says_so(older: Prompting) -> None:
    with pytest.raises(UnsupportedSkillError, match="tiny does not reason"):
        query(older, reasoning=True)


@pytest.mark.parametrize(("length", "ids"), [("short", (1, 12, 3)), ("normal", (1, 13, 3))])
def test_a_caption_is_its_template(prompting: Prompting, length: str, ids: tuple[int, ...]) -> None:
    request = Request("caption", length)
    assert skill_named("caption").prompt(prompting, request, has_frame=True).ids == ids


def test_a_caption_of_a_length_the_model_does_not_know_lists_those_it_does(
    prompting: Prompting,
) -> None:
    with pytest.raises(PromptError, match="tiny writes captions of length short, normal; got 'lo"):
        skill_named("caption").prompt(prompting, Request("caption", "long"), has_frame=True)


def test_a_model_without_captions_says_so(prompting: Prompting) -> None:
    bare = replace(prompting, templates={"point": prompting.templates["point"]})
    assert not skill_named("caption").is_known_to(bare)
    assert skill_named("caption").is_known_to(prompting)
    with pytest.raises(UnsupportedSkillError, match="tiny has no caption skill; models that do"):
        skill_named("caption").prompt(bare, Request("caption", "short"), has_frame=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"reasoning": True}, "caption takes no reasoning"),
        ({"spatial_refs": ((0.5, 0.5),)}, "caption takes no spatial references"),
    ],
)
def test_what_a_caption_does_not_take_is_refused(
    prompting: Prompting, options: dict[str, object], complaint: str
) -> None:
    request = Request("caption", "short", **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=complaint):
        skill_named("caption").prompt(prompting, request, has_frame=True)


@pytest.mark.parametrize(
    ("ref", "complaint"),
    [
        ((0.5,), "is .x, y. or"),
        ((0.1, 0.2, 0.3), "is .x, y. or"),
        ((0.5, 1.5), "normalised"),
        ((-0.1, 0.5), "normalised"),
        ((float("nan"), 0.5), "normalised"),
        ((0.5, 0.5, 0.4, 0.6), "minimum above its maximum"),
        ((0.5, 0.7, 0.6, 0.6), "minimum above its maximum"),
    ],
)
def test_a_reference_that_is_no_place_is_refused(ref: tuple[float, ...], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Request("query", "what?", spatial_refs=(ref,))
