"""Watchdog: says which step the host has been waiting for too long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Watchdog:
    """Logs an error, once a wait, when a wait lasts longer than ``limit_s``.

    A wait for the device cannot be interrupted from the host; what can be done is to say which
    step it is, so that the log of a robot that stopped answering names the cause.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._waiting_for: str | None = None
        self._since_s = 0.0
        self._is_reported = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Report stalls from a thread of its own until :meth:`close`."""
        self._thread = threading.Thread(target=self._run, name="photon-watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def watch(self, what: str) -> Iterator[None]:
        """Mark the body as a wait for ``what``."""
        with self._lock:
            self._waiting_for, self._since_s, self._is_reported = what, time.monotonic(), False
        try:
            yield
        finally:
            with self._lock:
                self._waiting_for = None

    @property
    def stalled(self) -> str | None:
        """What has been waited for longer than the limit, with the seconds, or None."""
        with self._lock:
            waited_s = time.monotonic() - self._since_s
            if self._waiting_for is None or waited_s < self._limit_s:
                return None
            return f"{self._waiting_for}: no answer from the device for {waited_s:.1f} s"

    def close(self) -> None:
        """Stop reporting."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.wait(self._limit_s / 4):
            stalled = self.stalled
            if stalled is not None and not self._is_reported:
                self._is_reported = True
                logger.error("%s", stalled)
