"""Draw the learning curve of a run.

``python -m training.curve --run runs/nano [--out curve.png]``
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from photon_ros.core.errors import InputError

_LOSSES = ("dense", "place", "outline", "token", "coord", "size", "look", "group")
_SHARES = ("kind_accuracy", "colour_accuracy")


def read_log(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return the columns of a run's log; NaN where a stage has no such figure.

    Raises:
        InputError: there is no log, or it has no steps yet.
    """
    if not path.is_file():
        raise InputError(f"no log at {path}")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise InputError(f"{path} has no steps yet")
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


def smoothed(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """Return the mean over ``width`` steps around each step, of those that have a figure."""
    known = ~np.isnan(values)
    kernel = np.ones(width)
    total = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    count = np.convolve(known.astype(float), kernel, mode="same")
    return np.where(known, total / np.maximum(count, 1), np.nan)


def draw(log: Path, out: Path) -> None:
    """Draw losses and accuracies over the steps of a run, scenes without tiles."""
    columns = read_log(log)
    whole = columns["tiled"] == 0
    if not whole.any():
        raise InputError(f"{log} has no step without tiles yet")
    steps = columns["step"][whole]
    width = max(1, min(101, len(steps) // 10))
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for axes, names, title in ((left, _LOSSES, "loss"), (right, _SHARES, "cells named right")):
        for name in names:
            axes.plot(steps, smoothed(columns[name][whole], width), label=name)
        axes.set_xlabel("steps")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend()
    left.set_yscale("log")
    right.set_ylim(0, 1)
    joint = columns["joint"][whole] == 1
    if joint.any() and not joint[0]:  # else there was no stage before
        for axes in (left, right):
            axes.axvline(steps[joint.argmax()], color="grey", linestyle="--")
    figure.savefig(out, dpi=110)
    plt.close(figure)


def main(argv: list[str] | None = None) -> int:
    """Write the picture; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.curve", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--out", type=Path, help="picture to write; RUN/curve.png by default")
    arguments = parser.parse_args(argv)
    try:
        draw(arguments.run / "log.csv", arguments.out or arguments.run / "curve.png")
    except InputError as error:
        print(f"curve: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
