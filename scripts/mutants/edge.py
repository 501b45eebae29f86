"""Edge: one safety edge of the engine, and the small change that removes it.

``edges.diff`` holds them all:

    === what goes wrong without it
    tests test_a.py test_b.py
    --- file.py
    -a line as it is
    +the line as the mutant has it
     a line that stays, where the others alone would not be unique
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

ENGINE = Path("photon_ros/engine")
EDGES = Path(__file__).with_name("edges.diff")


class EdgeError(Exception):
    """A change that does not apply: the source has moved on and the edge must follow it."""


@dataclass
class Change:
    """Replace the only occurrence of some lines in a file of the engine."""

    file: str
    old: str = ""
    new: str = ""

    def apply(self, root: Path) -> None:
        """Change the copy under ``root``; raises EdgeError unless ``old`` is there once."""
        path = root / ENGINE / self.file
        text = path.read_text()
        count = ("\n" + text).count("\n" + self.old)
        if count != 1 or not self.old:
            raise EdgeError(f"{self.file}: found {count} times, must be once: {self.old!r}")
        changed = ("\n" + text).replace("\n" + self.old, "\n" + self.new)[1:]
        compile(changed, str(path), "exec")
        path.write_text(changed)


@dataclass
class Edge:
    """One edge by the name of what goes wrong without it.

    Attributes:
        name: what the mutant does, in a few words.
        tests: files of test/engine of which one must object.
        changes: applied together.
    """

    name: str
    tests: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)


def load_edges(path: Path = EDGES) -> list[Edge]:
    """Read all edges; raises EdgeError for a line that means nothing, or a name used twice."""
    edges: list[Edge] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("=== "):
            edges.append(Edge(line[4:]))
        elif line.startswith("tests "):
            edges[-1].tests += line.split()[1:]
        elif line.startswith("--- "):
            edges[-1].changes.append(Change(line[4:]))
        elif line[:1] in ("-", "+", " "):
            change = edges[-1].changes[-1]
            change.old += "" if line[0] == "+" else line[1:] + "\n"
            change.new += "" if line[0] == "-" else line[1:] + "\n"
        elif line and not line.startswith("#"):
            raise EdgeError(f"{path.name}:{number}: {line!r} is no part of an edge")
    names = [edge.name for edge in edges]
    if len(set(names)) != len(names):
        raise EdgeError(f"used twice: {sorted({n for n in names if names.count(n) > 1})}")
    return edges
