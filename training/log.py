"""The log of a run: what every step cost and what it got right."""

from __future__ import annotations

import csv
from pathlib import Path

LOG_COLUMNS = (
    "step", "elapsed_s", "joint", "tiled",
    "dense", "group", "place", "outline", "token", "coord", "size", "look",
    "kind_accuracy", "colour_accuracy",
)  # fmt: skip


class Log:
    """A CSV file of one line a step; lines after the resumed step are dropped."""

    def __init__(self, path: Path, step: int) -> None:
        kept: list[dict[str, str]] = []
        if path.exists() and step:
            with path.open(newline="") as file:
                kept = [row for row in csv.DictReader(file) if int(row["step"]) <= step]
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, LOG_COLUMNS)
            writer.writeheader()
            writer.writerows(kept)
        self._path = path
        self._pending: list[dict[str, float | int]] = []
        self._recent: list[dict[str, float | int]] = []

    def add(self, row: dict[str, float | int]) -> None:
        """Keep the figures of one step."""
        short = {k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()}
        self._pending.append(short)
        self._recent = [*self._recent[-99:], short]

    def summary(self) -> str:
        """Return the means of the last steps in words."""
        parts = []
        for name in LOG_COLUMNS[4:]:
            values = [row[name] for row in self._recent if name in row]
            if values:
                parts.append(f"{name} {sum(values) / len(values):.3f}")
        return ", ".join(parts)

    def flush(self) -> None:
        """Append what was kept to the file."""
        with self._path.open("a", newline="") as file:
            csv.DictWriter(file, LOG_COLUMNS, restval="").writerows(self._pending)
        self._pending = []
