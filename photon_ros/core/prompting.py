"""What a skill needs to know of a model: its tokenizer, special ids and prompt templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    " " + object for point and detect). ``single_suffix`` is the suffix written once, where
    ``suffix`` writes it more often; None when they are the same. ``spells_outline`` says how an
    outline is drawn: spelled in text, or else as corners.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    object_prefix: str = " "
    single_suffix: tuple[int, ...] | None = None
    spells_outline: bool = True

    @property
    def suffix_once(self) -> tuple[int, ...]:
        """The suffix written once."""
        return self.suffix if self.single_suffix is None else self.single_suffix


@dataclass(frozen=True, slots=True)
class Prompting:
    """A model's way of being asked: everything comes from its checkpoint's config.

    Attributes:
        model_name: used in error messages.
        templates: prompt template of each skill the model was trained for; a caption has one
            a length, "caption_short" and so on.
        bos_id, eos_id: special token ids.
        coord_id, size_id: ids of a coordinate and of a size; when the vocabulary has no such
            tokens, two ids that only ever stand for them where nothing else can be meant.
        max_context: positions a sequence may use, image prefix included.
        prefix_len: positions of BOS and the image.
        coord_values: value of each coordinate bin, shape (num_coord_bins,), in [0, 1).
        size_values: value of each size bin, shape (num_size_bins,), in (0, 1].
        has_coord_token: False when the vocabulary has no coordinate token.
        answer_id: starts an answer, and never occurs inside one; None when there is no such id.
        thinking_id: starts a reasoning; None when the model does not reason.
        start_ground_id, end_ground_id: around the words of a reasoning that points belong to.
        first_text_id: ids below it are special; outlines are spelled with the others.
        peers: names of known models by skill, for error messages.
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
    has_coord_token: bool = True
    answer_id: int | None = None
    thinking_id: int | None = None
    start_ground_id: int | None = None
    end_ground_id: int | None = None
    first_text_id: int = 21
    peers: Mapping[str, Sequence[str]] = field(default_factory=dict)
