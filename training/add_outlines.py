"""Add the outlines of the objects to a pool that was rendered without them.

``python -m training.add_outlines runs/nano/pool --clip vtest.avi --jobs 2``

Every scene is rendered again; shards that have their outlines are left alone, so what was broken
off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2

from photon_ros.core.errors import InputError
from training.clip import load_clip
from training.pool import Mix, Renderer, add_outlines, outline_path


@dataclass(frozen=True, slots=True)
class _Work:
    """The shards of one process."""

    description: dict[str, Any]
    clip: Path | None
    shards: tuple[Path, ...]

    def run(self) -> None:
        """Add the outlines of every shard."""
        cv2.setNumThreads(1)
        renderer = renderer_of(self.description, self.clip)
        for shard in self.shards:
            add_outlines(shard, renderer)
            print(f"outlines: {shard.name}", flush=True)


def renderer_of(description: dict[str, Any], clip: Path | None) -> Renderer:
    """Return what renders the scenes of a pool.

    Args:
        description: what pool.json says.
        clip: the film with real people.

    Raises:
        InputError: the pool was made with a film and none is given, or the other way round.
    """
    if description["film"] != (clip is not None):
        was = "with a film: give --clip" if description["film"] else "without a film: leave --clip"
        raise InputError(f"the pool was rendered {was}")
    mix = Mix(**description["mix"])
    return Renderer(description["seed"], mix, load_clip(clip) if clip else None)


def complete(folder: Path, clip: Path | None, num_jobs: int = 1) -> int:
    """Add the outlines that are missing; return how many shards had none.

    Args:
        folder: the pool.
        clip: the film that it was rendered with, or None.
        num_jobs: processes at once.

    Raises:
        InputError: there is no pool, it was rendered with another film, or its scenes are
            rendered differently now.
    """
    if num_jobs < 1:
        raise InputError(f"jobs must be at least 1, got {num_jobs}")
    about = folder / "pool.json"
    if not about.exists():
        raise InputError(f"no pool in {folder}: {about.name} is missing")
    description = json.loads(about.read_text(encoding="utf-8"))
    shards = sorted(folder.glob("shard_???????.npz"))
    bare = [shard for shard in shards if not outline_path(shard).exists()]
    work = [_Work(description, clip, tuple(bare[i::num_jobs])) for i in range(num_jobs)]
    _run([part for part in work if part.shards])
    return len(bare)


def _run(work: list[_Work]) -> None:
    if len(work) == 1:
        work[0].run()
        return
    with ProcessPoolExecutor(max(1, len(work)), mp_context=get_context("spawn")) as pool:
        results: Iterable[None] = pool.map(_Work.run, work)
        for _ in results:  # raises what a process raised
            pass


def main(argv: list[str] | None = None) -> int:
    """Add what is missing; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.add_outlines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pool", type=Path, help="folder of the pool")
    parser.add_argument("--clip", type=Path, help="the film that the pool was rendered with")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    arguments = parser.parse_args(argv)
    try:
        num_done = complete(arguments.pool, arguments.clip, arguments.jobs)
    except InputError as error:
        print(f"add_outlines: {error}", file=sys.stderr)
        return 2
    print(f"{num_done} shards had no outlines; now every one has them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
