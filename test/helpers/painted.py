"""Pictures of coloured boxes, and a Photon that really finds them in the pixels.

Truth, recording and answers come from the same description, so a test knows what must be found
without asking the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from photon_ros.core.errors import EngineFault, UnknownWordError
from photon_ros.core.request import Request
from photon_ros.core.result import Detection, DetectionKind, EndReason, Result, Timings
from photon_ros.replay.bag_writer import BagOptions, BagSummary, write_bag

WIDTH_PX, HEIGHT_PX = 160, 120
COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 230)}
BACKGROUND = (90, 90, 90)

PaintedBox = tuple[str, int, int, int, int]
"""(colour, left, top, width, height), pixels."""


def paint(boxes: Sequence[PaintedBox]) -> NDArray[np.uint8]:
    """Return the picture, (HEIGHT_PX, WIDTH_PX, 3) RGB."""
    image = np.full((HEIGHT_PX, WIDTH_PX, 3), BACKGROUND, np.uint8)
    for color, left, top, width, height in boxes:
        image[top : top + height, left : left + width] = COLORS[color]
    return image


def scene(num_frames: int) -> list[list[PaintedBox]]:
    """Return boxes that move: a red one in every frame, a green one in every second."""
    return [
        [("red", 10 + 4 * k, 20, 30, 40)] + ([("green", 90, 15 + 3 * k, 24, 18)] * (k % 2 == 0))
        for k in range(num_frames)
    ]


def write_scene(
    path: Path,
    frames: Sequence[Sequence[PaintedBox]],
    options: BagOptions | None = None,
    fps: Fraction = Fraction(10),
) -> BagSummary:
    """Write the frames as a bag."""
    pictures = (paint(boxes)[:, :, ::-1] for boxes in frames)
    return write_bag(path, pictures, fps, options or BagOptions())


def truth_document(
    frames: Sequence[Sequence[PaintedBox]],
    indices: Sequence[int],
    topic: str = "/camera/image_raw",
    start_ns: int = 1_000_000_000,
    period_ns: int = 100_000_000,
) -> dict[str, Any]:
    """Return the labels of some frames as COCO JSON."""
    names = list(COLORS)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image_id, k in enumerate(indices, 1):
        images.append(
            {
                "id": image_id,
                "topic": topic,
                "stamp_ns": start_ns + k * period_ns,
                "width": WIDTH_PX,
                "height": HEIGHT_PX,
            }
        )
        for color, *bbox in frames[k]:
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": names.index(color) + 1,
                    "bbox": list(bbox),
                    "iscrowd": 0,
                }
            )
    categories = [{"id": number, "name": name} for number, name in enumerate(names, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def write_truth(path: Path, *args: Any, **kwargs: Any) -> Path:
    """Write :func:`truth_document` to a file."""
    path.write_text(json.dumps(truth_document(*args, **kwargs)))
    return path


class SeeingPhoton:
    """Finds the coloured boxes by their colour, on the caller's thread.

    Args:
        blind_to: colours it never finds.
        fault_on: stamps on which the engine fails.
        max_found: objects after which it says that the budget was reached.
    """

    model_name = "seeing"

    def __init__(
        self,
        blind_to: Sequence[str] = (),
        fault_on: Sequence[int] = (),
        max_found: int = 50,
    ) -> None:
        self.blind_to = blind_to
        self.fault_on = fault_on
        self.max_found = max_found
        self.requests: list[Request] = []
        self.num_pending = 0
        self.most_pending = 0
        self.is_closed = False

    def __enter__(self) -> SeeingPhoton:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def validate(self, skill: str, prompt: str) -> None:
        if prompt not in COLORS:
            raise UnknownWordError([prompt], COLORS, self.model_name)

    def submit(self, request: Request) -> Future[Result]:
        self.requests.append(request)
        self.num_pending += 1
        self.most_pending = max(self.most_pending, self.num_pending)
        photon = self

        class Answer(Future[Result]):
            """Counts how many answers nobody has asked for yet."""

            def result(self, timeout: float | None = None) -> Result:
                photon.num_pending -= 1
                return super().result(timeout)

        answer = Answer()
        assert request.frame is not None
        if request.frame.stamp_ns in self.fault_on:
            answer.set_exception(EngineFault("the step failed"))
        else:
            answer.set_result(self._look(request))
        return answer

    def _look(self, request: Request) -> Result:
        assert request.frame is not None
        found = [] if request.prompt in self.blind_to else list(find(request))
        kept = found[: min(self.max_found, request.max_objects)]
        end = EndReason.EOS if len(kept) == len(found) else EndReason.MAX_OBJECTS
        timings = Timings(1.0, 2.0, 3.0, 4.0, 0.5, 10.5, num_tokens=len(kept) * 3)
        return Result(request.skill, request.prompt, tuple(kept), "", end, (), timings)


def find(request: Request) -> Iterator[Detection]:
    """Yield the boxes of the asked colour, by connected regions."""
    assert request.frame is not None
    image = request.frame.image.astype(np.int32)
    distance = np.abs(image - np.array(COLORS[request.prompt])).max(2)
    mask = (distance < 60).astype(np.uint8)
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask)
    height, width = mask.shape
    for left, top, w, h, area in stats[1:].tolist():
        if area < 20:
            continue
        yield Detection(
            DetectionKind.BOX if request.skill == "detect" else DetectionKind.POINT,
            request.prompt,
            (left + w / 2) / width,
            (top + h / 2) / height,
            w / width if request.skill == "detect" else 0.0,
            h / height if request.skill == "detect" else 0.0,
            score=0.9,
        )
