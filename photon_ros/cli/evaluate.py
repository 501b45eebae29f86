"""photon-ros evaluate: run a recording through the model, score it, report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photon_ros.cli.arguments import add_budget_arguments, add_depth_argument, add_model_arguments
from photon_ros.cli.wording import counted

if TYPE_CHECKING:
    from photon_ros.cli.arguments import Commands


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "evaluate",
        help="run a recording through the model, score it, report",
        description="Run a recording through the model, score it against truth, and write "
        "results.json, report.md and pictures.",
    )
    parser.add_argument("bag", type=Path, metavar="BAG", help="ROS 2 or ROS 1 recording")
    parser.add_argument(
        "--skill",
        choices=("detect", "point", "segment"),
        default="detect",
        help="what to ask of each frame (default: detect)",
    )
    parser.add_argument(
        "--prompt",
        action="append",
        required=True,
        metavar="TEXT",
        help="what to look for; may be given several times",
    )
    parser.add_argument("--topic", metavar="T", help="image topic; T also finds T/compressed")
    parser.add_argument("--truth", type=Path, metavar="TRUTH.json", help="COCO JSON to score by")
    parser.add_argument(
        "--truth-frames-only", action="store_true", help="take only the frames the truth names"
    )
    parser.add_argument(
        "--truth-may-miss",
        action="store_true",
        help="leave out truth of frames that the bag does not have (any more)",
    )
    parser.add_argument(
        "--live", action="store_true", help="replay through the node over the middleware"
    )
    parser.add_argument(
        "--rate", type=float, metavar="R", help="speed of the live replay (default: 1)"
    )
    add_depth_argument(parser)
    add_model_arguments(parser)
    add_budget_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="report folder")
    parser.add_argument("--json", action="store_true", help="print results.json on stdout")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate a recording; 1 when frames failed (in part, too late, error) or were undecodable."""
    from photon_ros.core.errors import InputError
    from photon_ros.replay.evaluate import evaluate
    from photon_ros.replay.options import EvaluateOptions
    from photon_ros.replay.results import dump_document

    if arguments.rate is not None and not arguments.live:
        raise InputError("--rate is the speed of a live replay: give --live too")
    options = EvaluateOptions(
        bag=arguments.bag,
        out=arguments.out,
        skill=arguments.skill,
        prompts=tuple(arguments.prompt),
        topic=arguments.topic,
        truth=arguments.truth,
        truth_frames_only=arguments.truth_frames_only,
        truth_may_miss=arguments.truth_may_miss,
        live=arguments.live,
        rate=1.0 if arguments.rate is None else arguments.rate,
        model=arguments.model,
        device=arguments.device,
        dtype=arguments.dtype,
        max_objects=arguments.max_objects,
        max_crops=arguments.max_crops,
        depth_policy=arguments.depth_policy,
    )
    evaluation = evaluate(options)
    if arguments.json:
        sys.stdout.write(dump_document(evaluation.document))
    else:
        print_summary(evaluation.document, arguments.out)
    return 0 if evaluation.is_flawless else 1


def print_summary(document: dict[str, Any], out: Path) -> None:
    """Print the figures as tables."""
    from rich.console import Console
    from rich.table import Table

    # A terminal's width where there is one; files get whole lines.
    console = Console(width=None if sys.stdout.isatty() else 100)
    frames = document["frames"]
    table = Table(title=f"{document['bag']['name']}: frames", title_justify="left")
    for name in ("received", "completed", "failed", "dropped", "frames/s"):
        table.add_column(name, justify="right")
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(frames["dropped"].items()))
    table.add_row(
        str(frames["received"]),
        str(frames["completed"]),
        str(frames["failed"]),
        reasons or "0",
        f"{document['throughput']['frames_per_s']:.2f}",
    )
    console.print(table)
    if document["accuracy"] is not None:
        console.print(_accuracy_table(document["accuracy"]))
    if document["latency_ms"]:
        latency = Table(title="latency, ms", title_justify="left")
        latency.add_column("stage")
        for name in ("p50", "p95", "p99", "max"):
            latency.add_column(name, justify="right")
        for stage, row in document["latency_ms"].items():
            latency.add_row(stage, *(f"{value:.1f}" for value in row.values()))
        console.print(latency)
    for note in document["notes"]:
        console.print(note, markup=False)
    console.print(f"report: {out}", markup=False)


def _accuracy_table(accuracy: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    num_frames = accuracy["num_frames"]
    title = f"accuracy at IoU 0.5, {counted(num_frames, 'frame')}"
    table = Table(title=title, title_justify="left")
    table.add_column("prompt")
    for name in ("F1", "precision", "recall", "AP50", "AP50:95", "true", "found"):
        table.add_column(name, justify="right")
    rows = dict(accuracy["by_prompt"])
    if len(rows) > 1:
        rows["all"] = accuracy
    for prompt, row in rows.items():
        table.add_row(
            escape(prompt),
            *(_share(row[f"{name}_iou50"]) for name in ("f1", "precision", "recall", "ap")),
            _share(row["ap_iou50_95"]),
            str(row["num_truth"]),
            str(row["num_predicted"]),
        )
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
