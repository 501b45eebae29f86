"""Shedder: when the GPU's memory runs out, ask for less at once and ask again. No ROS here.

A step that does not fit into memory fails every request in it. They are not lost: their number
at once is halved, the memory that the allocator holds back is given to the others, and they are
submitted again. After a while without trouble the limit grows back.

A request is given up when it does not fit with nothing else in the engine, or after
:data:`MAX_TRIES`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import torch

from photon_ros.core.errors import EngineFault, RequestCancelled
from photon_ros.core.request import Request
from photon_ros.core.result import Result

# Answers without trouble after which twice as much is tried at once.
NUM_CALM = 64
MAX_LIMIT = 1024
# Halving the largest limit until one request is left takes eleven.
MAX_TRIES = 12

Start = Callable[[], Future[Result]]
"""Asks the engine; errors may be raised or arrive in the future."""


class _Entry:
    """One request until it is answered."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.num_tries = 0
        self.future: Future[Result] = Future()
        self.was_alone = True  # no other request was in the engine while this one was
        self.is_excused = False  # it was inside while another failed: the limit has shrunk for both


class Shedder:
    """Submits to an engine, less at once after its memory ran out.

    Args:
        submit: the engine's own; errors about the request may be raised or arrive in the future.
        free_memory: called after a failure, before anything is submitted again.
    """

    def __init__(
        self,
        submit: Callable[[Request], Future[Result]],
        free_memory: Callable[[], None] = torch.cuda.empty_cache,
    ) -> None:
        self._submit = submit
        self._free_memory = free_memory
        self._lock = threading.Lock()
        self._waiting: deque[_Entry] = deque()
        self._inside: set[_Entry] = set()
        self._limit = MAX_LIMIT
        self._num_calm = 0
        self.num_recoveries = 0
        self.recovery_s = -math.inf  # steady time of the latest one

    @property
    def limit(self) -> int:
        """Requests in the engine at once."""
        return self._limit

    def submit(self, request: Request) -> Future[Result]:
        """Queue a request; every error arrives in the future, which can be cancelled any time."""
        return self.enter(lambda: self._submit(request))

    def enter(self, start: Start) -> Future[Result]:
        """Queue what ``start`` asks, as :meth:`submit` does; it is called once for each try."""
        entry = _Entry(start)
        with self._lock:
            self._waiting.append(entry)
        self._pump()
        return entry.future

    def _pump(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or len(self._inside) >= self._limit:
                    return
                entry = self._waiting.popleft()
                if entry.future.cancelled():
                    continue
                self._inside.add(entry)
                entry.is_excused = False
                entry.was_alone = len(self._inside) == 1
                if not entry.was_alone:
                    for other in self._inside:
                        other.was_alone = False
            self._enter(entry)

    def _enter(self, entry: _Entry) -> None:
        entry.num_tries += 1
        try:
            inner = entry.start()
        except Exception as error:
            inner = Future()
            inner.set_exception(error)
        entry.future.add_done_callback(lambda outer: outer.cancelled() and inner.cancel())
        inner.add_done_callback(lambda done: self._leave(entry, done))

    def _leave(self, entry: _Entry, inner: Future[Result]) -> None:
        error = None if inner.cancelled() else inner.exception()
        cause = None if error is None else memory_cause(error)
        with self._lock:
            num_inside = len(self._inside)
            self._inside.discard(entry)
            may_fit = not entry.was_alone and entry.num_tries < MAX_TRIES
            is_retried = cause is not None and may_fit
            if cause is not None:
                self._shrink(entry, num_inside)
            else:
                self._grow()
            if is_retried:
                self._waiting.appendleft(entry)
        if cause is not None:
            self._free_memory()
        if not is_retried:
            _settle(entry.future, inner, error if cause is None else _too_large(entry, error))
        self._pump()

    def _shrink(self, entry: _Entry, num_inside: int) -> None:
        self._num_calm = 0
        if entry.is_excused:
            return
        for other in self._inside:
            other.is_excused = True
        self._limit = max(1, min(self._limit, num_inside) // 2)
        self.num_recoveries += 1
        self.recovery_s = time.monotonic()

    def _grow(self) -> None:
        self._num_calm += 1
        if self._num_calm >= NUM_CALM and self._limit < MAX_LIMIT:
            self._num_calm = 0
            self._limit = min(MAX_LIMIT, 2 * self._limit)


def _settle(outer: Future[Result], inner: Future[Result], error: BaseException | None) -> None:
    if not outer.set_running_or_notify_cancel():
        return
    if inner.cancelled():
        outer.set_exception(RequestCancelled("the engine gave the request up"))
    elif error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())


def _too_large(entry: _Entry, error: BaseException | None) -> EngineFault:
    beside = "with nothing else in the engine" if entry.was_alone else "beside others"
    fault = EngineFault(f"out of GPU memory {beside}, at try {entry.num_tries}: {error}")
    fault.__cause__ = error
    return fault


def memory_cause(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error that ``error`` is or was caused by; None without one."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, torch.cuda.OutOfMemoryError):
            return seen
        seen = seen.__cause__
    return None
