"""A model's way of being asked, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from photon_ros.core.prompting import Prompting, PromptTemplate

FIRST_TEXT_ID = 21


class ByteTokenizer:
    """Each byte of the text is one id, from ``FIRST_TEXT_ID`` on; the ids before are special."""

    def encode(self, text: str) -> list[int]:
        return [FIRST_TEXT_ID + byte for byte in text.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        data = bytes(i - FIRST_TEXT_ID for i in ids if i >= FIRST_TEXT_ID)
        return data.decode(errors="replace")


@pytest.fixture
def tokenizer() -> ByteTokenizer:
    return ByteTokenizer()


@pytest.fixture
def prompting() -> Prompting:
    return tiny_prompting()


def tiny_prompting() -> Prompting:
    """A model with every skill and 16 coordinate and 11 size bins."""
    return Prompting(
        model_name="tiny",
        tokenizer=ByteTokenizer(),
        templates={
            "point": PromptTemplate((1, 8), (3,)),
            "detect": PromptTemplate((1, 9), (3,)),
            "segment": PromptTemplate((1, 10), (3,), ""),
            "query": PromptTemplate((1, 11), (3, 3), "", single_suffix=(3,)),
            "caption_short": PromptTemplate((1, 12, 3), (), ""),
            "caption_normal": PromptTemplate((1, 13, 3), (), ""),
        },
        bos_id=2,
        eos_id=0,
        coord_id=5,
        size_id=6,
        max_context=100,
        prefix_len=26,
        coord_values=tuple(b / 16 for b in range(16)),
        size_values=tuple(2.0 ** (b - 10) for b in range(11)),
        answer_id=3,
        thinking_id=4,
        start_ground_id=7,
        end_ground_id=9,
        peers={"segment": ("mighty", "mightier")},
    )


@pytest.fixture
def older(prompting: Prompting) -> Prompting:
    """A model whose vocabulary has no coordinate token, and which does not reason."""
    return replace(
        prompting,
        has_coord_token=False,
        eos_id=250,
        bos_id=250,
        coord_id=0,
        size_id=1,
        answer_id=None,
        thinking_id=None,
        start_ground_id=None,
        end_ground_id=None,
    )
