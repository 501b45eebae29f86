from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.skills.release import TextRelease, released_text

from .conftest import FIRST_TEXT_ID, ByteTokenizer


def pieces_of(text: str) -> list[str]:
    """What each byte of ``text`` releases, then the flush; pieces that are empty left out."""
    tokenizer = ByteTokenizer()
    release = TextRelease(tokenizer)
    pieces = [release.add(token_id) for token_id in tokenizer.encode(text)]
    return [piece for piece in (*pieces, release.flush()) if piece]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", []),
        ("cup", ["cup"]),
        ("a red cup", ["a ", "red ", "cup"]),
        (" a  b", [" ", "a ", " ", "b"]),
        ("one\ntwo three\n", ["one\n", "two ", "three\n"]),
        ("\n\n", ["\n", "\n"]),
        ("杯子 cup", ["杯", "子", " ", "cup"]),
        ("cup杯", ["cup杯"]),
        ("naïve café", ["naïve ", "café"]),
        ("🙂 ok", ["🙂 ", "ok"]),
    ],
)
def test_text_is_released_up_to_what_can_no_longer_change(text: str, pieces: list[str]) -> None:
    assert pieces_of(text) == pieces


def test_half_a_character_is_not_released() -> None:
    tokenizer = ByteTokenizer()
    release = TextRelease(tokenizer)
    first, second = "é".encode()
    assert release.add(FIRST_TEXT_ID + first) == ""
    assert release.add(FIRST_TEXT_ID + second) == ""
    assert release.flush() == "é"


def test_a_character_that_never_ends_is_shown_as_such() -> None:
    tokenizer = ByteTokenizer()
    assert released_text(tokenizer, [FIRST_TEXT_ID + 0xC3]) == "\ufffd"


def test_nothing_is_released_twice() -> None:
    tokenizer = ByteTokenizer()
    release = TextRelease(tokenizer)
    for token_id in tokenizer.encode("a b"):
        release.add(token_id)
    assert release.flush() == "b"
    assert release.flush() == ""


@given(st.text())
def test_the_pieces_joined_are_the_text(text: str) -> None:
    assert "".join(pieces_of(text)) == text


@given(st.text(alphabet="ab \n杯é", max_size=30), st.integers(0, 30))
def test_what_was_released_is_the_start_of_whatever_follows(text: str, cut: int) -> None:
    tokenizer = ByteTokenizer()
    release = TextRelease(tokenizer)
    ids = tokenizer.encode(text)[:cut]
    released = "".join(release.add(token_id) for token_id in ids)
    assert text.startswith(released)


class MergingTokenizer:
    """A tokenizer whose text of a token depends on the one before: "1" after "1" is a "2"."""

    def encode(self, text: str) -> list[int]:
        raise AssertionError("only decoded")

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids).replace("11", "2")


def test_a_word_that_the_next_token_changes_was_not_released_before() -> None:
    assert released_text(MergingTokenizer(), map(ord, "a 11 b")) == "a 2 b"
