from __future__ import annotations

from typing import Any

import pytest

from photon_ros.core.errors import ModelError
from photon_ros.core.prompting import PromptTemplate
from photon_ros.models.moondream.builtin import builtin_config
from photon_ros.models.moondream.config import TokenizerConfig
from photon_ros.models.moondream.templates import build_templates


def build(templates: dict[str, Any], vocab_size: int = 100) -> dict[str, PromptTemplate]:
    return build_templates(TokenizerConfig(0, 0, 5, 6, templates=templates), vocab_size)


def test_objects_are_preceded_by_a_blank_and_questions_are_not() -> None:
    entry = {"prefix": [1, 9], "suffix": [3]}
    built = build({"point": entry, "detect": entry, "query": entry, "segment": entry})
    assert built["point"] == PromptTemplate((1, 9), (3,), " ")
    assert built["detect"] == PromptTemplate((1, 9), (3,), " ")
    assert built["segment"] == PromptTemplate((1, 9), (3,), "")
    assert built["query"] == PromptTemplate((1, 9), (3, 3), "", single_suffix=(3,))
    assert built["query"].suffix_once == (3,)
    assert built["point"].suffix_once == (3,)


def test_a_file_may_say_otherwise() -> None:
    built = build(
        {
            "point": {"prefix": [], "suffix": [3, 4], "object_prefix": ""},
            "query": {"prefix": [1], "suffix": [3], "suffix_repeats": 1},
        }
    )
    assert built["point"] == PromptTemplate((), (3, 4), "")
    assert built["query"] == PromptTemplate((1,), (3,), "")


def test_each_caption_length_is_a_skill_of_its_own() -> None:
    built = build({"caption": {"short": [1, 32, 3], "long": [1, 33, 3], "normal": None}})
    assert built == {
        "caption_short": PromptTemplate((1, 32, 3), (), ""),
        "caption_long": PromptTemplate((1, 33, 3), (), ""),
    }


def test_skills_given_as_null_are_absent() -> None:
    assert build({"query": None, "point": {"prefix": [1], "suffix": [2]}}).keys() == {"point"}


def test_released_models_know_their_skills() -> None:
    newer, older = builtin_config("moondream2"), builtin_config("moondream-0.5b")
    built = build_templates(newer.tokenizer, newer.text.vocab_size)
    captions = {"caption_short", "caption_normal", "caption_long"}
    assert built.keys() == {"point", "detect", "query", *captions}
    assert built["detect"] == PromptTemplate((1, 7235, 476, 2), (3,), " ")
    assert built["query"].suffix == (3, 3)
    old = build_templates(older.tokenizer, older.text.vocab_size)
    assert old.keys() == built.keys() - {"caption_long"}
    assert old["point"] == PromptTemplate((198, 198, 12727, 25), (628,), " ")
    assert old["query"].suffix == (198, 198, 33706, 25)


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({"point": [1]}, r"templates.point must be a mapping, got \[1\]"),
        ({"point": {"suffix": [3]}}, "point.prefix must be a list of ids, got None"),
        ({"point": {"prefix": [1], "suffix": 3}}, "point.suffix must be a list of ids, got 3"),
        ({"point": {"prefix": ["1"], "suffix": [3]}}, "point.prefix must be a list of ids"),
        ({"point": {"prefix": [True], "suffix": [3]}}, "point.prefix must be a list of ids"),
        (
            {"point": {"prefix": [100], "suffix": []}},
            r"point.prefix holds 100; ids are in \[0, 100",
        ),
        ({"caption": {"short": [-1]}}, "caption.short holds -1"),
        (
            {"point": {"prefix": [1], "suffix": [3], "object_prefix": 1}},
            "point.object_prefix must be text, got 1",
        ),
        (
            {"query": {"prefix": [1], "suffix": [3], "suffix_repeats": 0}},
            "query.suffix_repeats must be a whole number >= 1, got 0",
        ),
    ],
)
def test_malformed_templates_are_named(templates: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build(templates)


def test_an_outline_is_spelled_or_drawn_as_corners() -> None:
    entry = {"prefix": [1], "suffix": [3]}
    assert build({"segment": entry})["segment"].spells_outline
    assert not build({"segment": entry | {"outline": "corners"}})["segment"].spells_outline
    with pytest.raises(ModelError, match="outline must be spelled or corners, got 'sketched'"):
        build({"segment": entry | {"outline": "sketched"}})
