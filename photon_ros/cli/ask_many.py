"""Several pictures, several prompts, or both, in one process and with one model.

The prompts of a picture are submitted together, so that it is encoded once; the next picture is
read and submitted while the last one is answered. Answers are printed as they come, in order.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from photon_ros.cli.ask import answer, open_photon, request_of, summary, write_overlay
from photon_ros.cli.wording import complain, error_message
from photon_ros.core.errors import EngineStopped, ImageError, InputError, PhotonError

if TYPE_CHECKING:
    from photon_ros.core.frame import Frame
    from photon_ros.core.request import Request
    from photon_ros.core.result import Result
    from photon_ros.photon import Photon

MAX_PICTURES_IN_FLIGHT: Final = 2


@dataclass(frozen=True, slots=True)
class _Asked:
    """One picture with the answers that are due, or the reason why there are none."""

    path: Path
    frame: Frame | None
    answers: Sequence[Future[Result]] = ()
    error: PhotonError | None = None


def pictures_in(names: Sequence[str]) -> list[Path]:
    """Return the files that are named, and those of the folders that are named, by their names.

    Raises ImageError if one is not there, or a folder has no picture.
    """
    return [path for name in names for path in _pictures_at(Path(name))]


def _pictures_at(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise ImageError(f"image {path} does not exist")
        return [path]
    from PIL import Image

    kinds = Image.registered_extensions()
    found = sorted(file for file in path.iterdir() if file.suffix.lower() in kinds)
    if not found:
        raise ImageError(f"folder {path} has no picture in it")
    return found


def run_many(arguments: argparse.Namespace, paths: Sequence[Path]) -> int:
    """Answer every prompt about every picture; 1 when some of them failed."""
    if arguments.overlay is not None and len(paths) > 1:
        raise InputError(f"--overlay is for one picture, here are {len(paths)}")
    prompts = [arguments.prompt, *arguments.also]
    if len(set(prompts)) < len(prompts):
        raise InputError(f"a prompt is given twice: {', '.join(prompts)}")
    num_failed = 0
    with open_photon(arguments) as photon:
        for prompt in prompts:
            photon.validate(arguments.skill, prompt)
        for asked in _answered(photon, arguments, prompts, paths):
            num_failed += _print_answers(asked, arguments, len(paths))
    return 1 if num_failed else 0


def _answered(
    photon: Photon, arguments: argparse.Namespace, prompts: Sequence[str], paths: Sequence[Path]
) -> Iterator[_Asked]:
    """Yield the pictures in order, each with a later one already under way."""
    waiting: list[_Asked] = []
    for path in paths:
        waiting.append(_ask(photon, arguments, prompts, path))
        if len(waiting) >= MAX_PICTURES_IN_FLIGHT:
            yield waiting.pop(0)
    yield from waiting


def _ask(
    photon: Photon, arguments: argparse.Namespace, prompts: Sequence[str], path: Path
) -> _Asked:
    from photon_ros.core.frame import Frame
    from photon_ros.picture_files import load_image

    try:
        frame = Frame(load_image(path))
    except ImageError as error:
        return _Asked(path, None, error=error)
    requests: list[Request] = [request_of(arguments, prompt, frame) for prompt in prompts]
    return _Asked(path, frame, [photon.submit(request) for request in requests])


def _print_answers(asked: _Asked, arguments: argparse.Namespace, num_pictures: int) -> int:
    """Print what was answered about one picture; return how many answers failed."""
    if asked.frame is None:
        complain(error_message(asked.error or ImageError(f"image {asked.path} cannot be read")))
        return 1
    if num_pictures > 1 and not arguments.json:
        print(asked.path)
    results: list[Result] = []
    num_failed = 0
    for due in asked.answers:
        try:
            result = due.result()
        except EngineStopped:
            raise
        except PhotonError as error:
            complain(f"{asked.path}: {error_message(error)}")
            num_failed += 1
            continue
        results.append(result)
        if arguments.json:
            entry = {"image": str(asked.path), **answer(result, asked.frame)}
            print(json.dumps(entry, ensure_ascii=False), flush=True)
        else:
            print(summary(result, asked.frame), flush=True)
    if arguments.overlay is not None:
        detections = [found for result in results for found in result.detections]
        write_overlay(arguments.overlay, asked.frame, detections)
    return num_failed
