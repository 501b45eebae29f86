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
    from photon_ros.core.result import Result
    from photon_ros.engine.config import EngineConfig
    from photon_ros.models.moondream.checkpoint import Checkpoint
    from photon_ros.photon import Photon


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "golden",
        help="compare the engine with exact outputs of the reference",
        description="Run every point and detect case of a golden folder through the engine, in "
        "float32 on the CPU. One line for each failing case; the last line is the count.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="golden folder")
    parser.add_argument(
        "--blocking", action="store_true", help="run the engine at depth one (not pipelined)"
    )
    parser.add_argument(
        "--batched",
        action="store_true",
        help="submit all cases at once, so that they share steps; compares answers, not tensors",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the cases; 1 when any failed."""
    from photon_ros.cli.golden_folder import read_golden
    from photon_ros.engine.config import EngineConfig
    from photon_ros.models.moondream.checkpoint import load_checkpoint

    cases = read_golden(arguments.folder)
    checkpoint = load_checkpoint(arguments.folder)
    config = EngineConfig(pipelined=not arguments.blocking)
    run_all = _run_batched if arguments.batched else _run_one_by_one
    num_failed = 0
    for case, problems in zip(cases, run_all(checkpoint, cases, config), strict=True):
        if problems:
            num_failed += 1
            question = f"{case.skill} {case.prompt!r} on {case.facts['id']}"
            print(f"{case.name} ({question}): {'; '.join(problems)}")
    print(f"{len(cases) - num_failed} passed, {num_failed} failed")
    return 1 if num_failed else 0


def _run_batched(
    checkpoint: Checkpoint, cases: list[GoldenCase], config: EngineConfig
) -> list[list[str]]:
    from photon_ros.photon import Photon

    with Photon(checkpoint, config=config) as photon:
        answers = [_submit(photon, case) for case in cases]
        return [
            _problems(checkpoint, case, answer) for case, answer in zip(cases, answers, strict=True)
        ]


def _run_one_by_one(
    checkpoint: Checkpoint, cases: list[GoldenCase], config: EngineConfig
) -> list[list[str]]:
    from dataclasses import replace

    from photon_ros.cli.golden_check import check_recording
    from photon_ros.cli.golden_probe import RecordingModel
    from photon_ros.photon import Photon

    probe = RecordingModel(checkpoint.model)
    # The engine knows the model as a Model only, which the probe is.
    probed = replace(checkpoint, model=probe)  # type: ignore[arg-type]
    found = []
    with Photon(probed, config=config) as photon:
        for case in cases:
            num_before = len(probe.recordings)
            answer = _submit(photon, case)
            problems = _problems(checkpoint, case, answer)
            if len(probe.recordings) > num_before and answer.exception() is None:
                recording = probe.recordings[num_before]
                num_objects = len(answer.result().detections)
                problems += check_recording(case, recording, checkpoint.model, num_objects)
            found.append(problems)
    return found


def _submit(photon: Photon, case: GoldenCase) -> Future[Result]:
    from concurrent.futures import Future

    from photon_ros.core.frame import Frame
    from photon_ros.core.request import Request

    request = Request(case.skill, case.prompt, Frame(case.image), max_objects=case.max_objects)
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
