"""A moving rendered scene with truth: people, cones and balls drifting through a room.

Run it to look at one: ``python -m training.demo_scene --out DIR`` writes PNG files and
``truth.json``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from training.backdrop import render_backdrop
from training.scene import Box, Composer, Sprite, paint_sprite

# Objects of which less is seen are left out of the truth of that frame.
MIN_SEEN = 0.5
_CAST = (
    ("person", ("blue", "red", "green")),
    ("person", ("yellow", "purple", "white")),
    ("cone", ("orange", "red")),
    ("cone", ("green", "blue")),
    ("ball", ("red", "yellow")),
    ("ball", ("blue", "green")),
)
# Height of each kind as a share of the picture's.
_HEIGHTS = {"person": (0.26, 0.36), "cone": (0.14, 0.2), "ball": (0.09, 0.14)}


@dataclass(frozen=True, slots=True)
class MovingObject:
    """The truth about one object in one frame.

    Attributes:
        kind, colour: class and colour word.
        box: (x_min, y_min, x_max, y_max), pixels, inside the picture.
    """

    kind: str
    colour: str
    box: Box

    def matches(self, prompt: str) -> bool:
        """Return True if a prompt such as ``"person"`` or ``"red ball"`` means this object."""
        *colours, kind = prompt.split()
        return kind in (self.kind, "object") and all(colour == self.colour for colour in colours)


class _Actor:
    """A sprite on a straight way, turning round at the walls."""

    def __init__(self, sprite: Sprite, size: tuple[int, int], rng: np.random.Generator) -> None:
        self.sprite = sprite
        height, width = sprite.alpha.shape
        self._room = np.array([max(1, size[0] - width), max(1, size[1] - height)], np.float64)
        # Bodies keep to the lower part, where the floor is.
        self._top = 0.3 * self._room[1]
        self._start = rng.uniform((0, self._top), self._room)
        speed = size[0] * rng.uniform(0.004, 0.01)
        self._step = np.array([speed * rng.choice([-1, 1]), 0.3 * speed * rng.uniform(-1, 1)])

    def at(self, frame: int) -> tuple[int, int]:
        """Return the (left, top) corner of the sprite in a frame, pixels."""
        low = np.array([0.0, self._top])
        span = self._room - low
        way = (self._start - low + frame * self._step) % (2 * span)
        left, top = low + np.where(way > span, 2 * span - way, way)
        return round(float(left)), round(float(top))


def moving_scene(
    seed: int, num_frames: int, width_px: int = 640, height_px: int = 480
) -> Iterator[tuple[NDArray[np.uint8], list[MovingObject]]]:
    """Yield frames of one scene with the truth about each.

    The same seed gives the same frames; frame ``k`` does not depend on ``num_frames``.

    Args:
        seed: of the cast, the room and the ways through it.
        num_frames: frames to yield.
        width_px, height_px: size of a frame.

    Yields:
        (height_px, width_px, 3) uint8 RGB, and the objects in it from left to right.
    """
    rng = np.random.default_rng([seed, 1])
    room = render_backdrop(width_px, height_px, rng)
    actors = []
    for kind, colours in _CAST:
        height = rng.uniform(*_HEIGHTS[kind]) * height_px
        sprite = paint_sprite(kind, str(rng.choice(colours)), height, rng)
        actors.append(_Actor(sprite, (width_px, height_px), rng))
    actors.sort(key=lambda actor: actor.sprite.alpha.shape[0])  # the smaller, the further back
    for frame in range(num_frames):
        composer = Composer(room.copy(), min_visible=0.0)
        for actor in actors:
            composer.paste(actor.sprite, *actor.at(frame), shadow=0.4)
        # The same camera in every frame: light and gain must not flicker.
        scene = composer.finish(np.random.default_rng([seed, 2]))
        seen_px = np.bincount(scene.ids.ravel(), minlength=len(scene.objects) + 1)[1:]
        solid_px = composer.solid_px()
        things = [
            MovingObject(thing.kind, thing.colour, thing.box)
            for thing, seen, solid in zip(scene.objects, seen_px, solid_px, strict=True)
            if seen >= MIN_SEEN * solid
        ]
        yield scene.image, things


def prompts_for(truth: Iterable[Sequence[MovingObject]]) -> list[str]:
    """Return "person" and every coloured kind that is seen, such as "red ball", in order."""
    coloured = {
        f"{thing.colour} {thing.kind}"
        for things in truth
        for thing in things
        if thing.kind != "person"
    }
    return ["person", *sorted(coloured)]


def write_truth(
    path: Path,
    truth: Sequence[Sequence[MovingObject]],
    *,
    prompts: Sequence[str],
    topic: str,
    fps: float,
    start_ns: int = 1_000_000_000,
    width_px: int = 640,
    height_px: int = 480,
) -> None:
    """Write the truth about a moving scene as COCO JSON.

    Args:
        path: the file to write.
        truth: per frame its objects, as yielded by :func:`moving_scene`.
        prompts: the categories; an object is annotated under every prompt that means it.
        topic: topic of the frames; frame ``k`` is stamped ``start_ns + k / fps`` seconds.
        fps: frames a second.
        start_ns: stamp of the first frame, nanoseconds.
        width_px, height_px: size of a frame.
    """
    images = [
        {
            "id": number + 1,
            "file_name": f"frame_{number:05d}.png",
            "width": width_px,
            "height": height_px,
            "topic": topic,
            "stamp_ns": start_ns + round(number * 1e9 / fps),
        }
        for number in range(len(truth))
    ]
    annotations: list[dict[str, object]] = []
    for number, things in enumerate(truth):
        for category, prompt in enumerate(prompts, start=1):
            for thing in things:
                if not thing.matches(prompt):
                    continue
                x_min, y_min, x_max, y_max = thing.box
                width, height = x_max - x_min, y_max - y_min
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number + 1,
                        "category_id": category,
                        "bbox": [x_min, y_min, width, height],
                        "area": width * height,
                        "iscrowd": 0,
                    }
                )
    categories = [{"id": i, "name": prompt} for i, prompt in enumerate(prompts, start=1)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    path.write_text(json.dumps(document), encoding="utf-8")


def main() -> None:
    """Write one scene as PNG files with its truth."""
    parser = argparse.ArgumentParser(prog="python -m training.demo_scene", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--fps", type=float, default=10.0)
    parser.add_argument("--topic", default="/camera/image_raw")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    truth = []
    for number, (image, things) in enumerate(moving_scene(arguments.seed, arguments.frames)):
        name = arguments.out / f"frame_{number:05d}.png"
        cv2.imwrite(str(name), cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
        truth.append(things)
    write_truth(
        arguments.out / "truth.json",
        truth,
        prompts=prompts_for(truth),
        topic=arguments.topic,
        fps=arguments.fps,
    )


if __name__ == "__main__":
    main()
