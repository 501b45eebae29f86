"""photon-ros detect and photon-ros point: one picture, one prompt."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photon_ros.cli.arguments import add_budget_arguments, add_model_arguments
from photon_ros.core.errors import ImageError

if TYPE_CHECKING:
    from photon_ros.cli.arguments import Commands
    from photon_ros.core.frame import Frame
    from photon_ros.core.result import Detection, Result

_WHAT = {
    "detect": "find the boxes of what a prompt names",
    "point": "point at what a prompt names",
}


def add_parsers(commands: Commands) -> None:
    """Add the subcommands."""
    for skill, what in _WHAT.items():
        parser = commands.add_parser(skill, help=what, description=f"{what.capitalize()}.")
        parser.add_argument("image", type=Path, metavar="IMAGE", help="any image Pillow reads")
        parser.add_argument("prompt", metavar="PROMPT", help="what to look for")
        add_model_arguments(parser)
        add_budget_arguments(parser)
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")
        parser.add_argument(
            "--overlay", type=Path, metavar="OUT.png", help="write the picture with the answer on"
        )
        parser.set_defaults(run=run, skill=skill)


def run(arguments: argparse.Namespace) -> int:
    """Answer one prompt about one picture."""
    from photon_ros.cli.images import load_image
    from photon_ros.core.frame import Frame
    from photon_ros.core.request import Request
    from photon_ros.photon import Photon

    if arguments.overlay is not None:
        check_picture_path(arguments.overlay)
    frame = Frame(load_image(arguments.image))
    request = Request(
        arguments.skill,
        arguments.prompt,
        frame,
        max_objects=arguments.max_objects,
        max_crops=arguments.max_crops,
    )
    with Photon(arguments.model, device=arguments.device, dtype=arguments.dtype) as photon:
        photon.validate(arguments.skill, arguments.prompt)
        result = photon.submit(request).result()
    if arguments.overlay is not None:
        _write_overlay(arguments.overlay, frame, result)
    if arguments.json:
        print(json.dumps(answer(result, frame), indent=2, ensure_ascii=False))
    else:
        print(summary(result, frame))
    return 0


def answer(result: Result, frame: Frame) -> dict[str, Any]:
    """Return the answer as JSON types, coordinates normalised to the image."""
    name, describe = ("objects", _box) if result.skill == "detect" else ("points", _point)
    return {
        name: [describe(found) for found in result.detections],
        "skill": result.skill,
        "prompt": result.prompt,
        "image_width": frame.width_px,
        "image_height": frame.height_px,
        "end_reason": result.end_reason.value,
        "total_ms": round(result.timings.total_ms, 3),
    }


def summary(result: Result, frame: Frame) -> str:
    """Return the answer for people: one line per object, in pixels."""
    found = result.detections
    noun = "object" if result.skill == "detect" else "point"
    lines = [
        f"{len(found)} {noun}{'' if len(found) == 1 else 's'} for {result.prompt.strip()!r} "
        f"in {result.timings.total_ms:.0f} ms"
    ]
    for detection in found:
        if result.skill == "detect":
            x_min, y_min, x_max, y_max = detection.corners()
            left, right = x_min * frame.width_px, x_max * frame.width_px
            top, bottom = y_min * frame.height_px, y_max * frame.height_px
            place = f"x {left:.0f}..{right:.0f}  y {top:.0f}..{bottom:.0f}"
        else:
            place = f"x {detection.x * frame.width_px:.0f}  y {detection.y * frame.height_px:.0f}"
        lines.append(f"  {detection.label}  {detection.score:.2f}  {place}")
    if not result.end_reason.is_complete:
        lines.append(f"  cut off: {result.end_reason.value} was reached")
    return "\n".join(lines)


def check_picture_path(path: Path) -> None:
    """Raise ImageError unless a picture can be written there, before any work is done."""
    from PIL import Image

    kinds = Image.registered_extensions()
    if kinds.get(path.suffix.lower()) not in Image.SAVE:
        raise ImageError(f"{path}: unknown picture format {path.suffix!r} (use .png or .jpg)")
    if not path.absolute().parent.is_dir():
        raise ImageError(f"{path} cannot be written: there is no folder {path.absolute().parent}")


def _write_overlay(path: Path, frame: Frame, result: Result) -> None:
    from PIL import Image

    from photon_ros.overlay import draw

    try:
        Image.fromarray(draw(frame.image, result.detections)).save(path)
    except (OSError, ValueError) as error:
        raise ImageError(f"{path} cannot be written: {error}") from error


def _box(found: Detection) -> dict[str, float]:
    x_min, y_min, x_max, y_max = found.corners()
    return {"x_min": x_min, "y_min": y_min, "x_max": x_max, "y_max": y_max, "score": found.score}


def _point(found: Detection) -> dict[str, float]:
    return {"x": found.x, "y": found.y, "score": found.score}
