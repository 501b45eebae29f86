"""The log of a run."""

from __future__ import annotations

import csv
from pathlib import Path

from training.log import LOG_COLUMNS, Log


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def a_step(number: int, **figures: float) -> dict[str, float | int]:
    return {"step": number, "elapsed_s": float(number), "joint": 0, "tiled": 0, **figures}


def test_what_was_added_is_in_the_file_after_a_flush_and_only_once(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.csv", step=0)
    log.add(a_step(1, dense=2.5))
    assert rows_of(tmp_path / "log.csv") == []
    log.flush()
    log.flush()
    log.add(a_step(2, dense=1.25, token=0.5))
    log.flush()
    rows = rows_of(tmp_path / "log.csv")
    assert tuple(rows[0]) == LOG_COLUMNS
    assert [(row["step"], row["dense"], row["token"]) for row in rows] == [
        ("1", "2.5", ""),
        ("2", "1.25", "0.5"),
    ]


def test_a_resumed_run_drops_the_lines_of_steps_it_takes_again(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.csv", step=0)
    for number in range(1, 6):
        log.add(a_step(number))
    log.flush()
    again = Log(tmp_path / "log.csv", step=3)
    again.add(a_step(4, dense=9.0))
    again.flush()
    rows = rows_of(tmp_path / "log.csv")
    assert [row["step"] for row in rows] == ["1", "2", "3", "4"]
    assert rows[-1]["dense"] == "9.0"


def test_a_run_from_the_start_drops_the_log_of_another(tmp_path: Path) -> None:
    old = Log(tmp_path / "log.csv", step=0)
    old.add(a_step(1))
    old.flush()
    Log(tmp_path / "log.csv", step=0)
    assert rows_of(tmp_path / "log.csv") == []


def test_the_summary_is_the_mean_of_the_last_hundred_steps_that_have_the_figure(
    tmp_path: Path,
) -> None:
    log = Log(tmp_path / "log.csv", step=0)
    for number in range(1, 151):
        log.add(a_step(number, dense=1.0 if number > 50 else 100.0))
    log.add(a_step(151, dense=1.0, token=0.25))
    assert log.summary() == "dense 1.000, token 0.250"
