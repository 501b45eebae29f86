from __future__ import annotations

from dataclasses import replace

import pytest

from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import DetectionKind, EndReason, Result
from photon_ros.engine.interfaces import SampledToken
from photon_ros.skills import skill_named
from photon_ros.skills.outlined import polygon_of
from photon_ros.skills.segment import SegmentState

from .conftest import ByteTokenizer
from .test_spatial import COORD, EOS, SIZE, coord, size

REQUEST = Request("segment", " the cup ", max_tokens=99)
BOX = (coord(8, prob=0.75, bin_prob=0.5), coord(4), size(9, 8, bin_prob=0.5))


def start(prompting: Prompting) -> SegmentState:
    state = skill_named("segment").start(prompting, REQUEST)
    assert isinstance(state, SegmentState)
    return state


class WordTokenizer(ByteTokenizer):
    """Ids of 1000 and more are whole numbers, with a blank before."""

    def decode(self, ids: object) -> str:
        (token_id,) = ids  # type: ignore[misc]  # an outline's tokens are decoded alone
        return f" {token_id - 1000}" if token_id >= 1000 else super().decode([token_id])


def spelled(text: str) -> list[SampledToken]:
    """Tokens of an outline: letters and signs as bytes, numbers whole."""
    tokenizer = ByteTokenizer()
    ids = []
    for word in text.split():
        ids += [1000 + int(word)] if word.isdigit() else tokenizer.encode(word)
    return [SampledToken(token_id) for token_id in ids]


def outlined(prompting: Prompting, *tokens: SampledToken) -> Result:
    state = start(replace(prompting, tokenizer=WordTokenizer()))
    for token in tokens:
        assert not state.advance(token)
    assert state.advance(SampledToken(EOS))
    return state.build_result(REQUEST, EndReason.EOS)


def test_the_object_is_written_without_a_blank_after_the_references(
    prompting: Prompting, tokenizer: ByteTokenizer
) -> None:
    request = Request("segment", " cup ", spatial_refs=((0.5, 0.25),))
    prompt = skill_named("segment").prompt(prompting, request, has_frame=True)
    assert prompt.ids == (1, 10, COORD, COORD, *tokenizer.encode("cup"), 3)
    assert prompt.values == ((2, (0.5,)), (3, (0.25,)))


def test_nothing_is_forced_and_places_are_places_everywhere(prompting: Prompting) -> None:
    state = start(prompting)
    for ahead in range(3):
        constraint = state.constraint_ahead(ahead)
        assert (constraint.allowed, constraint.forbidden) == (None, ())
        assert constraint.spatial
    assert state.max_new_tokens == 99
    assert state.length_reason is EndReason.MAX_TOKENS
    assert (state.later_positions, state.next_phase()) == (0, None)


def test_a_box_and_a_path_are_a_mask_in_image_units(prompting: Prompting) -> None:
    result = outlined(prompting, *BOX, *spelled("M 0 0 L 960 0 L 960 960 Z"))
    outline = result.outline
    assert outline is not None
    assert outline.path == "M 0 0 L 1 0 L 1 1 Z"
    assert outline.box == (0.25, 0.125, 0.75, 0.375)
    assert (outline.parse_error, outline.raw_text) == ("", "M 0 0 L 960 0 L 960 960 Z")
    (found,) = result.detections
    assert (found.kind, found.label) == (DetectionKind.MASK, "the cup")
    assert found.corners() == outline.box
    assert found.polygon == (((0.25, 0.125), (0.75, 0.125), (0.75, 0.375)),)
    assert found.polygon == polygon_of(outline)
    assert (found.score, found.coord_prob) == (0.75, 0.25)


def test_a_box_is_clamped_to_the_image(prompting: Prompting) -> None:
    result = outlined(prompting, coord(0), coord(15), size(10, 9))
    assert result.outline is not None
    assert result.outline.box == (0.0, 0.6875, 0.5, 1.0)


def test_only_the_first_centre_and_the_first_size_count(prompting: Prompting) -> None:
    result = outlined(prompting, *BOX, coord(1), size(1, 1), *spelled("M 0 0"), coord(2))
    assert result.outline is not None
    assert result.outline.box == (0.25, 0.125, 0.75, 0.375)
    assert result.outline.path == "M 0 0"


@pytest.mark.parametrize(
    "tokens", [(), (coord(1), size(2, 3)), (coord(1), coord(2)), (size(1, 2),)]
)
def test_without_a_centre_or_a_size_there_is_no_box_and_no_object(
    prompting: Prompting, tokens: tuple[SampledToken, ...]
) -> None:
    result = outlined(prompting, *tokens, *spelled("M 0 0 L 960 0 L 960 960 Z"))
    assert result.outline is not None
    assert result.outline.box is None
    assert result.outline.path
    assert result.detections == ()
    assert polygon_of(result.outline) == ()


def test_what_is_no_path_keeps_its_text_and_leaves_the_box(prompting: Prompting) -> None:
    result = outlined(prompting, *BOX, *spelled("M 1 1 L 2 -"))
    outline = result.outline
    assert outline is not None
    assert outline.path == ""
    assert outline.raw_text == "M 1 1 L 2 -"
    assert "negates nothing" in outline.parse_error
    (found,) = result.detections
    assert (found.kind, found.polygon) == (DetectionKind.BOX, ())


def test_special_tokens_and_blanks_spell_nothing(prompting: Prompting) -> None:
    blank = SampledToken(ByteTokenizer().encode(" ")[0])
    result = outlined(prompting, *BOX, SampledToken(17), blank, *spelled("M 960 960"))
    assert result.outline is not None
    assert result.outline.raw_text == "M 960 960"


def test_every_token_is_kept_with_the_result(prompting: Prompting) -> None:
    result = outlined(prompting, *BOX, *spelled("Z"))
    assert result.token_ids == (COORD, COORD, SIZE, ByteTokenizer().encode("Z")[0])
    assert (result.skill, result.prompt, result.end_reason) == (
        "segment", " the cup ", EndReason.EOS,
    )  # fmt: skip
