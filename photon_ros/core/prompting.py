"""What a skill needs to know of a model: its tokenizer, special ids and prompt templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class Tokenizer(Protocol):
    """Text to token ids and back. Never adds or produces special tokens from text."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; raises UnknownWordError on a closed vocabulary."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special tokens skipped."""
        ...


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Ids placed before and after the encoded prompt text.

    ``object_prefix`` is put before the text itself before encoding (the family writes
    " " + object for point and detect).
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    object_prefix: str = " "


@dataclass(frozen=True, slots=True)
class Prompting:
    """A model's way of being asked: everything comes from its checkpoint's config.

    Attributes:
        model_name: used in error messages.
        templates: prompt template of each skill the model was trained for.
        bos_id, eos_id, coord_id, size_id: special token ids.
        max_context: positions a sequence may use, image prefix included.
        prefix_len: positions of BOS and the image.
        coord_values: value of each coordinate bin, shape (num_coord_bins,), in [0, 1).
        size_values: value of each size bin, shape (num_size_bins,), in (0, 1].
    """

    model_name: str
    tokenizer: Tokenizer
    templates: Mapping[str, PromptTemplate]
    bos_id: int
    eos_id: int
    coord_id: int
    size_id: int
    max_context: int
    prefix_len: int
    coord_values: tuple[float, ...]
    size_values: tuple[float, ...]
