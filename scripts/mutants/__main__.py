"""Run ``python -m scripts.mutants [--only WORD] [--jobs N] [--list]``.

One line a mutant; the last line is ``N passed, M failed``. Exit code 1 when one survived, or
when an edge's text is no longer there.
"""

from __future__ import annotations

import argparse
import sys
import time

from scripts.mutants.edge import load_edges
from scripts.mutants.trial import Trial, run_trials


def main(arguments: list[str] | None = None) -> int:
    """Try every edge; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.mutants")
    parser.add_argument("--only", default="", help="edges whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at a time")
    parser.add_argument("--list", action="store_true", help="names only")
    options = parser.parse_args(arguments)
    edges = [edge for edge in load_edges() if options.only in edge.name]
    if options.list:
        print("\n".join(edge.name for edge in edges))
        return 0
    started_s = time.monotonic()
    tests = sorted({test for edge in edges for test in edge.tests})
    trials = [Trial("no change", tests, timeout_s=600.0)]
    trials += [Trial(edge.name, edge.tests, edge) for edge in edges]
    num_failed = 0
    for verdict in run_trials(trials, options.jobs):
        num_failed += not verdict.is_good
        word = "ok    " if verdict.is_good else "FAILED"
        print(
            f"{word} {verdict.seconds:5.1f} s  {verdict.name}  |  {verdict.why[:160]}", flush=True
        )
    print(
        f"{len(edges)} mutants and one run without a change, {time.monotonic() - started_s:.0f} s"
    )
    print(f"{len(trials) - num_failed} passed, {num_failed} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
