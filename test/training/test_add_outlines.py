"""Outlines added to a pool that was rendered without: the same as if rendered with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from photon_ros.core.errors import InputError
from training import add_outlines as command
from training import pool as pool_module
from training.add_outlines import complete, main
from training.pool import Mix, Pool, Renderer, outline_path, render_pool

MIX = Mix(0.6, 0.4, 0, 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pool of three shards."""
    monkeypatch.setattr(pool_module, "SHARD_SCENES", 4)
    render_pool(tmp_path, Renderer(3, MIX, None), 10)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.npz"))}


def strip(folder: Path) -> dict[str, np.ndarray]:
    """Remove the outlines; return what they were."""
    there = {path.name: np.load(path)["corners"] for path in folder.glob("outlines_*.npz")}
    for path in folder.glob("outlines_*.npz"):
        path.unlink()
    return there


@pytest.mark.parametrize("num_jobs", [1, 2, 7])
def test_what_is_added_is_what_was_rendered_with(folder: Path, num_jobs: int) -> None:
    shards = {name: data for name, data in files(folder).items() if name.startswith("shard")}
    before = strip(folder)
    assert len(before) == 3
    assert complete(folder, None, num_jobs) == 3
    for name, corners in before.items():
        assert np.array_equal(np.load(folder / name)["corners"], corners)
    after = files(folder)
    assert all(after[name] == data for name, data in shards.items()), "shards are left alone"
    assert not list(folder.glob("*.tmp*"))
    assert len(Pool(folder)) == 10


def test_what_is_there_is_kept_and_what_is_missing_added(folder: Path) -> None:
    kept = outline_path(folder / "shard_0000004.npz")
    stamp = kept.stat().st_mtime_ns
    outline_path(folder / "shard_0000000.npz").unlink()
    assert complete(folder, None) == 1
    assert kept.stat().st_mtime_ns == stamp
    assert complete(folder, None) == 0


def test_rendering_the_pool_on_adds_them_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = strip(folder)
    render_pool(folder, Renderer(3, MIX, None), 10)
    for name, corners in before.items():
        assert np.array_equal(np.load(folder / name)["corners"], corners)


def test_a_pool_without_outlines_is_refused_by_the_trainer(folder: Path) -> None:
    outline_path(folder / "shard_0000004.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 3 shards .* shard_0000004.npz first"):
        Pool(folder)


def test_scenes_that_are_rendered_differently_now_are_refused(folder: Path) -> None:
    strip(folder)
    about = folder / "pool.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"seed": 4}))
    with pytest.raises(InputError, match=r"shard_0000000.npz holds other scenes than"):
        complete(folder, None)
    assert not list(folder.glob("outlines_*"))


def test_what_a_process_refuses_reaches_the_caller(folder: Path) -> None:
    strip(folder)
    about = folder / "pool.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"seed": 4}))
    with pytest.raises(InputError, match="holds other scenes"):
        complete(folder, None, num_jobs=2)


def test_a_pool_with_a_film_needs_it(folder: Path, tmp_path: Path) -> None:
    strip(folder)
    with pytest.raises(InputError, match="rendered without a film: leave --clip"):
        complete(folder, tmp_path / "film.avi")
    about = folder / "pool.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"film": True}))
    with pytest.raises(InputError, match="rendered with a film: give --clip"):
        complete(folder, None)


def test_bad_arguments_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert main([str(tmp_path), "--jobs", "0"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("add_outlines: no pool in ")
    assert second == "add_outlines: jobs must be at least 1, got 0"


def test_the_command_says_what_it_did(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strip(folder)
    assert main([str(folder)]) == 0
    assert "3 shards had no outlines" in capsys.readouterr().out
    assert command.main([str(folder)]) == 0
    assert "0 shards had no outlines" in capsys.readouterr().out
