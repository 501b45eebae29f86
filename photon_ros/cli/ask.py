"""photon-ros detect, point, segment, query and caption: a picture, and what is asked about it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photon_ros.cli.arguments import (
    add_budget_arguments,
    add_model_arguments,
    add_text_arguments,
)
from photon_ros.cli.wording import counted, shortened
from photon_ros.core.errors import ImageError, InputError

if TYPE_CHECKING:
    from photon_ros.cli.arguments import Commands
    from photon_ros.core.frame import Frame
    from photon_ros.core.request import Request
    from photon_ros.core.result import Detection, Result
    from photon_ros.photon import Photon

_SPATIAL = {
    "detect": "find the boxes of what a prompt names",
    "point": "point at what a prompt names",
}
NO_IMAGE = "-"


def add_parsers(commands: Commands) -> None:
    """Add the subcommands."""
    for skill, what in _SPATIAL.items():
        parser = _add_parser(commands, skill, what)
        parser.add_argument("prompt", metavar="PROMPT", help="what to look for")
        _add_also_argument(parser)
        add_budget_arguments(parser)
        _add_overlay_argument(parser)
    parser = _add_parser(commands, "segment", "outline what a prompt names")
    parser.add_argument("prompt", metavar="PROMPT", help="what to outline")
    _add_also_argument(parser)
    _add_refs_argument(parser)
    _add_overlay_argument(parser)
    add_text_arguments(parser)
    parser = _add_parser(commands, "query", "answer a question")
    parser.add_argument("prompt", metavar="QUESTION", help="what to answer")
    parser.add_argument("--reasoning", action="store_true", help="let the model think aloud first")
    _add_refs_argument(parser)
    add_text_arguments(parser)
    parser = _add_parser(commands, "caption", "describe a picture")
    parser.add_argument(
        "--length",
        dest="prompt",
        default="normal",
        help="short, normal or long, as far as the model knows it (default: normal)",
    )
    add_text_arguments(parser)


def _add_parser(commands: Commands, skill: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        skill, help=what, description=f"{what.capitalize()}."
    )
    may_be = {
        "query": f", or {NO_IMAGE} to ask about none",
        "caption": "",
    }.get(skill, ", or a folder of them; may be several")
    parser.add_argument(
        "image",
        metavar="IMAGE",
        nargs=1 if skill in ("query", "caption") else "+",
        help=f"PNG, JPEG, WebP, TIFF, GIF, ...{may_be}",
    )
    add_model_arguments(parser)
    parser.add_argument(
        "--revision", metavar="REV", help="commit, tag or branch of a hub id (default: pinned)"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the answer as JSON; several answers one to a line",
    )
    parser.set_defaults(run=run, skill=skill, overlay=None, reasoning=False, ref=[], also=[])
    return parser


def _add_also_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="PROMPT",
        help="another prompt, asked together with the first; may be repeated",
    )


def _add_overlay_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--overlay", type=Path, metavar="OUT.png", help="write the picture with the answer on"
    )


def _add_refs_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ref",
        action="append",
        type=spatial_ref,
        metavar="X,Y[,X2,Y2]",
        help="a point or box that the prompt is about, normalised to [0, 1]; may be repeated",
    )


def spatial_ref(text: str) -> tuple[float, ...]:
    """Return the numbers of a point or a box."""
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not X,Y or X,Y,X2,Y2") from None


def run(arguments: argparse.Namespace) -> int:
    """Answer what is asked about the pictures."""
    if arguments.overlay is not None:
        check_picture_path(arguments.overlay)
    if NO_IMAGE in arguments.image and arguments.skill != "query":
        raise InputError(f"{arguments.skill} needs a picture; only query can do without")
    if arguments.skill not in ("query", "caption"):
        from photon_ros.cli.ask_many import pictures_in, run_many

        paths = pictures_in(arguments.image)
        if len(paths) > 1 or arguments.also:
            return run_many(arguments, paths)
        arguments.image = [str(paths[0])]
    return _run_one(arguments)


def _run_one(arguments: argparse.Namespace) -> int:
    request = _request(arguments)
    with open_photon(arguments) as photon:  # the slow part: only once the picture is read
        photon.check(request)
        if request.skill in ("query", "caption") and not arguments.json:
            _print_as_it_comes(photon, request)
            return 0
        result = photon.submit(request).result()
    if arguments.json:
        print(json.dumps(answer(result, request.frame), indent=2, ensure_ascii=False))
    else:
        assert request.frame is not None  # only a query may be about no picture
        print(summary(result, request.frame))
    if arguments.overlay is not None and request.frame is not None:
        sys.stdout.flush()  # the answer is there, whatever becomes of the picture
        write_overlay(arguments.overlay, request.frame, result.detections)
    return 0


def open_photon(arguments: argparse.Namespace) -> Photon:
    """Load the model that the arguments name."""
    from photon_ros.photon import Photon

    return Photon(
        arguments.model,
        revision=arguments.revision,
        device=arguments.device,
        dtype=arguments.dtype,
    )


def _request(arguments: argparse.Namespace) -> Request:
    from photon_ros.core.frame import Frame
    from photon_ros.picture_files import load_image

    frame = None
    (image,) = arguments.image
    if image != NO_IMAGE:
        frame = Frame(load_image(Path(image)))
    return request_of(arguments, arguments.prompt, frame)


def request_of(arguments: argparse.Namespace, prompt: str, frame: Frame | None) -> Request:
    """Return the request for one prompt."""
    from photon_ros.core.request import Request

    names = ("max_objects", "max_tokens", "max_crops", "temperature", "top_p", "seed")
    given = {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
    return Request(
        arguments.skill,
        prompt,
        frame,
        reasoning=arguments.reasoning,
        spatial_refs=tuple(arguments.ref or ()),
        **given,
    )


def _print_as_it_comes(photon: Photon, request: Request) -> None:
    """Print text while it is written, a reasoning first."""
    stream = photon.stream(request)
    if request.reasoning:
        print(f"({stream.reasoning().text.strip()})\n")
    for piece in stream:
        print(piece, end="", flush=True)
    reason = stream.result.result().end_reason
    print("" if reason.is_complete else f"\n  cut off: {reason.value} was reached")


def answer(result: Result, frame: Frame | None) -> dict[str, Any]:
    """Return the answer as JSON types, coordinates normalised to the image."""
    from photon_ros.questions import shaped

    size = {}
    if frame is not None:
        size = {"image_width": frame.width_px, "image_height": frame.height_px}
    return {
        **shaped(result),
        "skill": result.skill,
        "prompt": result.prompt,
        **size,
        "end_reason": result.end_reason.value,
        "total_ms": round(result.timings.total_ms, 3),
    }


def summary(result: Result, frame: Frame) -> str:
    """Return the places of an answer for people: one line per object, in pixels."""
    found = result.detections
    noun = "point" if result.skill == "point" else "object"
    prompt = shortened(result.prompt.strip())
    lines = [f"{counted(len(found), noun)} for {prompt!r} in {result.timings.total_ms:.0f} ms"]
    for detection in found:
        if result.skill == "point":
            place = f"x {detection.x * frame.width_px:.0f}  y {detection.y * frame.height_px:.0f}"
        else:
            x_min, y_min, x_max, y_max = detection.corners()
            left, right = x_min * frame.width_px, x_max * frame.width_px
            top, bottom = y_min * frame.height_px, y_max * frame.height_px
            place = f"x {left:.0f}..{right:.0f}  y {top:.0f}..{bottom:.0f}"
        lines.append(f"  {detection.label}  {detection.score:.2f}  {place}")
    if result.outline is not None:
        lines += _outline_lines(result)
    if not result.end_reason.is_complete:
        lines.append(f"  cut off: {result.end_reason.value} was reached")
    return "\n".join(lines)


def _outline_lines(result: Result) -> list[str]:
    outline = result.outline
    if outline is None or not outline.raw_text:
        return []
    if outline.parse_error:
        return [f"  no outline: {outline.parse_error}", f"  written: {outline.raw_text}"]
    return [f"  {outline.path}"]


def check_picture_path(path: Path) -> None:
    """Raise ImageError unless a picture can be written there, before any work is done."""
    from PIL import Image

    kinds = Image.registered_extensions()
    if kinds.get(path.suffix.lower()) not in Image.SAVE:
        raise ImageError(f"{path}: unknown picture format {path.suffix!r} (use .png or .jpg)")
    if path.exists() and not path.is_file():  # raises OSError where the name is too long
        raise ImageError(f"{path} cannot be written: it is not a file")
    if not path.absolute().parent.is_dir():
        raise ImageError(f"{path} cannot be written: there is no folder {path.absolute().parent}")


def write_overlay(path: Path, frame: Frame, detections: Sequence[Detection]) -> None:
    """Write the picture with what was found on it; raise ImageError where that is impossible."""
    from PIL import Image

    from photon_ros.overlay import draw

    try:
        Image.fromarray(draw(frame.image, detections)).save(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ImageError(f"{path} cannot be written: {reason}") from error
