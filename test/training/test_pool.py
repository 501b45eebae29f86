"""The pool on disk: truthful, repeatable, and going on where it stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from photon_ros.core.errors import InputError
from training import pool as pool_module
from training.pool import Mix, Pool, Renderer, render_pool

BOTH = Mix(whole=0.5, tiled=0.5, clip_whole=0, clip_tiled=0)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SHARD_SCENES", 4)


def test_what_is_read_is_what_was_rendered(tmp_path: Path) -> None:
    renderer = Renderer(3, BOTH, None)
    render_pool(tmp_path, renderer, 10)
    pool = Pool(tmp_path)
    assert len(pool) == 10
    for index in range(10):
        read, made = pool[index], renderer.sample(index)
        assert read.tiling == made.tiling
        assert (read.mosaic is None) == (made.mosaic is None)
        assert pool.num_crops[index] == len(made.crops())
        assert pool.num_objects[index] == len(made.kinds)
        for name in ("kinds", "colours", "boxes", "cells", "corners"):
            assert np.array_equal(getattr(read, name), getattr(made, name))
        error = np.abs(read.crops().astype(int) - made.crops().astype(int))
        assert error.mean() < 4, "JPEG changes little"
    assert {1, 7} & set(pool.num_crops.tolist()) == {1, 7}, "both kinds came"


def test_an_interrupted_rendering_goes_on_and_gives_the_same_pool(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    render_pool(whole, Renderer(3, BOTH, None), 10)
    render_pool(broken, Renderer(3, BOTH, None), 4)
    (broken / "shard_0000004.tmp.npz").write_bytes(b"half a shard")
    kept = (broken / "shard_0000000.npz").stat().st_mtime_ns
    seen: list[int] = []
    render_pool(broken, Renderer(3, BOTH, None), 10, seen.append)
    assert seen == [4, 8, 10]
    assert (broken / "shard_0000000.npz").stat().st_mtime_ns == kept, "not rendered again"
    first, second = Pool(whole), Pool(broken)
    assert len(first) == len(second) == 10
    for index in range(10):
        assert np.array_equal(first[index].crops(), second[index].crops())
        assert np.array_equal(first[index].boxes, second[index].boxes)


def test_a_pool_of_something_else_is_refused(tmp_path: Path) -> None:
    render_pool(tmp_path, Renderer(3, BOTH, None), 2)
    with pytest.raises(InputError, match=r"holds a pool made of .*'seed': 3.* not of .*'seed': 4"):
        render_pool(tmp_path, Renderer(4, BOTH, None), 2)
    with pytest.raises(InputError, match="remove it or take another folder"):
        render_pool(tmp_path, Renderer(3, Mix(), None), 2)


def test_scenes_depend_on_seed_and_index_alone() -> None:
    first, second = Renderer(3, BOTH, None), Renderer(3, BOTH, None)
    second.sample(0)
    second.sample(1)
    assert np.array_equal(first.sample(7).whole, second.sample(7).whole)
    assert not np.array_equal(first.sample(7).whole, Renderer(4, BOTH, None).sample(7).whole)


def test_without_a_clip_no_scene_is_real() -> None:
    renderer = Renderer(1, Mix(), None)
    assert not any(renderer.sample(index).is_real for index in range(12))


def test_noise_is_in_every_channel() -> None:
    from training.lighting import photograph

    for seed in range(30):
        grey = np.full((80, 80, 3), 128, np.float32)
        image = photograph(grey, np.random.default_rng(seed)).astype(float)
        rough = np.abs(np.diff(image, axis=1)).mean((0, 1))
        assert rough.max() < 2 * rough.min() + 0.3


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no pool in"):
        Pool(tmp_path)


def test_an_index_outside_is_refused(tmp_path: Path) -> None:
    render_pool(tmp_path, Renderer(3, BOTH, None), 3)
    with pytest.raises(IndexError, match="scene 3 of a pool of 3"):
        Pool(tmp_path)[3]
