from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.skills.outline_text import COMMANDS, GRID, OutlineError, path_from_pieces
from photon_ros.skills.svg_path import rings_of


@pytest.mark.parametrize(
    ("pieces", "path"),
    [
        ("", ""),
        ("M 0 0 L 960 0 L 960 960 Z", "M 0 0 L 1 0 L 1 1 Z"),
        ("M 480 240", "M 0.5 0.25"),
        ("M 100 200 l - 300 0 z", "M 0.104 0.208 l -0.312 0 z"),
        ("m - 1 - 1", "m -0.001 -0.001"),
        ("M 0 0 L - 0 0", "M 0 0 L 0 0"),
        ("M 10 20 30", "M 0.01 0.021"),  # an odd number is dropped
        ("M 1 2 L 3", "M 0.001 0.002 L"),
        ("H 480 V 240", "H V"),  # single numbers are odd ones
        ("Z", "Z"),
        ("M 9600 9600", "M 10 10"),
        ("M -5 10", "M -0.005 0.01"),
    ],
)
def test_numbers_become_decimals_of_the_box_in_pairs(pieces: str, path: str) -> None:
    assert path_from_pieces(pieces.split()) == path


@pytest.mark.parametrize(
    ("pieces", "complaint"),
    [
        ("480 480 M 0 0", "starts with '480', not with a command"),
        ("- 480 M", "starts with '-'"),
        ("M 0 0 L red", "'red' at piece 4 is neither a command nor a number"),
        ("M 1 1 L 2 -", "'-' at the end negates nothing"),
        ("M 1 1 - L 2 2", "'-' before 'L' at piece 4 negates nothing"),
        ("M - - 1", "'-' at piece 2 is neither"),
        ("M 1.5 2", "'1.5' at piece 1 is neither"),
        ("M ٣ 2", "is neither a command nor a number"),
        ("ML 1 2", "starts with 'ML'"),
        ("M 1 2 B 3 4", "'B' at piece 3 is neither"),
        ("M 1_0 2", "'1_0' at piece 1 is neither"),
    ],
)
def test_what_breaks_the_grammar_is_an_error_that_says_where(pieces: str, complaint: str) -> None:
    with pytest.raises(OutlineError, match=re.escape(complaint)):
        path_from_pieces(pieces.split())


numbers = st.lists(st.integers(-2 * GRID, 2 * GRID), max_size=8)
commands = st.lists(st.tuples(st.sampled_from(sorted(COMMANDS)), numbers), max_size=6)


def spelled(drawn: list[tuple[str, list[int]]]) -> list[str]:
    pieces = []
    for letter, values in drawn:
        pieces.append(letter)
        for value in values:
            pieces += ["-", str(-value)] if value < 0 else [str(value)]
    return pieces


@given(commands)
def test_every_spelling_is_a_path_that_can_be_drawn(drawn: list[tuple[str, list[int]]]) -> None:
    path = path_from_pieces(spelled(drawn))
    words = path.split()
    assert [word for word in words if word.isalpha()] == [letter for letter, _ in drawn]
    values = [float(word) for word in words if not word.isalpha()]
    kept = [value for _, values in drawn for value in values[: len(values) // 2 * 2]]
    assert values == pytest.approx([value / GRID for value in kept], abs=5.1e-4)
    assert all(re.fullmatch(r"-?\d+(\.\d{1,3})?", w) for w in words if not w.isalpha())
    assert all(len(ring) >= 3 for ring in rings_of(path))


def shape_of(pieces: list[str]) -> str:
    """A letter for each piece: Command, minus sign, Number, or none of them (X)."""
    kinds = {**dict.fromkeys("MLz", "C"), "-": "-", **dict.fromkeys(("7", "960", "-3"), "N")}
    return "".join(kinds.get(piece, "X") for piece in pieces)


@given(st.lists(st.sampled_from(["M", "L", "z", "-", "7", "960", "x", "", "-3"]), max_size=12))
def test_any_pieces_are_a_path_or_an_outline_error(pieces: list[str]) -> None:
    shape = shape_of(pieces)
    if re.fullmatch(r"(C(-?N)*)*", shape) is None:
        with pytest.raises(OutlineError) as caught:
            path_from_pieces(pieces)
        allowed = re.match(r"C(C|-?N)*-?", shape)
        if allowed is None:
            complaint = f"it starts with {pieces[0]!r}, not with a command"
        else:
            place = allowed.end()
            complaint = f" at piece {place}" if place < len(shape) else "at the end"
        assert complaint in str(caught.value)
        return
    words = path_from_pieces(pieces).split()
    assert [word for word in words if word.isalpha()] == [p for p in pieces if p in ("M", "L", "z")]
    # Every second number is the last of its pair; an odd one at the end of a command is dropped.
    assert [word.isalpha() for word in words] == [
        letter == "C"
        for run in re.findall(r"C(?:-?N)*", shape)
        for letter in "C" + "N" * (run.count("N") // 2 * 2)
    ]
    rings_of(" ".join(words))
