"""Child processes of a live run: started, watched, and always ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

from photon_ros.core.errors import InputError, PhotonError

_END_TIMEOUT_S: Final = 10.0
_TERM_TIMEOUT_S: Final = 2.0
_POLL_S: Final = 0.05
_NUM_LOG_LINES: Final = 3
# What rclpy puts before a message: [ERROR] [1764530000.123456789] [photon]:
_LOG_PREFIX: Final = re.compile(r"^\[[A-Z]+\] \[[0-9.]+\] \[[^\]]*\]: ")
# How our processes end when what they were given cannot be used, and what they say then.
_REFUSED_CODE: Final = 2
_REFUSAL: Final = re.compile(r"(?:cannot configure|photon_node|player|recorder): (.+)")


class LiveError(PhotonError):
    """A live run could not be carried out; names the process and its last words."""


class Child:
    """One process, with its output in a file."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def is_running(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def last_words(self) -> str:
        """Return the end of its log in one line."""
        lines = self._log.read_text("utf-8", "replace").splitlines()
        lines = [_LOG_PREFIX.sub("", line).strip() for line in lines if line.strip()]
        return " / ".join(lines[-_NUM_LOG_LINES:]) or "it wrote nothing"

    def check(self) -> None:
        """Raise LiveError if it has ended with an error, or before its time.

        Raises:
            InputError: it refused what it was given; says why in its words.
        """
        if not self.is_running:
            reason = self._refusal()
            if reason is not None:
                raise InputError(reason)
            raise LiveError(f"the {self.name} ended {self._how()}: {self.last_words()}")

    def _refusal(self) -> str | None:
        """Return why it did not take what it was given; None when it ended otherwise."""
        if self.exit_code != _REFUSED_CODE:
            return None
        found = _REFUSAL.findall(self._log.read_text("utf-8", "replace"))
        return str(found[-1]).strip() if found else None

    def _how(self) -> str:
        code = self._process.returncode
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"by {signal.Signals(-code).name}"
        return f"with code {code}"

    def wait(self, timeout_s: float) -> bool:
        """Return True once it has ended, False after the time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def interrupt(self, timeout_s: float = _END_TIMEOUT_S) -> None:
        """Ask it to end as ctrl-C does; end it by force after the time."""
        if self.is_running:
            self._signal(signal.SIGINT)
            if not self.wait(timeout_s):
                self.end()

    def end(self) -> None:
        """End it now, and whatever it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.is_running:
                self._signal(number)
                self.wait(_TERM_TIMEOUT_S)
        # It led a process group of its own; children it left behind are in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


class Children:
    """The processes of one run; leaving the block ends all of them, whatever happened."""

    def __init__(self, log_folder: Path, environment: Mapping[str, str]) -> None:
        self._log_folder = log_folder
        self._environment = dict(environment)
        self._children: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in reversed(self._children):
            child.end()

    def start(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        """Start ``python -m module`` with the interpreter that runs this."""
        # Unbuffered: else what it printed comes into the log after its last words on stderr.
        command = [sys.executable, "-u", "-m", module, *arguments]
        tied = [sys.executable, "-m", "photon_ros.replay.tied", str(os.getpid()), *command]
        log = self._log_folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                tied,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # ctrl-C in a terminal goes to the whole group: these are ended in order, by us.
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raise LiveError, or InputError, if any has ended; see :meth:`Child.check`."""
        for child in self._children:
            child.check()


def wait_until(is_true: Callable[[], bool], children: Sequence[Child], timeout_s: float) -> bool:
    """Poll until the condition holds; False after the time. Raises if a child has ended."""
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        for child in children:
            child.check()
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
