"""Mailbox: the newest frame of one camera, and the account of every frame ever received.

    put -> mailboxed -> take -> in flight -> finish (completed or failed), or drop
             |  ^
             v  | a newer frame replaces the waiting one
          dropped

At any moment received = completed + failed + in_flight + mailboxed + all dropped. No ROS here;
every method may be called from any thread.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")


class DropReason(Enum):
    """Why a frame was not answered."""

    OVERWRITTEN = "overwritten"  # a newer frame came while it waited
    STALE = "stale"  # too old when its turn came
    RATE = "rate"  # above the rate limit
    BAD = "bad"  # could not be decoded
    RESET = "reset"  # flushed: on request, by a clock jump, a deactivation or a shutdown


@dataclass(frozen=True, slots=True)
class FrameCounts:
    """A snapshot of one camera's account; every number counts frames."""

    received: int
    completed: int
    failed: int
    in_flight: int
    mailboxed: int
    overwritten: int
    stale: int
    rate: int
    bad: int
    reset: int

    @property
    def dropped(self) -> int:
        """Frames dropped for any reason."""
        return self.overwritten + self.stale + self.rate + self.bad + self.reset

    @property
    def balanced(self) -> bool:
        """True when every received frame is accounted for exactly once."""
        settled = self.completed + self.failed + self.dropped
        return self.received == settled + self.in_flight + self.mailboxed


@dataclass(frozen=True, slots=True)
class Taken(Generic[T]):
    """A frame on its way.

    Attributes:
        sequence: running number of the camera's frames, from 0, which no reset changes.
        dropped_since_last: frames dropped between the previous taken frame and this one.
    """

    item: T
    sequence: int
    dropped_since_last: int


class Mailbox(Generic[T]):
    """Holds at most one waiting frame; the latest wins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: tuple[T, int] | None = None
        self._next_sequence = 0
        self._received = 0
        self._completed = 0
        self._failed = 0
        self._in_flight = 0
        self._dropped = dict.fromkeys(DropReason, 0)
        self._dropped_at_last_take = 0
        self._admitted_s = float("-inf")  # what the least time to the next frame counts from

    def put(self, item: T, *, now_s: float, min_period_s: float = 0.0) -> bool:
        """Count a received frame and let it wait, replacing the one that waited.

        Args:
            now_s: time on the steady clock.
            min_period_s: least time between admitted frames, on average; 0 admits all.

        Returns:
            False when the frame came above the rate limit and was dropped.
        """
        with self._lock:
            sequence = self._next_sequence
            self._next_sequence += 1
            self._received += 1
            due_s = self._admitted_s + min_period_s
            if min_period_s > 0 and now_s < due_s:
                self._dropped[DropReason.RATE] += 1
                return False
            # Counted from the due time, so that jitter does not lower the rate; from now after a
            # pause, so that no burst makes up for it.
            self._admitted_s = due_s if now_s - due_s < min_period_s else now_s
            if self._waiting is not None:
                self._dropped[DropReason.OVERWRITTEN] += 1
            self._waiting = (item, sequence)
            return True

    def take(self) -> Taken[T] | None:
        """Take the waiting frame, in flight from now on; None when there is none."""
        with self._lock:
            if self._waiting is None:
                return None
            item, sequence = self._waiting
            self._waiting = None
            self._in_flight += 1
            total = sum(self._dropped.values())
            since = total - self._dropped_at_last_take
            self._dropped_at_last_take = total
            return Taken(item, sequence, since)

    def drop(self, reason: DropReason) -> None:
        """Count a frame in flight as dropped."""
        with self._lock:
            self._land()
            self._dropped[reason] += 1

    def finish(self, *, completed: bool) -> None:
        """Count a frame in flight as answered: completed, or failed."""
        with self._lock:
            self._land()
            if completed:
                self._completed += 1
            else:
                self._failed += 1

    def _land(self) -> None:
        if self._in_flight < 1:
            raise RuntimeError("a frame was settled that is not in flight")
        self._in_flight -= 1

    def flush(self) -> None:
        """Drop the waiting frame, if any, with the reason RESET."""
        with self._lock:
            if self._waiting is not None:
                self._waiting = None
                self._dropped[DropReason.RESET] += 1

    def reset_counts(self) -> None:
        """Begin a new account with the frames that wait or are in flight as all it received.

        Running numbers go on, and so does the count of drops between two taken frames.
        """
        with self._lock:
            self._received = self._in_flight + int(self._waiting is not None)
            self._completed = self._failed = 0
            self._dropped_at_last_take -= sum(self._dropped.values())
            self._dropped = dict.fromkeys(DropReason, 0)

    @property
    def has_frame(self) -> bool:
        """True while a frame waits."""
        with self._lock:
            return self._waiting is not None

    def counts(self) -> FrameCounts:
        """Return the account, taken at one moment."""
        with self._lock:
            return FrameCounts(
                received=self._received,
                completed=self._completed,
                failed=self._failed,
                in_flight=self._in_flight,
                mailboxed=int(self._waiting is not None),
                **{reason.value: count for reason, count in self._dropped.items()},
            )
