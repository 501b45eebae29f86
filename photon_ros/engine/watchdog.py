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
        # (what, since when); only ever replaced as a whole, so it is read without a lock.
        self._wait: tuple[object, float] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="photon-watchdog", daemon=True)

    def start(self) -> None:
        """Report stalls from a thread of its own until :meth:`close`."""
        self._thread.start()

    @contextmanager
    def watch(self, what: object) -> Iterator[None]:
        """Mark the body as a wait for ``what``."""
        self._wait = (what, time.monotonic())
        try:
            yield
        finally:
            self._wait = None

    def close(self) -> None:
        """Stop reporting."""
        self._stop.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        reported = None
        while not self._stop.wait(self._limit_s / 4):
            wait = self._wait
            if wait is None or wait is reported:
                continue
            waited_s = time.monotonic() - wait[1]
            if waited_s >= self._limit_s:
                reported = wait
                logger.error("%s: no answer from the device for %.1f s", wait[0], waited_s)
