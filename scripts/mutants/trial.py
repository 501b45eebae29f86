"""Trials: the tests against changed copies of the engine, each in a process of its own.

The processes are forked after everything heavy is imported, so that a trial takes little more
than its tests.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from scripts.mutants.edge import Edge, EdgeError
from scripts.mutants.verdict import Recorder, settle_hypothesis

ROOT = Path(__file__).resolve().parents[2]
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Verdict:
    """What became of one trial; ``is_good`` is caught for a mutant, passed without a change."""

    name: str
    is_good: bool
    why: str
    seconds: float


@dataclass
class Trial:
    """One copy to test: changed by an edge, or unchanged when there is none."""

    name: str
    tests: Sequence[str]
    edge: Edge | None = None
    timeout_s: float = 120.0
    started_s: float = field(default=0.0, init=False)

    def run(self, results: Connection) -> None:
        """Run in a forked child: copy, change, test, and send (is good, why)."""
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            try:
                results.send(self._run_in(Path(folder)))
            except (EdgeError, SyntaxError) as error:
                results.send((False, f"does not apply: {error}"))
            except Exception as error:
                results.send((False, f"not run: {type(error).__name__}: {error}"))

    def _run_in(self, copy: Path) -> tuple[bool, str]:
        _copy_sources(copy)
        if self.edge is not None:
            for change in self.edge.changes:
                change.apply(copy)
        recorder = _test(copy, self.tests)
        if self.edge is None:
            is_good = not recorder.failures and recorder.num_tests > 0
            texts = [failure.text for failure in recorder.failures]
            return is_good, f"{recorder.num_tests} tests; {texts or 'all pass'}"
        if not recorder.failures:
            return False, f"survived {recorder.num_tests} tests"
        failure = recorder.objection or recorder.failures[0]
        return failure.is_objection, failure.text


def run_trials(trials: Sequence[Trial], num_jobs: int) -> Iterator[Verdict]:
    """Run trials, ``num_jobs`` at a time; yield each verdict when it is there."""
    torch.set_num_threads(1)
    waiting = list(trials)
    running: dict[Connection, tuple[Trial, BaseProcess]] = {}
    while waiting or running:
        while waiting and len(running) < num_jobs:
            trial = waiting.pop(0)
            receiver, sender = _FORK.Pipe(duplex=False)
            trial.started_s = time.monotonic()
            process: BaseProcess = _FORK.Process(target=trial.run, args=(sender,))
            process.start()
            sender.close()
            running[receiver] = (trial, process)
        ready = set(wait(list(running), timeout=1.0))
        for receiver, (trial, process) in list(running.items()):
            seconds = time.monotonic() - trial.started_s
            if receiver in ready:
                try:
                    is_good, why = receiver.recv()
                except EOFError:
                    is_good, why = False, "the process died"
            elif seconds > trial.timeout_s:
                process.kill()
                is_good, why = False, f"no end within {trial.timeout_s:.0f} s"
            else:
                continue
            process.join()
            del running[receiver]
            yield Verdict(trial.name, is_good, why, seconds)


def _copy_sources(target: Path) -> None:
    """Copy what the engine's tests need: the package without weights, and the tests."""
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors", "weights")
    shutil.copytree(ROOT / "photon_ros", target / "photon_ros", ignore=ignored)
    shutil.copytree(ROOT / "test" / "engine", target / "test" / "engine", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", target)


def _test(copy: Path, tests: Sequence[str]) -> Recorder:
    """Run tests in a copy until one objects."""
    os.chdir(copy)
    sys.path[:] = [str(copy), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    sys.dont_write_bytecode = True
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    settle_hypothesis()
    recorder = Recorder()
    files = [f"test/engine/{name}" for name in tests]
    options = [
        "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants",
        "-W", "ignore::pytest.PytestAssertRewriteWarning",  # hypothesis is there before pytest
    ]  # fmt: skip
    pytest.main([*options, *files], plugins=[recorder])
    return recorder
