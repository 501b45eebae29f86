"""photon-ros golden: the engine against exact outputs of the reference."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from photon_ros.core.errors import PhotonError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from photon_ros.cli.arguments import Commands
    from photon_ros.cli.golden_folder import GoldenCase
    from photon_ros.core.request import Request
    from photon_ros.core.result import Result
    from photon_ros.engine.config import EngineConfig
    from photon_ros.models.moondream.checkpoint import Checkpoint
    from photon_ros.photon import Photon


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "golden",
        help="compare the engine with exact outputs of the reference",
        description="Run every case of a golden folder through the engine, in float32 on the "
        "CPU, and its outlines through the segment skill. One line for each failing case; the "
        "last line is the count.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="golden folder")
    parser.add_argument(
        "--blocking", action="store_true", help="run the engine at depth one (not pipelined)"
    )
    parser.add_argument(
        "--hold-constrained",
        action="store_true",
        help="sample no constrained token before the one before it is known",
    )
    parser.add_argument(
        "--batched",
        action="store_true",
        help="submit all cases at once, so that they share frames and steps; compares answers, "
        "not tensors",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the cases; 1 when any failed."""
    from photon_ros.cli.golden_folder import read_golden
    from photon_ros.cli.golden_segment import check_outlines
    from photon_ros.engine.config import EngineConfig
    from photon_ros.models.moondream.checkpoint import load_checkpoint

    cases = read_golden(arguments.folder)
    checkpoint = load_checkpoint(arguments.folder)
    config = EngineConfig(
        max_rows=max(16, len(cases)) if arguments.batched else 16,
        num_private_pages=256 + 16 * len(cases),
        pipelined=not arguments.blocking,
        hold_constrained=arguments.hold_constrained,
    )
    run_all = _run_batched if arguments.batched else _run_one_by_one
    found = [
        (f"{case.name} ({case.question})", problems)
        for case, problems in zip(cases, run_all(checkpoint, cases, config), strict=True)
    ]
    found += [
        (f"{name} (outline)", problems)
        for name, problems in check_outlines(arguments.folder, checkpoint.prompting)
    ]
    failed = [(name, problems) for name, problems in found if problems]
    for name, problems in failed:
        print(f"{name}: {'; '.join(problems)}")
    print(f"{len(found) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def _run_batched(
    checkpoint: Checkpoint, cases: list[GoldenCase], config: EngineConfig
) -> list[list[str]]:
    from photon_ros.photon import Photon

    with Photon(checkpoint, config=config) as photon:
        answers = [_submit(photon, case.request) for case in cases]
        return [
            _problems(checkpoint, case, answer) for case, answer in zip(cases, answers, strict=True)
        ]


def _run_one_by_one(
    checkpoint: Checkpoint, cases: list[GoldenCase], config: EngineConfig
) -> list[list[str]]:
    from dataclasses import replace

    from photon_ros.cli.golden_check import check_recording
    from photon_ros.cli.golden_probe import RecordingModel
    from photon_ros.core.frame import Frame
    from photon_ros.photon import Photon

    probe = RecordingModel(checkpoint.model)
    found = []
    with Photon(replace(checkpoint, model=probe), config=config) as photon:
        for case in cases:
            num_before = len(probe.recordings)
            frame = case.request.frame
            # A frame of its own, so that its encoding is seen again.
            own = replace(case.request, frame=None if frame is None else Frame(frame.image))
            answer = _submit(photon, own)
            problems = _problems(checkpoint, case, answer)
            if len(probe.recordings) > num_before and answer.exception() is None:
                recording = probe.recordings[num_before]
                num_objects = len(answer.result().detections)
                problems += check_recording(case, recording, checkpoint.model, num_objects)
            found.append(problems)
    return found


def _submit(photon: Photon, request: Request) -> Future[Result]:
    from concurrent.futures import Future

    try:
        return photon.submit(request)
    except PhotonError as error:
        refused: Future[Result] = Future()
        refused.set_exception(error)
        return refused


def _problems(checkpoint: Checkpoint, case: GoldenCase, answer: Future[Result]) -> list[str]:
    from photon_ros.cli.golden_check import check_answer

    try:
        result = answer.result()
    except PhotonError as error:
        return [f"{type(error).__name__}: {error}"]
    return list(check_answer(case, result, checkpoint.prompting))
