"""The pool: scenes rendered once, kept as JPEG with their truth, read again and again.

A pool is a folder of shards. Scene ``i`` of a pool is a pure function of (seed, ``i``), so a
broken-off rendering goes on where it stopped and gives the same pool. The outlines of a shard
lie in a file beside it, and can be added to a pool that was rendered without.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from photon_ros.core.errors import InputError
from training.clip import Clip, clip_scene, empty_background
from training.cutting import CELL_SIDE, Sample, boxes_of, cut, outlines_of
from training.scene import Scene, Sprite, render_scene

SHARD_SCENES = 500
# (width, height) of rendered pictures and how often each is taken.
_GLOBAL_SIZES = ((384, 288), (384, 288), (384, 288), (416, 234), (288, 288), (288, 384))
_TILED_SIZES = ((640, 480), (640, 480), (640, 480), (640, 360), (480, 640), (480, 480))
_TILINGS = {(640, 480): (2, 3), (640, 360): (2, 3), (480, 640): (3, 2), (480, 480): (2, 2)}


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of each kind of scene in a pool; they need not add up to 1.

    Attributes:
        whole: rendered, looked at as a whole.
        tiled: rendered, looked at with tiles.
        clip_whole, clip_tiled: the same of the film; left out when there is none.
    """

    whole: float = 0.50
    tiled: float = 0.18
    clip_whole: float = 0.05
    clip_tiled: float = 0.27


class Renderer:
    """Makes the scenes of a pool.

    Args:
        seed: seed of the pool.
        mix: shares of the kinds of scene.
        clip: the film with real people, or None to train without.
    """

    def __init__(self, seed: int, mix: Mix, clip: Clip | None) -> None:
        self._seed = seed
        self._mix = mix
        self._clip = clip
        self._people: list[Sprite] = [c.sprite for c in clip.people()] if clip else []
        self._backdrop = empty_background(clip) if clip else None
        shares = np.array([mix.whole, mix.tiled, mix.clip_whole, mix.clip_tiled])
        if clip is None:
            shares[2:] = 0
        self._bounds = np.cumsum(shares / shares.sum())

    @property
    def description(self) -> dict[str, Any]:
        """What the scenes depend on."""
        return {"seed": self._seed, "mix": asdict(self._mix), "film": self._clip is not None}

    def sample(self, index: int) -> Sample:
        """Return scene ``index`` as the model sees it; see :meth:`scene`."""
        scene, tiling, is_real = self.scene(index)
        return cut(scene, tiling, is_real)

    def scene(self, index: int) -> tuple[Scene, tuple[int, int], bool]:
        """Return scene ``index``, its tiling, and whether it is a frame of the film.

        It depends on nothing but the arguments of the renderer.
        """
        rng = np.random.default_rng([self._seed, index])
        kind = min(int(np.searchsorted(self._bounds, rng.random(), side="right")), 3)
        if kind >= 2 and self._clip is not None:
            tiled = kind == 3
            scene = clip_scene(self._clip, rng, 0.8 if tiled else 0.3)
            return scene, (2, 3) if tiled else (1, 1), True
        sizes = _TILED_SIZES if kind == 1 else _GLOBAL_SIZES
        size = sizes[int(rng.integers(len(sizes)))]
        scene = self._render(size, rng, (0.045, 0.42) if kind == 1 else (0.065, 0.48))
        return scene, _TILINGS[size] if kind == 1 else (1, 1), False

    def _render(
        self, size: tuple[int, int], rng: np.random.Generator, heights: tuple[float, float]
    ) -> Scene:
        backdrop = None
        if self._backdrop is not None and rng.random() < 0.12:
            backdrop = _window_of(self._backdrop, size, rng)
        people = self._people if rng.random() < 0.5 else []
        return render_scene(*size, rng, heights=heights, people=people, backdrop=backdrop)


def _window_of(
    picture: NDArray[np.uint8], size: tuple[int, int], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return a random window of a picture, stretched to ``size`` (width, height)."""
    height, width = picture.shape[:2]
    share = rng.uniform(0.3, 1.0, 2)
    window_w, window_h = int(width * share[0]), int(height * share[1])
    left = int(rng.integers(0, width - window_w + 1))
    top = int(rng.integers(0, height - window_h + 1))
    part = picture[top : top + window_h, left : left + window_w]
    if rng.random() < 0.5:
        part = part[:, ::-1]
    return cv2.resize(part, size, interpolation=cv2.INTER_AREA).astype(np.float32)


def render_pool(
    folder: Path,
    renderer: Renderer,
    num_scenes: int,
    on_shard: Callable[[int], None] | None = None,
) -> None:
    """Render ``num_scenes`` scenes into ``folder``, keeping the shards that are there.

    ``on_shard`` is told how many scenes there are after each shard.

    Raises:
        InputError: the folder holds a pool of another seed, mix or film.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder / "pool.json", renderer.description)
    for first in range(0, num_scenes, SHARD_SCENES):
        path = folder / f"shard_{first:07d}.npz"
        if not path.exists():
            last = min(first + SHARD_SCENES, num_scenes)
            samples = [renderer.sample(i) for i in range(first, last)]
            _write(outline_path(path), corners=np.concatenate([s.corners for s in samples]))
            _write_shard(path, samples)
        elif not outline_path(path).exists():
            add_outlines(path, renderer)
        if on_shard is not None:
            on_shard(min(first + SHARD_SCENES, num_scenes))


def outline_path(shard: Path) -> Path:
    """Return where the outlines of a shard lie."""
    return shard.with_name(shard.name.replace("shard_", "outlines_"))


def add_outlines(shard: Path, renderer: Renderer) -> None:
    """Render the scenes of a shard again and write their outlines beside it.

    Raises:
        InputError: the scenes are not those of the shard.
    """
    first = int(shard.stem.removeprefix("shard_"))
    with np.load(shard) as there:
        counts, truth = there["counts"], there["boxes"]
    scenes = [renderer.scene(first + i)[0] for i in range(len(counts))]
    rendered = np.concatenate([boxes_of(scene) for scene in scenes])
    same_counts = [len(scene.objects) for scene in scenes] == counts.tolist()
    if not same_counts or not np.array_equal(rendered, truth):
        raise InputError(
            f"{shard} holds other scenes than are rendered now: remove it, and it is rendered anew"
        )
    _write(outline_path(shard), corners=np.concatenate([outlines_of(scene) for scene in scenes]))


def _claim(path: Path, description: dict[str, Any]) -> None:
    """Write what a pool is made of, or refuse a folder that holds another one."""
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8"))
        if there != description:
            raise InputError(
                f"{path.parent} holds a pool made of {there}, not of {description}: "
                f"remove it or take another folder"
            )
        return
    path.write_text(json.dumps(description) + "\n", encoding="utf-8")


def _jpeg(image: NDArray[np.uint8] | None) -> bytes:
    if image is None:
        return b""
    options = [cv2.IMWRITE_JPEG_QUALITY, 93]
    ok, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
    assert ok, "OpenCV cannot encode JPEG"
    return data.tobytes()


def _picture(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    picture = cv2.imdecode(data, cv2.IMREAD_COLOR)
    assert picture is not None, "a pool holds only what was encoded here"
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB).astype(np.uint8)


def _write_shard(path: Path, samples: list[Sample]) -> None:
    blobs = [_jpeg(image) for sample in samples for image in (sample.whole, sample.mosaic)]
    _write(
        path,
        bytes=np.frombuffer(b"".join(blobs), np.uint8),
        ends=np.cumsum([len(blob) for blob in blobs]),
        tilings=np.array([sample.tiling for sample in samples], np.int64),
        counts=np.array([len(sample.kinds) for sample in samples], np.int64),
        kinds=np.concatenate([sample.kinds for sample in samples]),
        colours=np.concatenate([sample.colours for sample in samples]),
        boxes=np.concatenate([sample.boxes for sample in samples]),
        cells=np.stack([sample.cells for sample in samples]),
        is_real=np.array([sample.is_real for sample in samples]),
    )


def _write(path: Path, **arrays: NDArray[Any]) -> None:
    """Write a file whole or not at all."""
    partial = path.with_suffix(".tmp.npz")
    np.savez(partial, **arrays)  # type: ignore[arg-type]
    os.replace(partial, path)


class Pool:
    """A rendered pool, held in memory as JPEG; pictures are decoded when asked for.

    Raises:
        FileNotFoundError: there is no pool, or one without the outlines of its objects.
    """

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("shard_???????.npz"))
        if not paths:
            raise FileNotFoundError(f"no pool in {folder}: render one first")
        bare = [path.name for path in paths if not outline_path(path).exists()]
        if bare:
            raise FileNotFoundError(
                f"{len(bare)} of {len(paths)} shards in {folder} have no outlines, {bare[0]} "
                "first: run training.add_outlines on it"
            )
        shards = [dict(np.load(path)) | dict(np.load(outline_path(path))) for path in paths]
        self._shards = shards
        self._scene_ends = np.cumsum([len(shard["counts"]) for shard in shards])
        self._object_ends = [np.cumsum(shard["counts"]) for shard in shards]
        self.num_crops = np.concatenate(
            [np.where(s["tilings"].prod(1) == 1, 1, s["tilings"].prod(1) + 1) for s in shards]
        )
        self.num_objects = np.concatenate([shard["counts"] for shard in shards])
        self.is_real = np.concatenate([shard["is_real"] for shard in shards])

    def __len__(self) -> int:
        return int(self._scene_ends[-1])

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"scene {index} of a pool of {len(self)}")
        number = int(np.searchsorted(self._scene_ends, index, side="right"))
        shard = self._shards[number]
        i = index - int(self._scene_ends[number] - len(shard["counts"]))
        last = int(self._object_ends[number][i])
        things = slice(last - int(shard["counts"][i]), last)
        ends = shard["ends"]
        start, middle, end = (int(ends[k]) if k >= 0 else 0 for k in (2 * i - 1, 2 * i, 2 * i + 1))
        rows, columns = shard["tilings"][i]
        assert shard["cells"].shape[1] == CELL_SIDE, "pool of another architecture"
        return Sample(
            whole=_picture(shard["bytes"][start:middle]),
            mosaic=_picture(shard["bytes"][middle:end]) if end > middle else None,
            tiling=(int(rows), int(columns)),
            kinds=shard["kinds"][things],
            colours=shard["colours"][things],
            boxes=shard["boxes"][things],
            cells=shard["cells"][i],
            is_real=bool(shard["is_real"][i]),
            corners=shard["corners"][things],
        )
