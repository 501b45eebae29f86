"""SVG path data to rings of points, curves flattened.

https://www.w3.org/TR/SVG11/paths.html#PathData, without the elliptical arc: an outline cannot
spell its seven numbers. As there, what follows M is a line, and any other command repeats while
there are numbers left; numbers that are too few for one more of it are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Point = tuple[float, float]
Ring = tuple[Point, ...]

CURVE_PARTS = 24
_NUMBERS_PER_COMMAND = {
    "M": 2, "L": 2, "H": 1, "V": 1, "C": 6, "S": 4, "Q": 4, "T": 2, "A": 7,
}  # fmt: skip


def rings_of(path: str) -> tuple[Ring, ...]:
    """Return the rings of a path; a ring has at least three points and is closed implicitly."""
    pen = _Pen()
    for letter, numbers in _commands(path):
        pen.command(letter, numbers)
    pen.lift()
    return tuple(pen.rings)


def _commands(path: str) -> Iterator[tuple[str, list[float]]]:
    """Yield each command with the numbers after it."""
    letter = ""
    numbers: list[float] = []
    for word in path.split():
        if word.isalpha():
            if letter:
                yield letter, numbers
            letter, numbers = word, []
        else:
            numbers.append(float(word))
    if letter:
        yield letter, numbers


@dataclass(slots=True)
class _Pen:
    """Draws commands and keeps the rings.

    Attributes:
        at: where the pen is; the start of the ring after it was closed.
        control: last control point of the curve before, for a smooth one; else None.
        control_of: which curve it belongs to, "C" or "Q".
    """

    rings: list[Ring] = field(default_factory=list)
    ring: list[Point] = field(default_factory=list)
    at: Point = (0.0, 0.0)
    start: Point = (0.0, 0.0)
    control: Point | None = None
    control_of: str = ""

    def command(self, letter: str, numbers: Sequence[float]) -> None:
        """Draw one command as often as there are numbers for it."""
        kind = letter.upper()
        if kind == "Z":
            self.lift()
            self.at = self.start
            return
        count = _NUMBERS_PER_COMMAND[kind]
        for begin in range(0, len(numbers) // count * count, count):
            origin = self.at if letter.islower() else (0.0, 0.0)
            self._draw(kind, numbers[begin : begin + count], origin)
            if kind == "M":
                kind = "L"

    def lift(self) -> None:
        """End the ring."""
        if len(self.ring) >= 3:
            self.rings.append(tuple(self.ring))
        self.ring = []

    def _draw(self, kind: str, numbers: Sequence[float], origin: Point) -> None:
        if kind == "A":  # never drawn: where it would end is all that is known
            kind, numbers = "L", numbers[5:]
        if kind == "H":
            points = [(origin[0] + numbers[0], self.at[1])]
        elif kind == "V":
            points = [(self.at[0], origin[1] + numbers[0])]
        else:
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            points = [(origin[0] + x, origin[1] + y) for x, y in pairs]
        if kind == "M":
            self.lift()
            self.start = self.at = points[0]
            self.control = None
        elif kind in "CSQT":
            self._curve(kind, points)
        else:
            self._line_to(points[0])
            self.control = None

    def _curve(self, kind: str, points: list[Point]) -> None:
        family = "C" if kind in "CS" else "Q"
        if kind in "ST":
            points = [self._reflected(family), *points]
        controls, end = points[:-1], points[-1]
        curve = _bezier(self.at, *controls, end)
        for part in range(1, CURVE_PARTS):
            self._line_to(curve(part / CURVE_PARTS))
        self._line_to(end)
        self.control, self.control_of = controls[-1], family

    def _reflected(self, family: str) -> Point:
        """Return the control point that goes on smoothly from the curve before."""
        if self.control is None or self.control_of != family:
            return self.at
        return 2 * self.at[0] - self.control[0], 2 * self.at[1] - self.control[1]

    def _line_to(self, point: Point) -> None:
        if not self.ring:
            self.ring.append(self.at)
        self.ring.append(point)
        self.at = point


def _bezier(*points: Point) -> Callable[[float], Point]:
    """Return the Bezier curve with these control points, by de Casteljau's construction."""

    def at(t: float) -> Point:
        level = list(points)
        while len(level) > 1:
            level = [_between(a, b, t) for a, b in pairwise(level)]
        return level[0]

    return at


def _between(a: Point, b: Point, t: float) -> Point:
    return a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t
