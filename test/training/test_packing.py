"""Packed questions: the tokens the family would read, targets that decode to the truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.engine.interfaces import SampledToken
from photon_ros.models.moondream.checkpoint import build_prompting
from photon_ros.models.moondream.region import coord_values, size_values
from photon_ros.models.nano import vocabulary
from photon_ros.models.nano.tokenizer import NanoTokenizer
from photon_ros.skills.registry import SKILLS
from photon_ros.skills.ring import RingState
from training.architecture import CONFIG
from training.export import build_tokenizer
from training.packing import (
    NONE,
    NUM_COORD_BINS,
    NUM_SIZE_BINS,
    PREFIX_LEN,
    coord_bin,
    pack,
    patches_of,
    prompt_ids,
    size_bin,
    size_of_bin,
)
from training.pool import Mix, Renderer
from training.questions import ANY, Question, ask

RENDERER = Renderer(11, Mix(1, 0, 0, 0), None)
RICH = next(s for s in map(RENDERER.sample, range(50)) if len(s.kinds) >= 4)


@pytest.fixture
def prompting(tmp_path: Path) -> Prompting:
    """What the product knows of a model of this architecture."""
    build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return build_prompting(CONFIG, "nano", NanoTokenizer(tmp_path / "tokenizer.json"))


def test_bins_are_those_of_the_family() -> None:
    bins = np.arange(NUM_COORD_BINS, dtype=np.float32)
    values = np.array(coord_values(NUM_COORD_BINS), np.float32)
    assert np.allclose(coord_bin(values), bins, atol=1e-4)
    bins = np.arange(NUM_SIZE_BINS, dtype=np.float32)
    values = np.array(size_values(NUM_SIZE_BINS), np.float32)
    assert np.allclose(size_of_bin(bins), values, rtol=1e-5)
    assert np.allclose(size_bin(values), bins, atol=1e-3)


@given(value=st.floats(0, 1, width=32))
def test_every_value_has_a_bin(value: float) -> None:
    array = np.array([value], np.float32)
    assert 0 <= coord_bin(array)[0] <= NUM_COORD_BINS - 1
    assert 0 <= size_bin(array)[0] <= NUM_SIZE_BINS - 1


def test_a_detect_answer_is_laid_out_as_the_family_reads_it() -> None:
    question = Question("detect", ANY, ANY, (0, 1))
    packed = pack([RICH], [[question]], np.random.default_rng(0), jitter_bins=0.0)
    coord, size = vocabulary.COORD_ID, vocabulary.SIZE_ID
    prompt = prompt_ids(question)
    assert prompt[0] == vocabulary.SKILL_IDS["detect"]
    assert prompt[3] == vocabulary.SEPARATOR_ID
    assert packed.ids[0].tolist() == [*prompt, coord, coord, size, coord, coord, size]
    assert packed.positions[0].tolist() == list(range(PREFIX_LEN, PREFIX_LEN + 10))
    eos = vocabulary.EOS_ID
    expected = [NONE, NONE, NONE, coord, NONE, NONE, coord, NONE, NONE, eos]
    assert packed.next_id[0].tolist() == expected


def test_a_point_answer_has_no_sizes() -> None:
    question = Question("point", ANY, ANY, (0, 1))
    packed = pack([RICH], [[question]], np.random.default_rng(0))
    assert packed.ids[0, 4:].tolist() == [vocabulary.COORD_ID] * 4
    assert (packed.size_target == NONE).all()
    eos, coord = vocabulary.EOS_ID, vocabulary.COORD_ID
    assert packed.next_id[0, 3:].tolist() == [coord, NONE, coord, NONE, eos]


def test_an_outline_is_laid_out_as_its_grammar_reads_it() -> None:
    """Box, then sixteen corners; the end may come where a corner may begin."""
    question = Question("segment", ANY, ANY, (1,))
    packed = pack([RICH], [[question]], np.random.default_rng(0), jitter_bins=0.0)
    coord, size, eos = vocabulary.COORD_ID, vocabulary.SIZE_ID, vocabulary.EOS_ID
    prompt = prompt_ids(question)
    assert prompt[0] == vocabulary.SKILL_IDS["segment"]
    answer = [coord, coord, size, *[coord] * 32]
    assert packed.ids[0].tolist() == [*prompt, *answer]
    boundary = [coord, NONE] * 16 + [eos]
    assert packed.next_id[0].tolist() == [NONE, NONE, NONE, coord, NONE, NONE, *boundary]
    assert packed.draws[0].tolist() == [False] * 6 + [True] * 33
    assert packed.looks_at[0, 3:-1].any(-1).all()
    assert not packed.looks_at[0, -1].any()
    corners = packed.coord_target[0, 6:-1].numpy().reshape(16, 2) / NUM_COORD_BINS
    assert corners == pytest.approx(RICH.corners[1], abs=1.01 / NUM_COORD_BINS)
    assert packed.coord_target[0, -1] == NONE
    fed = packed.coords[0, 7:].numpy()
    assert fed == pytest.approx(corners.reshape(-1), abs=0.51 / NUM_COORD_BINS)


def test_the_engine_follows_the_layout_of_an_outline(prompting: Prompting) -> None:
    """Every answer in training is one that the grammar of the product can take."""
    for answer in ((1,), ()):
        question = Question("segment", ANY, ANY, answer)
        packed = pack([RICH], [[question]], np.random.default_rng(0))
        state = RingState(prompting, "object", 100)
        start = question.num_prompt_tokens
        for at in range(start - 1, question.num_tokens):
            constraint = state.constraint_ahead(0)
            told = int(packed.next_id[0, at])
            is_last = at + 1 == question.num_tokens
            token_id = vocabulary.EOS_ID if is_last else int(packed.ids[0, at + 1])
            assert constraint.permits(token_id)
            may_end = constraint.permits(vocabulary.EOS_ID)
            assert may_end == (told != NONE), "what may end is taught whether it does"
            assert told in (NONE, token_id)
            is_over = state.advance(SampledToken(id=token_id))
            assert is_over == is_last


def test_a_point_is_fed_after_the_skill_as_the_product_feeds_it(prompting: Prompting) -> None:
    cone, red = vocabulary.CLASSES.index("cone"), vocabulary.COLOURS.index("red")
    for colour, kind, point in ((red, cone, (0.123, 0.877)), (ANY, ANY, None)):
        question = Question("segment", colour, kind, (), point)
        refs = () if point is None else (point,)
        request = Request(skill="segment", prompt=question.prompt, spatial_refs=refs)
        expected = SKILLS["segment"].prompt(prompting, request, has_frame=True)
        assert prompt_ids(question) == list(expected.ids)
        packed = pack([RICH], [[question]], np.random.default_rng(0))
        for place, (value,) in expected.values:
            assert float(packed.coords[0, place]) == pytest.approx(value, abs=1e-6)
        assert len(expected.values) == (0 if point is None else 2)
        assert packed.next_id[0, -1] == vocabulary.EOS_ID


def test_corners_are_fed_further_off_than_centres() -> None:
    question = [[Question("segment", ANY, ANY, (0,))]] * 40
    plain = pack([RICH] * 40, question, np.random.default_rng(0), jitter_bins=0.0)
    rough = pack([RICH] * 40, question, np.random.default_rng(0), jitter_bins=1.0)
    assert torch.equal(plain.coord_target, rough.coord_target)
    off = (plain.coords - rough.coords).abs() * NUM_COORD_BINS
    assert 0.3 < float(off[:, 4:6].mean()) < 1.6
    assert 1.2 < float(off[:, 7:].mean()) < 3.5
    assert float(rough.coords.min()) >= 0
    assert float(rough.coords.max()) < 1


def test_an_absent_thing_ends_at_once() -> None:
    for skill in vocabulary.SKILL_IDS:
        packed = pack([RICH], [[Question(skill, 0, 0, ())]], np.random.default_rng(0))
        assert packed.next_id[0].tolist() == [NONE, NONE, NONE, vocabulary.EOS_ID]
        assert not packed.looks_at.any()
        assert not packed.draws.any()


@settings(max_examples=25, deadline=None)
@given(index=st.integers(0, 500))
def test_targets_decode_to_the_true_boxes(index: int) -> None:
    sample = RENDERER.sample(index)
    rng = np.random.default_rng(index)
    asked = [q for q in ask(sample, rng, 6, 110) if q.skill == "detect" and q.answer]
    if not asked:
        return
    packed = pack([sample], [asked], rng, jitter_bins=0.0)
    at = 0
    for question in asked:
        at += 3
        for thing in question.answer:
            x_min, y_min, x_max, y_max = sample.boxes[thing]
            x, y = packed.coord_target[0, at] / 256, packed.coord_target[0, at + 1] / 256
            assert float(x) == pytest.approx((x_min + x_max) / 2, abs=1 / 256)
            assert float(y) == pytest.approx((y_min + y_max) / 2, abs=1 / 256)
            width, height = size_of_bin(packed.size_target[0, at + 2].numpy())
            assert width == pytest.approx(x_max - x_min, rel=1e-3)
            assert height == pytest.approx(y_max - y_min, rel=1e-3)
            # What is fed back is the value of the nearest bin.
            assert float(packed.coords[0, at + 1]) == pytest.approx(float(x), abs=0.51 / 256)
            at += 3
        at += 1


def test_jitter_moves_what_is_fed_and_not_what_is_answered() -> None:
    question = [[Question("detect", ANY, ANY, tuple(range(len(RICH.kinds))))]]
    plain = pack([RICH], question, np.random.default_rng(0), jitter_bins=0.0)
    rough = pack([RICH], question, np.random.default_rng(0), jitter_bins=2.0)
    assert torch.equal(plain.coord_target, rough.coord_target)
    assert torch.equal(plain.size_target, rough.size_target)
    moved = (plain.coords - rough.coords).abs() * 256
    assert 0.5 < float(moved[plain.ids == vocabulary.COORD_ID].mean()) < 4
    assert float(rough.coords.max()) < 1
    assert float(rough.sizes.max()) <= 1


def test_a_question_sees_the_image_and_its_own_past_only() -> None:
    asked = [Question("detect", ANY, ANY, (0,)), Question("point", ANY, ANY, (0, 1))]
    short = [Question("point", 0, 0, ())]
    packed = pack([RICH, RICH], [asked, short], np.random.default_rng(0))
    allowed = packed.allowed()[:, 0]
    assert allowed.shape == (2, 15, PREFIX_LEN + 15)
    assert allowed[..., :PREFIX_LEN].all()
    own = allowed[0, :, PREFIX_LEN:]
    for i in range(15):
        for j in range(15):
            same = (i < 7) == (j < 7)
            assert bool(own[i, j]) == (same and j <= i)
    assert packed.question[1, 4:].tolist() == [-1] * 11
    assert packed.positions[0, 7:].tolist() == list(range(PREFIX_LEN, PREFIX_LEN + 8))


def test_every_object_has_a_patch_to_look_at() -> None:
    patches = patches_of(RICH).reshape(-1, 12, 12)
    for i, (x_min, y_min, x_max, y_max) in enumerate(RICH.boxes * 12):
        rows, columns = np.nonzero(patches[i])
        assert len(rows)
        assert columns.min() >= int(x_min)
        assert columns.max() <= x_max
        assert rows.min() >= int(y_min)
        assert rows.max() <= y_max
