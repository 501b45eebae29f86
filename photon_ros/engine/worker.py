"""EngineWorker: the one thread that ticks an engine, and the ways into it.

Submissions and cancellations from other threads go through an inbox that the thread empties
before every tick.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from photon_ros.core.errors import EngineStopped, PhotonError
from photon_ros.engine.engine import Engine
from photon_ros.engine.lifecycle import fault
from photon_ros.engine.sequence import Sequence, SequenceStatus

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 1.5
EXIT_TIMEOUT_S = 10.0
PAUSED_TICK_S = 0.02
IDLE_LOOK_S = 5.0


class EngineWorker:
    """Runs an engine on a thread of its own until closed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._is_closing = self._is_retiring = False
        self._live: list[Sequence] = []  # submitted; those that ended leave now and then
        # Who waits, and for what of that which was submitted before.
        self._drains: list[tuple[threading.Event, list[Sequence]]] = []
        engine.watchdog.start()
        self._thread = threading.Thread(target=self._run, name="photon-engine", daemon=True)
        self._thread.start()
        _open_workers.add(self)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence from any thread; raises EngineStopped after close.

        A request that can never run is told so through its ``on_done``.
        """
        self._post(lambda: self._submit(sequence))

    def cancel(self, sequence: Sequence, error: BaseException) -> None:
        """End a sequence from any thread; its ``on_done`` gets ``error`` if it was not over."""
        with contextlib.suppress(EngineStopped):  # everything ends then
            self._post(lambda: self._cancel(sequence, error))

    def pause(self) -> None:
        """Launch nothing more until :meth:`resume`; what is in flight is still committed."""
        self._post(partial(setattr, self.engine.scheduler, "is_paused", True))

    def resume(self) -> None:
        """Launch again."""
        self._post(partial(setattr, self.engine.scheduler, "is_paused", False))

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything submitted so far is answered; return False on a timeout."""
        is_drained = threading.Event()
        self._post(lambda: self._drains.append((is_drained, self._live.copy())))
        return is_drained.wait(timeout_s)

    def close(self, timeout_s: float = JOIN_TIMEOUT_S) -> None:
        """Stop the thread; everything not yet answered ends with EngineStopped."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        is_inside = threading.current_thread() is self._thread  # a callback; it ends after it
        if not is_inside:
            self._thread.join(timeout_s)
        self.engine.watchdog.close()
        if self._thread.is_alive() and not is_inside:
            logger.error("the engine's thread did not stop within %.1f s", timeout_s)

    def retire(self) -> None:
        """Stop once everything submitted is answered; does not wait, from whatever thread."""
        with self._wake:
            self._is_retiring = True
            self._wake.notify()

    def _post(self, action: Callable[[], None]) -> None:
        with self._wake:
            if self._is_closing:
                raise EngineStopped("the engine was closed")
            self._inbox.append(action)
            self._wake.notify()

    def _submit(self, sequence: Sequence) -> None:
        if sequence.status is not SequenceStatus.NEW:
            logger.error("a sequence was submitted before, and is told of its end only once")
            return
        self._live.append(sequence)
        try:
            self.engine.submit(sequence)
        except PhotonError as error:
            self.engine.cancel(sequence, error)
        except Exception as cause:  # a grammar that cannot even say how long it may get
            self.engine.cancel(sequence, fault("its grammar failed", cause))

    def _cancel(self, sequence: Sequence, error: BaseException) -> None:
        if sequence.status is not SequenceStatus.NEW:
            self.engine.cancel(sequence, error)

    def _forget_ended(self) -> None:
        scheduler = self.engine.scheduler
        # Once most have ended, and not at every tick: thousands may wait.
        if len(self._live) > 2 * (scheduler.num_waiting + len(scheduler.running)):
            self._live = _still_live(self._live)
        for drain in self._drains.copy():
            is_drained, awaited = drain
            if all(sequence.finalized for sequence in awaited):
                is_drained.set()
                self._drains.remove(drain)

    def _run(self) -> None:
        while True:
            self._forget_ended()
            with self._wake:
                # While paused, requests still reach their deadlines: look now and then. So does
                # who retires: a collection of garbage in this thread may do so just before it
                # waits, which wakes nobody.
                self._wake.wait_for(
                    lambda: self._must_stop or self._inbox or self.engine.can_launch_or_commit,
                    timeout=PAUSED_TICK_S if self._live else IDLE_LOOK_S,
                )
                if self._must_stop:
                    self._is_closing = True
                    break
                actions, self._inbox = self._inbox, deque()
            for action in actions:
                self._guarded(action)
            if self.engine.has_work:
                self._guarded(self.engine.tick)
        self._end_all(EngineStopped("the engine was closed"), self._taken_inbox())
        self._forget_ended()
        self.engine.watchdog.close()

    @property
    def _must_stop(self) -> bool:
        is_retired = self._is_retiring and not self._inbox and not self._live
        return self._is_closing or is_retired

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as cause:  # an engine bug: no request may wait for ever because of it
            logger.exception("the engine failed; every pending request fails with it")
            error = fault("the engine failed", cause)
            actions = self._taken_inbox()  # before anybody is told: who then asks again is served
            try:
                self.engine.recover(error)
            except Exception:
                logger.exception("the engine could not put itself in order")
            self._end_all(error, actions)

    def _taken_inbox(self) -> deque[Callable[[], None]]:
        with self._wake:
            actions, self._inbox = self._inbox, deque()
        return actions

    def _end_all(self, error: PhotonError, actions: Iterable[Callable[[], None]]) -> None:
        for action in actions:  # so that late submissions are told, too
            try:
                action()
            except Exception:  # noqa: PERF203 (the others have to be told all the same)
                logger.exception("a late submission could not be answered")
        for sequence in _still_live(self._live):
            try:
                self.engine.cancel(sequence, error)
            except Exception:  # noqa: PERF203 (it has been told; the others have to be, too)
                logger.exception("a request could not give back what it owned")


_open_workers: weakref.WeakSet[EngineWorker] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what nobody closed: an interpreter that ends under a running step aborts."""
    for worker in list(_open_workers):
        worker.close(EXIT_TIMEOUT_S)


def _still_live(sequences: list[Sequence]) -> list[Sequence]:
    return [sequence for sequence in sequences if not sequence.finalized]
