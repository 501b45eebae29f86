"""Endings: a sequence is finalized once, told so once, and released once nothing names it."""

from __future__ import annotations

import logging
import time

from photon_ros.core.errors import CapacityError, EngineFault
from photon_ros.core.result import EndReason
from photon_ros.engine.scheduler import Scheduler
from photon_ros.engine.sequence import Outcome, Sequence, SequenceStatus

logger = logging.getLogger(__name__)


class Endings:
    """The only place where sequences end, give back what they own, or enter a next phase."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def finalize(self, sequence: Sequence, outcome: Outcome) -> None:
        """End a sequence and deliver its outcome, once; its pages stay while a step names it."""
        sequence.finalized = True
        sequence.clock.finalized_s = time.monotonic()
        self._scheduler.withdraw(sequence)
        try:
            self.release_if_unnamed(sequence)
        finally:  # whatever breaks, nobody waits for ever
            try:
                sequence.on_done(sequence, outcome)
            except Exception:
                logger.exception("the callback of a finished request failed")

    def resume_if_unnamed(self, sequence: Sequence) -> None:
        """Queue the next phase once no step in flight can write behind it."""
        if sequence.inflight_refs:
            return
        try:
            self._scheduler.resume(sequence)
        except CapacityError:
            self.finalize(sequence, Outcome(by_length=EndReason.MAX_CONTEXT))

    def release_if_unnamed(self, sequence: Sequence) -> None:
        """Give back what a finalized sequence owns, unless a step in flight still names it."""
        if sequence.inflight_refs == 0 and sequence.status is not SequenceStatus.RELEASED:
            self._scheduler.release(sequence)

    def end_after_fault(self, sequence: Sequence, error: BaseException) -> None:
        """End a sequence whose step failed; one that had ended before only loses the step."""
        if sequence.finalized:
            self.release_if_unnamed(sequence)
        else:
            self.finalize(sequence, Outcome(error=error))


def fault(what: str, cause: BaseException) -> EngineFault:
    """Return the error that a request gets when something under it raised ``cause``."""
    error = EngineFault(f"{what}: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
