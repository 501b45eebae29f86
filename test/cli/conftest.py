from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from photon_ros.cli import main

Cli = Callable[..., "subprocess.CompletedProcess[str]"]

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def shared() -> Path:
    """The folder with recordings and reference outputs; skips where there is none."""
    name = os.environ.get("PHOTON_SHARED")
    if not name:
        pytest.skip("PHOTON_SHARED does not name a folder with recordings")
    return Path(name)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run photon-ros as a user does: a process of its own, in a folder of its own."""

    def run(*arguments: object, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(REPOSITORY), environment.get("PYTHONPATH", "")]
        )
        environment["OMP_NUM_THREADS"] = "1"
        return subprocess.run(
            [sys.executable, "-m", "photon_ros", *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture
def cli_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    """The same within this process: for the many calls that each load the model's libraries."""
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, said.out, said.err)

    yield run
    signal.signal(signal.SIGTERM, handler)
