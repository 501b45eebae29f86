"""Lifecycle: what becomes of a sequence from its admission to its release.

The only place that asks and tells grammars, and where sequences end: finalized once, told so
once, and released once nothing names them. Whatever a grammar or a callback raises ends one
request and nothing else.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq

from photon_ros.core.errors import CapacityError, DeadlineExceeded, EngineFault
from photon_ros.core.result import EndReason
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.engine.metrics import EngineStats
from photon_ros.engine.scheduler import Scheduler
from photon_ros.engine.sequence import Outcome, Sequence, SequenceStatus
from photon_ros.engine.submission import check_constraint, check_ids

logger = logging.getLogger(__name__)

MAX_CHECKED = 256
NOT_FINITE = (
    "the model computed no finite number; float16 overflows on some images and prompts: try "
    "bfloat16 or float32 (in these, weights, an adapter or the device are damaged)"
)


class Lifecycle:
    """Advances, ends and releases the sequences of one scheduler.

    ``scrub`` queues the cleaning of pages that may hold numbers that are not finite.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        stats: EngineStats,
        vocab_size: int,
        scrub: Callable[[Seq[int]], None],
    ) -> None:
        self._scheduler = scheduler
        self._scrub = scrub
        self._stats = stats
        self._vocab_size = vocab_size
        # By id, and kept so that it stays theirs: grammars use the same few at every token.
        self._checked: dict[int, Constraint] = {}

    def constraint_ahead(self, sequence: Sequence, num_ahead: int) -> Constraint | None:
        """Ask a grammar; None when it is not known yet, or when nobody will read the row."""
        if sequence.finalized or sequence.is_between_phases:
            return None
        try:
            constraint = sequence.state.constraint_ahead(num_ahead)
            if constraint is None and num_ahead == 0:
                raise ValueError("constraint_ahead(0) is None; what may come next is known by then")
            if constraint is not None and id(constraint) not in self._checked:
                check_constraint(constraint, self._vocab_size)
                if len(self._checked) == MAX_CHECKED:
                    self._checked.clear()
                self._checked[id(constraint)] = constraint
        except Exception as error:
            self._fail(sequence, error)
            return None
        return constraint

    def commit(self, sequence: Sequence, token: SampledToken, copied_s: float) -> bool:
        """Drop a step's reference and advance by its token; return False for a zombie's."""
        sequence.inflight_refs -= 1
        # Whatever was not finite in a row's forward made NaN of the probability it landed.
        is_finite = not math.isnan(token.prob * token.bin_prob)
        sequence.is_tainted |= not is_finite
        if sequence.finalized:
            self._release_if_unnamed(sequence)
            return False
        if sequence.is_between_phases:
            self._resume_if_unnamed(sequence)
            return False
        sequence.clock.first_token_s = sequence.clock.first_token_s or copied_s
        sequence.num_committed += 1
        self._stats.num_tokens += 1
        if not is_finite:
            self._scheduler.forget_prefix(sequence)
            self.finalize(sequence, Outcome(error=EngineFault(NOT_FINITE)))
            return True
        try:
            has_ended = sequence.state.advance(token)
            next_ids = sequence.state.next_phase() if has_ended else None
            if next_ids is not None:
                check_ids(next_ids, self._vocab_size)
        except Exception as error:
            self._fail(sequence, error)
            return True
        if next_ids is not None:
            sequence.enter_phase(next_ids)
            self._resume_if_unnamed(sequence)
        elif has_ended:
            self.finalize(sequence, Outcome())
        elif sequence.num_committed >= sequence.max_new_tokens:
            self.finalize(sequence, Outcome(by_length=sequence.length_reason))
        return True

    def finalize(self, sequence: Sequence, outcome: Outcome) -> None:
        """End a sequence and deliver its outcome; what it owns stays while a step names it.

        One that has ended before is only released, if nothing names it any more.
        """
        if sequence.finalized:
            self._release_if_unnamed(sequence)
            return
        sequence.finalized = True
        sequence.clock.finalized_s = time.monotonic()
        if sequence.clock.first_token_s:
            self._stats.requests.append(sequence.clock)
        self._scheduler.withdraw(sequence)
        try:
            self._release_if_unnamed(sequence)
        finally:  # whatever breaks, nobody waits for ever
            try:
                sequence.on_done(sequence, outcome)
            except Exception:
                logger.exception("the callback of a finished request failed")

    def shed_expired(self) -> None:
        """End every sequence whose deadline has passed."""
        now_s = time.monotonic()
        for sequence in self._scheduler.expired(now_s):
            late_ms = 1e3 * (now_s - (sequence.deadline_s or now_s))
            has_started = sequence.status is not SequenceStatus.WAITING
            while_what = "running" if has_started else "waiting"
            error = DeadlineExceeded(
                f"deadline passed {late_ms:.0f} ms ago while {while_what}", has_started=has_started
            )
            self.finalize(sequence, Outcome(error=error))

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        self.finalize(sequence, Outcome(error=fault("its grammar failed", error)))

    def _resume_if_unnamed(self, sequence: Sequence) -> None:
        """Queue the next phase once no step in flight can write behind it."""
        if sequence.inflight_refs:
            return
        try:
            self._scheduler.resume(sequence)
        except CapacityError:
            self.finalize(sequence, Outcome(by_length=EndReason.MAX_CONTEXT))
        except Exception as error:
            self._fail(sequence, error)

    def _release_if_unnamed(self, sequence: Sequence) -> None:
        if sequence.inflight_refs == 0 and sequence.status is not SequenceStatus.RELEASED:
            if sequence.is_tainted and sequence.pages:
                self._scrub(sequence.pages)  # queued ahead of whatever their next owner runs
            self._scheduler.release(sequence)


def fault(what: str, cause: BaseException) -> EngineFault:
    """Return the error that a request gets when something under it raised ``cause``."""
    error = EngineFault(f"{what}: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
