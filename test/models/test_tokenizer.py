from __future__ import annotations

import json
from pathlib import Path

import pytest

from photon_ros.core.errors import ModelError, PromptError
from photon_ros.models.moondream.tokenizer import FileTokenizer


@pytest.fixture
def tokenizer(tmp_path: Path, tokenizer_json: str) -> FileTokenizer:
    file = tmp_path / "tokenizer.json"
    file.write_text(tokenizer_json)
    return FileTokenizer(file)


@pytest.mark.parametrize(
    "text",
    [
        "red cup",
        " red cup",
        "",
        "a  b\n",
        "Überraschung 橙色 🍊",
        "<|endoftext|>",
        "a<|reserved_4|>b",
    ],
)
def test_text_survives_the_round_trip(tokenizer: FileTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["\udcff", "red \ud800 cup", "\udc80" * 9])
def test_half_characters_are_no_text(tokenizer: FileTokenizer, text: str) -> None:
    with pytest.raises(PromptError, match=r"^the prompt is not valid text \(UTF-8\)$"):
        tokenizer.encode(text)


def test_known_words_are_one_token_each(tokenizer: FileTokenizer) -> None:
    assert len(tokenizer.encode(" person chair")) < len(" person chair") // 2


@pytest.mark.parametrize("text", ["<|endoftext|>", "red <|reserved_3|> cup", "<|reserved_0|>"])
def test_a_prompt_cannot_spell_a_special_token(tokenizer: FileTokenizer, text: str) -> None:
    assert min(tokenizer.encode(text)) > 9


def test_tokens_that_only_look_special_are_special(tmp_path: Path, tokenizer_json: str) -> None:
    data = json.loads(tokenizer_json)
    for token in data["added_tokens"]:
        token["special"] = False
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(data))
    tokenizer = FileTokenizer(file)
    assert min(tokenizer.encode("<|endoftext|> red")) > 9
    assert tokenizer.decode([0, *tokenizer.encode("red"), 5]) == "red"


def test_special_tokens_are_not_in_the_text(tokenizer: FileTokenizer) -> None:
    ids = [0, *tokenizer.encode("red"), 5, *tokenizer.encode(" cup"), 9]
    assert tokenizer.decode(ids) == "red cup"


def test_nothing_is_cut_off_or_filled_up(tmp_path: Path, tokenizer_json: str) -> None:
    data = json.loads(tokenizer_json)
    data["truncation"] = {
        "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    data["padding"] = {
        "strategy": {"Fixed": 6}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<|endoftext|>",
    }  # fmt: skip
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(data))
    tokenizer = FileTokenizer(file)
    assert tokenizer.decode(tokenizer.encode("xyzzy xyzzy")) == "xyzzy xyzzy"
    assert len(tokenizer.encode("z")) == 1


def test_ids_are_counted_and_found(tokenizer: FileTokenizer) -> None:
    assert tokenizer.id_of("<|endoftext|>") == 0
    assert tokenizer.id_of("<|nothing|>") is None
    assert 266 <= tokenizer.num_ids <= 280


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", '{"version": "1.0"}', "\x00\xff"])
def test_files_that_are_no_tokenizer_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a readable tokenizer"):
        FileTokenizer(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer: looked for .*tokenizer\.json"):
        FileTokenizer(tmp_path / "tokenizer.json")
