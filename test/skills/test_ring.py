from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.mask import mask_of
from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import DetectionKind, EndReason, Result
from photon_ros.engine.interfaces import SampledToken
from photon_ros.skills import skill_named
from photon_ros.skills.ring import RingState

from .conftest import tiny_prompting
from .test_spatial import COORD, EOS, SIZE, coord, size

REQUEST = Request("segment", " cup ", max_tokens=99)
BOX = (coord(8, prob=0.75, bin_prob=0.5), coord(4), size(9, 8, bin_prob=0.5))


@pytest.fixture
def drawing(prompting: Prompting) -> Prompting:
    return drawing_prompting()


def drawing_prompting() -> Prompting:
    """A model that draws outlines as corners."""
    prompting = tiny_prompting()
    template = replace(prompting.templates["segment"], spells_outline=False)
    return replace(prompting, templates={**prompting.templates, "segment": template})


def start(prompting: Prompting, max_tokens: int = 99) -> RingState:
    request = replace(REQUEST, max_tokens=max_tokens)
    state = skill_named("segment").start(prompting, request)
    assert isinstance(state, RingState)
    return state


def drawn(prompting: Prompting, *tokens: SampledToken) -> Result:
    state = start(prompting)
    for token in tokens:
        assert not state.advance(token)
    return state.build_result(REQUEST, EndReason.EOS)


def corners(*bins: int) -> list[SampledToken]:
    return [coord(b) for b in bins]


# --- the grammar --------------------------------------------------------------------------------


def test_only_the_object_and_a_corner_may_be_the_end(drawing: Prompting) -> None:
    state = start(drawing)
    allowed = [state.constraint_ahead(n).allowed for n in range(8)]
    choice, forced = (EOS, COORD), (COORD,)
    assert allowed == [choice, forced, (SIZE,), choice, forced, choice, forced, choice]
    assert all(state.constraint_ahead(n).spatial for n in range(8))


@given(st.integers(0, 12), st.integers(0, 9))
def test_looking_ahead_and_getting_there_are_the_same(num_taken: int, num_ahead: int) -> None:
    prompting = drawing_prompting()
    tokens = [*BOX, *corners(*range(14)), *corners(*range(14))]
    looking, going = start(prompting), start(prompting)
    for token in tokens[:num_taken]:
        looking.advance(token)
    for token in tokens[: num_taken + num_ahead]:
        going.advance(token)
    assert looking.constraint_ahead(num_ahead) is going.constraint_ahead(0)


def test_it_is_one_phase_that_ends_at_its_budget(drawing: Prompting) -> None:
    state = start(drawing, max_tokens=12)
    assert (state.max_new_tokens, state.length_reason) == (12, EndReason.MAX_TOKENS)
    assert (state.later_positions, state.next_phase()) == (0, None)


def test_the_end_token_ends_it(drawing: Prompting) -> None:
    assert start(drawing).advance(SampledToken(EOS))


# --- what the tokens mean -----------------------------------------------------------------------


def test_corners_are_a_mask_in_image_units(drawing: Prompting) -> None:
    result = drawn(drawing, *BOX, *corners(0, 0, 8, 0, 8, 8))
    outline = result.outline
    assert outline is not None
    assert outline.path == "M 0 0 L 0.5 0 L 0.5 0.5 Z"
    assert outline.box == (0.25, 0.125, 0.75, 0.375)
    assert (outline.parse_error, outline.raw_text) == ("", "0.000,0.000 0.500,0.000 0.500,0.500")
    (found,) = result.detections
    assert (found.kind, found.label) == (DetectionKind.MASK, "cup")
    assert found.corners() == outline.box
    assert found.polygon == (((0.25, 0.125), (0.5, 0.125), (0.5, 0.25)),)
    assert (found.score, found.coord_prob) == (0.75, 0.25)
    assert result.token_ids == (COORD, COORD, SIZE, *(COORD,) * 6)
    assert mask_of(found.polygon, width_px=64, height_px=64).sum() == pytest.approx(64, abs=8)


def test_nothing_found_is_no_object_and_no_outline(drawing: Prompting) -> None:
    result = drawn(drawing)
    assert result.detections == ()
    assert result.outline is not None
    assert (result.outline.box, result.outline.path, result.outline.parse_error) == (None, "", "")


@pytest.mark.parametrize("tokens", [BOX[:1], BOX[:2]])
def test_a_box_that_was_cut_off_is_none(
    drawing: Prompting, tokens: tuple[SampledToken, ...]
) -> None:
    assert drawn(drawing, *tokens).detections == ()


def test_a_corner_that_was_cut_off_is_dropped(drawing: Prompting) -> None:
    result = drawn(drawing, *BOX, *corners(0, 0, 8, 0, 8, 8, 3))
    assert result.outline is not None
    assert result.outline.path == "M 0 0 L 0.5 0 L 0.5 0.5 Z"


@pytest.mark.parametrize("bins", [(0, 0), (0, 0, 8, 8)])
def test_fewer_than_three_corners_are_an_error_and_leave_the_box(
    drawing: Prompting, bins: tuple[int, ...]
) -> None:
    result = drawn(drawing, *BOX, *corners(*bins))
    assert result.outline is not None
    assert result.outline.path == ""
    assert result.outline.parse_error == f"{len(bins) // 2} corners enclose nothing"
    assert [found.kind for found in result.detections] == [DetectionKind.BOX]


def test_a_box_alone_is_a_box(drawing: Prompting) -> None:
    result = drawn(drawing, *BOX)
    assert result.outline is not None
    assert (result.outline.path, result.outline.parse_error) == ("", "")
    assert [found.kind for found in result.detections] == [DetectionKind.BOX]


def test_the_prompt_is_that_of_any_outline(drawing: Prompting, prompting: Prompting) -> None:
    skill = skill_named("segment")
    assert skill.prompt(drawing, REQUEST, has_frame=True) == skill.prompt(
        prompting, REQUEST, has_frame=True
    )
