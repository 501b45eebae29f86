"""Draw what nano answers: four rendered scenes and four frames of the film.

``python -m training.gallery --out docs/nano [--clip vtest.avi --labels person_coco.json]``

The rendered scenes are held out, like those that are measured on. Every class in a scene is
asked for, and one outline. Truth is dashed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from photon_ros.core.errors import InputError
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import Detection
from photon_ros.overlay import draw
from photon_ros.photon import Photon
from training.clip import read_frames
from training.cutting import boxes_of
from training.evaluate import HELD_OUT_SEED, labelled_frames
from training.pool import Mix, Renderer
from training.scene import Box

NUM_PICTURES = 4
_LEAST_OBJECTS = 4
_JPEG_QUALITY = 85
# Held-out scenes from here on; those before are the ones that figures are measured on.
_FIRST_SCENE = 1000


def rendered_pictures(photon: Photon) -> Iterator[NDArray[np.uint8]]:
    """Yield rendered scenes with the answers to every class in them, and one outline."""
    renderer = Renderer(HELD_OUT_SEED, Mix(0, 1, 0, 0), clip=None)
    index = _FIRST_SCENE
    for _ in range(NUM_PICTURES):
        scene = renderer.scene(index)[0]
        while len(scene.objects) < _LEAST_OBJECTS:
            index += 1
            scene = renderer.scene(index)[0]
        index += 1
        frame = Frame(scene.image)
        asked = [("detect", kind) for kind in sorted({thing.kind for thing in scene.objects})]
        if "segment" in photon.skills:
            asked.append(("segment", scene.objects[-1].kind))
        found = _answers(photon, frame, asked)
        yield draw(frame.image, found, truth=_boxes(boxes_of(scene)))


def film_pictures(photon: Photon, clip: Path, labels: Path) -> Iterator[NDArray[np.uint8]]:
    """Yield every second labelled frame of the film with the people found."""
    for number, truth in labelled_frames(labels)[::2][:NUM_PICTURES]:
        frame = Frame(read_frames(clip, number, number, 1)[0])
        found = _answers(photon, frame, [("detect", "person")])
        yield draw(frame.image, found, truth=_boxes(truth))


def _answers(photon: Photon, frame: Frame, asked: list[tuple[str, str]]) -> list[Detection]:
    futures = [photon.submit(Request(skill, prompt, frame)) for skill, prompt in asked]
    return [detection for future in futures for detection in future.result().detections]


def _boxes(boxes: NDArray[np.float32]) -> list[Box]:
    return [(float(a), float(b), float(c), float(d)) for a, b, c, d in boxes]


def main(argv: list[str] | None = None) -> int:
    """Write the pictures; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.gallery", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    parser.add_argument("--model", default="nano", help="folder of the model")
    parser.add_argument("--clip", type=Path, help="the film, OpenCV's vtest.avi")
    parser.add_argument("--labels", type=Path, help="COCO JSON of the people in it")
    arguments = parser.parse_args(argv)
    try:
        if (arguments.clip is None) != (arguments.labels is None):
            raise InputError("--clip and --labels go together")
        arguments.out.mkdir(parents=True, exist_ok=True)
        with Photon(arguments.model) as photon:
            pictures = {"scene": rendered_pictures(photon)}
            if arguments.clip is not None:
                pictures["film"] = film_pictures(photon, arguments.clip, arguments.labels)
            for name, drawn in pictures.items():
                for number, picture in enumerate(drawn, start=1):
                    path = arguments.out / f"{name}_{number}.jpg"
                    Image.fromarray(picture).save(path, quality=_JPEG_QUALITY)
                    print(path)
    except InputError as error:
        print(f"gallery: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
