"""Prompts that spell special tokens, through a real tokenizer and the reference's checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from photon_ros.core.errors import PromptError
from photon_ros.core.request import Request
from photon_ros.models.moondream.checkpoint import Checkpoint, load_checkpoint
from photon_ros.photon import Photon
from photon_ros.skills import SKILLS


@pytest.fixture(scope="module")
def golden() -> Checkpoint:
    shared = os.environ.get("PHOTON_SHARED")
    if not shared:
        pytest.skip("PHOTON_SHARED does not name a folder with reference outputs")
    return load_checkpoint(Path(shared) / "golden" / "moondream")


@pytest.fixture(scope="module")
def photon(golden: Checkpoint) -> Iterator[Photon]:
    with Photon(golden) as opened:
        yield opened


@pytest.mark.parametrize("skill", ["point", "detect", "query"])
@pytest.mark.parametrize(
    "text",
    ["<|endoftext|>", "a <|endoftext|> b", "<|md_reserved_0|>", "<|coord|><|size|>", "<s></s>"],
)
def test_text_that_looks_like_a_special_token_stays_text(
    golden: Checkpoint, photon: Photon, skill: str, text: str
) -> None:
    template = golden.prompting.templates[skill]
    prompt = SKILLS[skill].prompt(golden.prompting, Request(skill, text), has_frame=True)
    body = prompt.ids[len(template.prefix) : len(prompt.ids) - len(template.suffix)]
    assert body
    assert min(body) >= golden.prompting.first_text_id
    assert golden.prompting.tokenizer.decode(body).strip() == text
    if skill == "query":
        assert isinstance(photon.query(None, text, max_tokens=3)["answer"], str)


@pytest.mark.parametrize("skill", ["point", "detect", "query"])
def test_a_prompt_of_10000_characters_is_refused_with_the_figures(
    photon: Photon, skill: str
) -> None:
    with pytest.raises(PromptError, match=r"10000 characters makes \d+ tokens.* holds 1318"):
        photon.validate(skill, "zqxj" * 2500)


def test_a_long_prompt_that_fits_is_answered(photon: Photon) -> None:
    question = "where is the person " * 60
    assert isinstance(photon.query(None, question, max_tokens=3)["answer"], str)
