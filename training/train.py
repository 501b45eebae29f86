"""Train nano: render the pool if it is not there, then train, or go on with a run.

``python -m training.train --clip vtest.avi``
``python -m training.train --smoke``
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import cv2
import torch

from photon_ros.core.errors import InputError
from training.clip import load_clip
from training.export import export
from training.pool import Mix, Pool, Renderer, render_pool
from training.precision import faster_in_bf16
from training.schedule import Schedule
from training.state import read_weights
from training.trainer import Recipe, Trainer

_SMOKE_RECIPE = Recipe(
    vision_batch=4, joint_batch=4, vision_tiled_batch=1, joint_tiled_batch=1, max_questions=4
)


_SMOKE_SCHEDULE = Schedule(vision_steps=6, joint_steps=4, again_steps=2)


def main(argv: list[str] | None = None) -> int:
    """Run the trainer; returns the exit code."""
    arguments = _parser().parse_args(argv)
    torch.set_num_threads(arguments.threads)
    cv2.setNumThreads(1)
    try:
        _train(arguments)
    except InputError as error:
        print(f"training: {error}", file=sys.stderr)
        return 2
    return 0


def _train(arguments: argparse.Namespace) -> None:
    schedule = _schedule(arguments)
    start = read_weights(arguments.start) if arguments.start else None
    out: Path = arguments.out or Path("runs/nano-smoke" if arguments.smoke else "runs/nano")
    clip = load_clip(arguments.clip) if arguments.clip else None
    if clip is None:
        print("no --clip: training without real people; the model will only know drawn ones")
    num_scenes = 60 if arguments.smoke else arguments.scenes
    started = time.monotonic()

    def on_shard(done: int) -> None:
        print(f"pool: {done}/{num_scenes} scenes, {time.monotonic() - started:.0f} s", flush=True)

    render_pool(out / "pool", Renderer(arguments.seed, Mix(), clip), num_scenes, on_shard)
    bf16 = faster_in_bf16()
    print(f"multiplying in {'bf16' if bf16 else 'fp32'}, which is faster on this processor")
    recipe = _SMOKE_RECIPE if arguments.smoke else Recipe()
    recipe = replace(recipe, seed=arguments.seed, bf16=bf16)
    trainer = Trainer(out, Pool(out / "pool"), recipe, schedule, start)
    left = None if arguments.until_step is None else max(0, arguments.until_step - trainer.step)
    trainer.run(stop_after_s=60 * arguments.minutes, stop_after_steps=left, on_save=_report)
    if not trainer.is_over:
        print(f"stopped at step {trainer.step}: the same command goes on from here")
    digest = export(trainer.network, out / "weights")
    print(f"exported to {out / 'weights'}, sha256 {digest}")


def _schedule(arguments: argparse.Namespace) -> Schedule:
    """Return the stages asked for; from weights there is the third one alone.

    Raises:
        InputError: the lengths of other stages came with weights to start from.
    """
    names = "vision_steps", "joint_steps", "again_steps"
    steps = {name: getattr(arguments, name) for name in names}
    given = {name: value for name, value in steps.items() if value is not None}
    if arguments.start:
        if given.keys() - {"again_steps"}:
            raise InputError(
                "from weights there is the third stage alone: with --start leave out "
                "--vision-steps and --joint-steps"
            )
        given |= {"vision_steps": 0, "joint_steps": 0}
    return replace(_SMOKE_SCHEDULE if arguments.smoke else Schedule(), **given)


def _report(trainer: Trainer) -> None:
    """Say how far the run is, and export what there is."""
    print(
        f"step {trainer.step} of {trainer.schedule.num_steps}, {trainer.elapsed_s:.0f} s; "
        f"{trainer.summary()}",
        flush=True,
    )
    export(trainer.network, trainer.folder / "weights")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="folder of the run; runs/nano by default")
    parser.add_argument("--clip", type=Path, help="film with real people (OpenCV's vtest.avi)")
    parser.add_argument(
        "--minutes", type=float, default=88.0, help="stop after so long; run again to go on"
    )
    parser.add_argument(
        "--vision-steps", type=int, help="steps that train the vision encoder alone"
    )
    parser.add_argument("--joint-steps", type=int, help="steps that then train everything")
    parser.add_argument("--again-steps", type=int, help="steps that train it after the restart")
    parser.add_argument(
        "--start",
        type=Path,
        help="folder of weights that a new run starts from, with the third stage alone",
    )
    parser.add_argument("--until-step", type=int, help="stop at this step; run again to go on")
    parser.add_argument("--smoke", action="store_true", help="a dozen small steps, for a test")
    parser.add_argument("--scenes", type=int, default=45_000, help="scenes in the pool")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="processor threads to use")
    return parser


if __name__ == "__main__":
    sys.exit(main())
