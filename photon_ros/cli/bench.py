"""photon-ros bench: the loop measured without a model, and a model of it computed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from photon_ros.cli.arguments import Commands

_FILE_WIDTH = 1000  # wider than any table: one is no wider than its cells
Measure = Callable[[Callable[[str], None]], dict[str, Any]]

_BENCHES = {
    "overlap": "bookkeeping hidden behind forwards of a set length, pipelined against blocking",
    "zombies": "forwards wasted on answers that had already ended",
    "host": "what one tick costs the host",
    "tick": "where the time of real ticks goes, with a trace for a trace viewer",
    "model": "the performance model, computed for named GPUs (nothing is measured)",
}


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    what = "Measure the engine's loop without a model."
    parser = commands.add_parser("bench", help="measure the engine's loop", description=what)
    benches = parser.add_subparsers(title="benches", dest="bench", required=True, metavar="BENCH")
    for name, help_text in _BENCHES.items():
        bench = benches.add_parser(name, help=help_text, description=help_text.capitalize())
        bench.add_argument("--json", action="store_true", help="print the figures as JSON")
        if name == "tick":
            bench.add_argument(
                "--trace",
                type=Path,
                metavar="FILE",
                help="write launch, sampling, wait and commit of every step as a Chrome trace",
            )
        bench.set_defaults(run=run)
    _add_transformers(benches)


def _add_transformers(benches: Commands) -> None:
    what = "the text decoder against transformers' Phi: logits, tokens and time on the CPU"
    bench = benches.add_parser("transformers", help=what, description=what.capitalize())
    bench.add_argument("--json", action="store_true", help="print the figures as JSON")
    bench.add_argument(
        "--model", default="nano", metavar="DIR", help="folder, hub id or nano (default: nano)"
    )
    bench.add_argument(
        "--tokens", type=int, default=64, metavar="N", help="tokens an answer (default: 64)"
    )
    bench.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run one bench and print its rows."""
    figures = _measure_of(arguments)(_progress)
    trace = figures.pop("trace", None)
    if trace is not None and arguments.trace is not None:
        arguments.trace.write_text(json.dumps(trace), encoding="utf-8")
    if arguments.json:
        print(json.dumps(figures, indent=2))
        return 0
    for name, rows in figures.items():
        if isinstance(rows, list):
            _print_table(name, rows)
        elif isinstance(rows, dict):
            for control, control_rows in rows.items():
                _print_table(f"{name}: {control}", control_rows)
        else:
            print(f"{name}: {rows}")
    return 0


def _measure_of(arguments: argparse.Namespace) -> Measure:
    name = arguments.bench
    if name == "transformers":
        from photon_ros.bench import transformers_check

        return partial(
            transformers_check.measure, model=arguments.model, num_tokens=arguments.tokens
        )
    if name == "overlap":
        from photon_ros.bench.overlap import measure
    elif name == "zombies":
        from photon_ros.bench.zombies import measure
    elif name == "tick":
        from photon_ros.bench.tick import measure
    elif name == "host":
        from photon_ros.bench.host import measure
    else:
        from photon_ros.bench.model import measure
    return measure


def _progress(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr)


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    # A terminal's width where there is one; files get whole lines.
    Console(width=None if sys.stdout.isatty() else _FILE_WIDTH).print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(number)}" for name, number in value.items())
    return "-" if value is None else str(value)
