from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.errors import InputError, PromptError, UnsupportedSkillError
from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import DetectionKind, EndReason, Result
from photon_ros.engine.interfaces import SampledToken
from photon_ros.skills import SKILLS, skill_named
from photon_ros.skills.skill import AnswerState

from .conftest import ByteTokenizer, tiny_prompting
from .test_text import Heard

COORD, SIZE, EOS = 5, 6, 0


def start(prompting: Prompting, skill: str, max_objects: int = 50) -> AnswerState:
    return skill_named(skill).start(prompting, Request(skill, " cup ", max_objects=max_objects))


def coord(bin_: int, prob: float = 1.0, bin_prob: float = 1.0) -> SampledToken:
    return SampledToken(COORD, coord_bin=bin_, prob=prob, bin_prob=bin_prob)


def size(width_bin: int, height_bin: int, bin_prob: float = 1.0) -> SampledToken:
    return SampledToken(SIZE, size_bins=(width_bin, height_bin), bin_prob=bin_prob)


def feed(state: AnswerState, *tokens: SampledToken) -> Result:
    for token in tokens:
        assert not state.advance(token)
    return state.build_result(Request("point", "cup"), EndReason.EOS)


# --- prompts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("skill", "first"), [("point", 8), ("detect", 9)])
def test_an_object_is_stripped_and_written_after_a_blank(
    prompting: Prompting, tokenizer: ByteTokenizer, skill: str, first: int
) -> None:
    prompt = skill_named(skill).prompt(prompting, Request(skill, " red cup\n"), has_frame=True)
    assert prompt.ids == (1, first, *tokenizer.encode(" red cup"), 3)
    assert prompt.values == ()


@pytest.mark.parametrize("skill", ["point", "detect", "segment"])
@pytest.mark.parametrize("prompt", ["", "   ", "\n\t"])
def test_an_empty_prompt_is_refused(prompting: Prompting, skill: str, prompt: str) -> None:
    with pytest.raises(PromptError, match=f"the prompt of {skill} is empty"):
        skill_named(skill).prompt(prompting, Request(skill, prompt), has_frame=True)


@pytest.mark.parametrize("skill", ["point", "detect", "segment"])
def test_a_prompt_longer_than_the_context_says_how_long_and_how_much_fits(
    prompting: Prompting, skill: str
) -> None:
    with pytest.raises(PromptError, match=r"prompt of 10000 characters makes .* holds 74"):
        skill_named(skill).prompt(prompting, Request(skill, "x" * 10_000), has_frame=True)


@pytest.mark.parametrize("skill", list(SKILLS))
def test_a_skill_that_the_model_lacks_names_models_that_have_it(
    prompting: Prompting, skill: str
) -> None:
    bare = replace(prompting, templates={}, peers={skill: ("mighty", "mightier")})
    prompt = "short" if skill == "caption" else "cup"
    message = f"tiny has no {skill} skill; models that do: mighty, mightier"
    assert not skill_named(skill).is_known_to(bare)
    with pytest.raises(UnsupportedSkillError, match=message):
        skill_named(skill).prompt(bare, Request(skill, prompt), has_frame=True)


def test_an_unknown_skill_lists_the_known_ones() -> None:
    listed = "point, detect, segment, query, caption"
    with pytest.raises(InputError, match=f"no skill 'segmentt'; the skills are: {listed}"):
        skill_named("segmentt")


@pytest.mark.parametrize("skill", ["point", "detect"])
def test_what_objects_do_not_take_is_refused(prompting: Prompting, skill: str) -> None:
    for request in (
        Request(skill, "cup", reasoning=True),
        Request(skill, "cup", spatial_refs=((0.5, 0.5),)),
    ):
        with pytest.raises(InputError, match=f"{skill} takes no"):
            skill_named(skill).prompt(prompting, request, has_frame=True)


@pytest.mark.parametrize("skill", ["point", "detect", "segment"])
def test_what_is_no_text_cannot_be_streamed(prompting: Prompting, skill: str) -> None:
    with pytest.raises(InputError, match=f"{skill} has no text to stream"):
        skill_named(skill).start(prompting, Request(skill, "cup"), Heard())


# --- the grammar --------------------------------------------------------------------------------


def test_only_the_start_of_an_object_is_a_choice(prompting: Prompting) -> None:
    state = start(prompting, "detect")
    ahead = [state.constraint_ahead(n) for n in range(4)]
    assert [constraint.allowed for constraint in ahead if constraint] == [
        (EOS, COORD), (COORD,), (SIZE,), (EOS, COORD),
    ]  # fmt: skip
    assert all(constraint.spatial for constraint in ahead if constraint)
    pointing = start(prompting, "point")
    assert [c.allowed for n in range(3) if (c := pointing.constraint_ahead(n))] == [
        (EOS, COORD), (COORD,), (EOS, COORD),
    ]  # fmt: skip


@given(st.sampled_from(["point", "detect"]), st.integers(0, 12), st.integers(0, 6))
def test_looking_ahead_and_getting_there_are_the_same(
    skill: str, num_taken: int, num_ahead: int
) -> None:
    prompting = tiny_prompting()
    cycle = [coord(1), coord(2), size(3, 4)][: 3 if skill == "detect" else 2]
    looking, going = start(prompting, skill), start(prompting, skill)
    for n in range(num_taken):
        looking.advance(cycle[n % len(cycle)])
    for n in range(num_taken + num_ahead):
        going.advance(cycle[n % len(cycle)])
    assert looking.constraint_ahead(num_ahead) is going.constraint_ahead(0)


@pytest.mark.parametrize(("skill", "per_object"), [("point", 2), ("detect", 3)])
def test_the_budget_is_that_of_whole_objects_without_an_end(
    prompting: Prompting, skill: str, per_object: int
) -> None:
    state = start(prompting, skill, max_objects=7)
    assert state.max_new_tokens == 7 * per_object
    assert state.length_reason is EndReason.MAX_OBJECTS
    assert (state.later_positions, state.next_phase()) == (0, None)


def test_without_a_coordinate_token_any_id_but_the_end_starts_an_object(older: Prompting) -> None:
    state = start(older, "detect")
    first = state.constraint_ahead(0)
    assert first is not None
    assert (first.allowed, first.fold_to, first.spatial) == (None, older.coord_id, True)
    forced = [state.constraint_ahead(n) for n in (1, 2)]
    assert [constraint.allowed for constraint in forced if constraint] == [(0,), (1,)]


# --- what the tokens mean -----------------------------------------------------------------------


def test_points_are_bin_values_with_the_score_of_their_start(prompting: Prompting) -> None:
    result = feed(start(prompting, "point"), coord(4, prob=0.75, bin_prob=0.5), coord(8, 1, 0.25))
    (found,) = result.detections
    assert (found.kind, found.label) == (DetectionKind.POINT, "cup")
    assert (found.x, found.y, found.width, found.height) == (0.25, 0.5, 0.0, 0.0)
    assert (found.score, found.coord_prob) == (0.75, 0.125)
    assert result.token_ids == (COORD, COORD)


def test_boxes_have_a_centre_and_a_size_and_are_not_clamped(prompting: Prompting) -> None:
    result = feed(start(prompting, "detect"), coord(0), coord(8), size(9, 10, bin_prob=0.5))
    (found,) = result.detections
    assert found.kind is DetectionKind.BOX
    assert found.corners() == (-0.25, 0.0, 0.25, 1.0)
    assert found.coord_prob == 0.5


def test_an_object_that_is_cut_off_is_dropped(prompting: Prompting) -> None:
    result = feed(start(prompting, "detect"), coord(1), coord(2), size(3, 4), coord(5), coord(6))
    assert len(result.detections) == 1
    assert len(result.token_ids) == 5


def test_the_end_token_ends_the_answer_only_where_an_object_may_start(
    prompting: Prompting,
) -> None:
    state = start(prompting, "point")
    assert state.advance(SampledToken(EOS))
    assert state.build_result(Request("point", "cup"), EndReason.EOS).detections == ()
