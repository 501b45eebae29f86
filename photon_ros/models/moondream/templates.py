"""Prompt templates: from a checkpoint's config to the ids around a prompt, by skill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from photon_ros.core.errors import ModelError
from photon_ros.core.prompting import PromptTemplate
from photon_ros.models.moondream.config import TokenizerConfig

# The family was trained with a blank before the name of an object, and none before a question
# or before what is to be segmented.
_OBJECT_PREFIXES = {"point": " ", "detect": " ", "query": "", "segment": ""}

# moondream2 was trained with the suffix of a question written twice.
_SUFFIX_REPEATS = {"query": 2}


def build_templates(config: TokenizerConfig, vocab_size: int) -> dict[str, PromptTemplate]:
    """Return the template of each skill in ``config.templates``.

    A caption has one a length: "caption_short" and so on. Beside "prefix" and "suffix", a
    template of the file may hold "object_prefix" (text put before the prompt), "suffix_repeats"
    (how often the suffix is written) and "outline" ("spelled" or "corners"), which have the
    family's defaults.

    Raises:
        ModelError: a template is of another form, or holds an id outside the vocabulary.
    """
    templates: dict[str, PromptTemplate] = {}
    for skill, entry in config.templates.items():
        if entry is None:  # the family's way of saying "not trained for it"
            continue
        if not isinstance(entry, Mapping):
            raise ModelError(f"tokenizer.templates.{skill} must be a mapping, got {entry!r}")
        if skill == "caption":
            for length, ids in entry.items():
                if ids is not None:
                    prefix = _ids(ids, f"caption.{length}", vocab_size)
                    templates[f"caption_{length}"] = PromptTemplate(prefix, (), "")
        else:
            templates[skill] = _template(skill, entry, vocab_size)
    return templates


def _template(skill: str, entry: Mapping[str, Any], vocab_size: int) -> PromptTemplate:
    object_prefix = entry.get("object_prefix", _OBJECT_PREFIXES.get(skill, ""))
    if not isinstance(object_prefix, str):
        raise ModelError(
            f"tokenizer.templates.{skill}.object_prefix must be text, got {object_prefix!r}"
        )
    repeats = entry.get("suffix_repeats", _SUFFIX_REPEATS.get(skill, 1))
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ModelError(
            f"tokenizer.templates.{skill}.suffix_repeats must be a whole number >= 1, "
            f"got {repeats!r}"
        )
    outline = entry.get("outline", "spelled")
    if outline not in ("spelled", "corners"):
        raise ModelError(
            f"tokenizer.templates.{skill}.outline must be spelled or corners, got {outline!r}"
        )
    suffix = _ids(entry.get("suffix"), f"{skill}.suffix", vocab_size)
    return PromptTemplate(
        prefix=_ids(entry.get("prefix"), f"{skill}.prefix", vocab_size),
        suffix=suffix * repeats,
        object_prefix=object_prefix,
        single_suffix=suffix if repeats > 1 else None,
        spells_outline=outline == "spelled",
    )


def _ids(value: Any, name: str, vocab_size: int) -> tuple[int, ...]:
    is_list = isinstance(value, (list, tuple))
    if not is_list or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
        raise ModelError(f"tokenizer.templates.{name} must be a list of ids, got {value!r}")
    outside = [i for i in value if not 0 <= i < vocab_size]
    if outside:
        raise ModelError(
            f"tokenizer.templates.{name} holds {outside[0]}; ids are in [0, {vocab_size})"
        )
    return tuple(value)
