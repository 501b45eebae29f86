"""From the pieces of text that spell an outline to SVG path data.

    outline   = (command number*)*
    command   = one of M L H V C S Q T A Z, in either case
    number    = "-"? digits, in 960ths of the box

Numbers count in pairs; an odd one at the end of a command is dropped, so a command that takes
single numbers, or seven, cannot be spelled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

GRID = 960  # numbers are in units of 1 / GRID of the box
COMMANDS = frozenset("MLHVCSQTAZmlhvcsqtaz")
_DIGITS = re.compile(r"-?[0-9]+")


class OutlineError(ValueError):
    """The pieces do not follow the grammar; the message says where."""


def path_from_pieces(pieces: Sequence[str]) -> str:
    """Return SVG path data in units of the box, three decimals at most; "" for no pieces.

    Raises:
        OutlineError: the first piece is no command, a piece is neither command nor number, or a
            "-" negates nothing.
    """
    words: list[str] = []
    numbers: list[int] = []
    is_negative = False
    for place, piece in enumerate(pieces):
        if piece in COMMANDS:
            if is_negative:
                raise OutlineError(f"'-' before {piece!r} at piece {place} negates nothing")
            words += _in_pairs(numbers)
            numbers = []
            words.append(piece)
        elif not words:
            raise OutlineError(f"it starts with {piece!r}, not with a command")
        elif piece == "-" and not is_negative:
            is_negative = True
        elif _DIGITS.fullmatch(piece):
            numbers.append(-int(piece) if is_negative else int(piece))
            is_negative = False
        else:
            raise OutlineError(f"{piece!r} at piece {place} is neither a command nor a number")
    if is_negative:
        raise OutlineError("'-' at the end negates nothing")
    return " ".join((*words, *_in_pairs(numbers)))


def _in_pairs(numbers: Sequence[int]) -> list[str]:
    return [_decimal(number) for number in numbers[: len(numbers) // 2 * 2]]


def _decimal(number: int) -> str:
    text = f"{number / GRID:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
