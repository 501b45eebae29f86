"""The learning curve: what is averaged, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest

from training import curve
from training.curve import read_log, smoothed
from training.log import LOG_COLUMNS


def write_log(path: Path, num_steps: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, LOG_COLUMNS, restval="")
        writer.writeheader()
        for step in range(1, num_steps + 1):
            row = {"step": step, "elapsed_s": step, "tiled": 0, "place": 2.0}
            row |= {"joint": int(step > num_steps / 2), "dense": 5 / step, "group": 1.0}
            row |= {"kind_accuracy": 0.5, "colour_accuracy": 0.9}
            if row["joint"]:
                row |= {"token": 1.0, "coord": 2.0, "size": 2.0, "look": 1.0}
            writer.writerow(row)


def test_a_curve_is_drawn(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv", 50)
    assert curve.main(["--run", str(tmp_path)]) == 0
    picture = cv2.imread(str(tmp_path / "curve.png"))
    assert picture is not None
    assert picture.shape[1] > 800
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20


def test_missing_figures_are_no_numbers(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv", 10)
    columns = read_log(tmp_path / "log.csv")
    assert np.isnan(columns["token"][:5]).all()
    assert (columns["token"][5:] == 1).all()


def test_smoothing_skips_what_is_missing() -> None:
    values = np.array([np.nan, np.nan, 1.0, 3.0, 5.0])
    assert np.allclose(smoothed(values, 3)[2:], (2, 3, 4))
    assert np.isnan(smoothed(values, 3)[:2]).all()


@pytest.mark.parametrize(("steps", "message"), [(None, "no log at"), (0, "has no steps yet")])
def test_no_curve_without_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int | None, message: str
) -> None:
    if steps is not None:
        write_log(tmp_path / "log.csv", steps)
    assert curve.main(["--run", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
