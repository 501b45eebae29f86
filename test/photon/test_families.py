"""Checkpoints of every age and precision, and crop budgets."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from photon_ros.core.errors import InputError, UnsupportedSkillError
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import Detection
from photon_ros.engine.config import EngineConfig
from photon_ros.models.moondream.checkpoint import Checkpoint, build_prompting
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.photon import Photon

from .conftest import CONFIG, ByteTokenizer, lively_model, make_checkpoint

OLD_TOKENIZER = {
    "bos_id": 256,
    "eos_id": 256,
    "templates": {
        "point": {"prefix": [198, 198, 12], "suffix": [28]},
        "detect": {"prefix": [198, 198, 47], "suffix": [28]},
        "query": {"prefix": [198, 198, 24], "suffix": [198, 33], "suffix_repeats": 1},
        "caption": {"short": [198, 198, 16, 25]},
    },
}


@pytest.fixture(scope="module")
def older() -> Checkpoint:
    """Random weights with the ids of the older vocabulary: no tokens for places."""
    config = MoondreamConfig.from_dict(CONFIG.to_dict() | {"tokenizer": OLD_TOKENIZER})
    model = lively_model(config, 2, {256: 4.0})
    return Checkpoint(model, build_prompting(config, "older", ByteTokenizer()), config, "older")


def reference_objects(
    checkpoint: Checkpoint, frame: Frame, prompt: str, skill: str, max_objects: int
) -> list[tuple[float, ...]]:
    """The reference's rule, one position at a time: anything but the end token is an object."""
    model, prompting = checkpoint.model, checkpoint.prompting
    assert isinstance(model, MoondreamModel)
    template = prompting.templates[skill]
    words = prompting.tokenizer.encode(template.object_prefix + prompt)
    crops = checkpoint.cut(frame.image)
    with torch.inference_mode():
        prefix = model.encode_frames([torch.from_numpy(crops.pixels)], [crops.tiling])[0]
        ids = torch.tensor([*template.prefix, *words, *template.suffix])
        fed = torch.cat((prefix, model.embed_tokens(ids)))
        found = []
        while len(found) < max_objects:
            hidden = last_hidden(model, fed, len(prefix))
            if int(model.vocab_logits(hidden)[0].argmax()) == prompting.eos_id:
                break
            place: list[float] = []
            for _ in range(2):
                bins = model.coord_logits(last_hidden(model, fed, len(prefix))).argmax(-1)
                place.append(prompting.coord_values[int(bins)])
                fed = torch.cat((fed, model.embed_coords(bins)))
            if skill == "detect":
                sizes = model.size_logits(last_hidden(model, fed, len(prefix))).argmax(-1)
                place += [prompting.size_values[b] for b in sizes[0].tolist()]
                fed = torch.cat((fed, model.embed_sizes(sizes)))
            found.append(tuple(place))
    return found


def last_hidden(model: MoondreamModel, fed: torch.Tensor, prefix_len: int) -> torch.Tensor:
    """Return (1, D) after the last position, everything computed anew."""
    length = len(fed)
    positions = torch.arange(length)
    seen = (positions[None] <= positions[:, None]) | (
        (positions[None] < prefix_len) & (positions[:, None] < prefix_len)
    )

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return torch.einsum("bhqk,bkhe->bqhe", weights, v)

    return model.decode(fed[None], positions[None], attend)[0, -1:]


def places(found: tuple[Detection, ...], skill: str) -> list[tuple[float, ...]]:
    if skill == "point":
        return [(d.x, d.y) for d in found]
    return [(d.x, d.y, d.width, d.height) for d in found]


# --- older vocabularies -------------------------------------------------------------------------


@pytest.mark.parametrize("skill", ["point", "detect"])
@pytest.mark.parametrize("hold_constrained", [False, True])
def test_any_token_but_the_end_is_an_object_where_there_is_no_coordinate_token(
    older: Checkpoint, frame: Frame, skill: str, hold_constrained: bool
) -> None:
    prompts = [f"thing {n}" for n in range(8)]
    config = EngineConfig(hold_constrained=hold_constrained)
    with Photon(older, config=config) as photon:
        futures = [photon.submit(Request(skill, p, frame, max_objects=4)) for p in prompts]
        results = [future.result() for future in futures]
    wanted = [reference_objects(older, frame, prompt, skill, 4) for prompt in prompts]
    assert [places(result.detections, skill) for result in results] == wanted
    assert len({len(objects) for objects in wanted}) > 1
    for found in itertools.chain.from_iterable(result.detections for result in results):
        assert 0 < found.score <= 1


def test_an_older_model_answers_in_words_and_does_not_reason(
    older: Checkpoint, frame: Frame
) -> None:
    with Photon(older) as photon:
        assert photon.skills == ("point", "detect", "query", "caption")
        assert isinstance(photon.query(frame, "what?", max_tokens=9)["answer"], str)
        result = photon.submit(
            Request("query", "what?", frame, max_tokens=30, temperature=3.0)
        ).result()
        stand_ins = {older.prompting.coord_id, older.prompting.size_id}
        assert stand_ins == {0, 1}
        assert photon.query(frame, "?", spatial_refs=[(0.5, 0.5)], max_tokens=3).keys() == {
            "answer"
        }
        assert result.token_ids
        with pytest.raises(UnsupportedSkillError, match="older does not reason"):
            photon.query(frame, "what?", reasoning=True)


def test_a_stand_in_in_a_text_is_the_text_token_that_it_is(older: Checkpoint, frame: Frame) -> None:
    """An answer made only of stand-ins is fed back as words, not as places."""
    model = older.model
    assert isinstance(model, MoondreamModel)
    before = model.text.lm_head.bias.clone()
    with torch.no_grad():
        model.text.lm_head.bias[0] += 100
    try:
        with Photon(older) as photon:
            result = photon.submit(Request("query", "what?", frame, max_tokens=3)).result()
        assert result.token_ids == (0, 0, 0)
    finally:
        with torch.no_grad():
            model.text.lm_head.bias.copy_(before)


# --- newer ones, by the same slow rule ----------------------------------------------------------


@pytest.mark.parametrize("skill", ["point", "detect"])
def test_a_constrained_choice_is_the_references_where_no_third_token_wins(
    checkpoint: Checkpoint, frame: Frame, skill: str
) -> None:
    model = checkpoint.model
    assert isinstance(model, MoondreamModel)
    only_two = make_checkpoint()
    assert isinstance(only_two.model, MoondreamModel)
    with torch.no_grad():
        bias = only_two.model.text.lm_head.bias
        bias -= 100
        bias[[0, 5]] += 100
    with Photon(only_two) as photon:
        for n in range(6):
            result = photon.submit(Request(skill, f"thing {n}", frame, max_objects=4)).result()
            wanted = reference_objects(only_two, frame, f"thing {n}", skill, 4)
            assert places(result.detections, skill) == wanted


# --- precision and budgets ----------------------------------------------------------------------


def in_precision(dtype: torch.dtype) -> Checkpoint:
    checkpoint = make_checkpoint()
    assert isinstance(checkpoint.model, MoondreamModel)
    return replace(checkpoint, model=checkpoint.model.to(dtype).freeze())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_skill_answers_in_half_precision(dtype: torch.dtype, frame: Frame) -> None:
    with Photon(in_precision(dtype)) as photon:
        handle = photon.encode_image(frame.image)
        assert photon.point(handle, "cup", max_objects=2)["points"]
        assert photon.detect(handle, "cup", max_objects=2)["objects"]
        assert "path" in photon.segment(handle, "cup", max_tokens=9)
        answer = photon.query(
            handle, "?", reasoning=True, spatial_refs=[(0.1, 0.2, 0.3, 0.4)], max_tokens=9
        )
        assert {"reasoning", "answer"} == set(answer)
        assert "caption" in photon.caption(handle, "short", max_tokens=9, temperature=0.5)


def test_half_precision_finds_nearly_the_same(frame: Frame) -> None:
    def first(dtype: torch.dtype) -> float:
        with Photon(in_precision(dtype)) as photon:
            return photon.point(frame, "thing 1", max_objects=1)["points"][0]["score"]

    exact = first(torch.float32)
    assert first(torch.bfloat16) == pytest.approx(exact, abs=0.05)
    assert first(torch.float16) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("budget", [0, 1, 2, 4, None])
def test_a_crop_budget_is_for_one_request(photon: Photon, frame: Frame, budget: int | None) -> None:
    assert photon.query(frame, "what?", max_tokens=5, max_crops=budget)["answer"] is not None
    assert photon.detect(frame, "cup", max_objects=1, max_crops=budget).keys() == {"objects"}


def test_a_negative_crop_budget_is_refused(photon: Photon, frame: Frame) -> None:
    with pytest.raises(InputError, match="max_crops must be from 0 to 64, got -1"):
        photon.query(frame, "what?", max_crops=-1)


def test_the_fast_resize_is_chosen_for_a_whole_photon(checkpoint: Checkpoint, frame: Frame) -> None:
    ask: Callable[[Photon], object] = lambda photon: photon.detect(frame, "cup", max_objects=2)  # noqa: E731
    with Photon(checkpoint, resize="fast") as photon:
        assert ask(photon)
    with pytest.raises(InputError, match="resize must be one of exact, fast, got 'quick'"):
        Photon(checkpoint, resize="quick")  # type: ignore[arg-type]


def test_a_frame_of_one_colour_is_the_same_either_way(checkpoint: Checkpoint) -> None:
    plain = np.full((48, 64, 3), 90, np.uint8)
    answers = []
    for method in ("exact", "fast"):
        with Photon(checkpoint, resize=method) as photon:  # type: ignore[arg-type]
            answers.append(photon.query(plain, "what?", max_tokens=9))
    assert answers[0] == answers[1]
