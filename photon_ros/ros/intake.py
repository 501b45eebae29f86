"""Intake: what a camera sends, watched on arrival: rates, stamps, losses. No ROS here.

Everything is read from the serialised message, because most of a fast camera's frames are
replaced before anybody looks into them.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

WINDOW_S = 10.0
MIN_STAMPS = 5
# Where hardly anything arrives, so many stamps are kept beyond the window, for so long: a camera of
# which one frame in a hundred comes has a rate, too.
NUM_KEPT_STAMPS = 12
KEPT_S = 120.0
# Drivers hand frames over out of order, and correct their clocks, by fractions of this; a recording
# that begins again, a restarted simulation or a clock that is set goes back further.
MAX_BACKWARD_S = 0.5
# Share of the gaps between stamps that may be shorter than the camera's period: enough to shrug
# off jitter, and few enough to find the period although most frames are lost.
_PERIOD_QUANTILE = 0.2


def cdr_stamp_ns(serialised: bytes) -> int | None:
    """Return the stamp of a serialised message that starts with a header; None when too short.

    The encapsulation takes four bytes, the second of which tells the byte order.
    https://www.omg.org/spec/DDSI-RTPS: sec is an int32, nanosec a uint32.
    """
    if len(serialised) < 12:
        return None
    order = "<" if serialised[1] & 1 else ">"
    sec, nanosec = struct.unpack_from(f"{order}iI", serialised, 4)
    return int(sec) * 1_000_000_000 + int(nanosec)


@dataclass(frozen=True, slots=True)
class IntakeSummary:
    """One camera's input.

    Attributes:
        hz: frames received per second.
        stamp_hz: frames per second that the camera took, by its stamps; NaN when unknown.
        delivered: share of the camera's frames that arrived, at most 1; NaN when unknown.
        zero_stamps, backward_stamps: frames stamped 0, and those stamped before the one before,
            by however little.
        recent_jumps: backward jumps of more than :data:`MAX_BACKWARD_S` within the window.
        silent_s: seconds since the last frame; infinite before the first.
    """

    hz: float
    stamp_hz: float
    delivered: float
    zero_stamps: int
    backward_stamps: int
    recent_jumps: int
    silent_s: float


class Intake:
    """Watches the frames of one camera; any thread may call it. Times are steady seconds."""

    def __init__(self, *, now_s: float) -> None:
        self._lock = threading.Lock()
        self._clear(now_s)

    def _clear(self, now_s: float) -> None:
        self._started_s = now_s
        self._arrivals_s: deque[float] = deque()
        self._stamps: deque[tuple[float, int]] = deque()  # when it came, and the stamp in ns
        self._jumps_s: deque[float] = deque()
        self._last_s: float | None = None
        self._last_stamp_ns: int | None = None
        self._zero_stamps = 0
        self._backward_stamps = 0

    def reset(self, *, now_s: float) -> None:
        """Forget everything."""
        with self._lock:
            self._clear(now_s)

    def add(self, serialised: bytes, *, now_s: float) -> bool:
        """Take one received message; return True when its stamp jumped backward.

        That is by more than :data:`MAX_BACKWARD_S`.
        """
        stamp_ns = cdr_stamp_ns(serialised)
        with self._lock:
            self._last_s = now_s
            self._arrivals_s.append(now_s)
            self._expire(now_s)
            if stamp_ns == 0:
                self._zero_stamps += 1
            if not stamp_ns:
                return False
            self._stamps.append((now_s, stamp_ns))
            previous_ns, self._last_stamp_ns = self._last_stamp_ns, stamp_ns
            if previous_ns is None or stamp_ns >= previous_ns:
                return False
            self._backward_stamps += 1
            if previous_ns - stamp_ns <= MAX_BACKWARD_S * 1e9:
                return False
            self._jumps_s.append(now_s)
            # What came before the jump says nothing about the rate after it.
            self._stamps = deque([(now_s, stamp_ns)])
            return True

    def _expire(self, now_s: float) -> None:
        while self._arrivals_s and self._arrivals_s[0] < now_s - WINDOW_S:
            self._arrivals_s.popleft()
        while self._stamps and self._stamps[0][0] < now_s - (
            WINDOW_S if len(self._stamps) > NUM_KEPT_STAMPS else KEPT_S
        ):
            self._stamps.popleft()
        while self._jumps_s and self._jumps_s[0] < now_s - WINDOW_S:
            self._jumps_s.popleft()

    def summary(self, *, now_s: float) -> IntakeSummary:
        """Return rates over the window that ends now, and the counts."""
        with self._lock:
            self._expire(now_s)
            span_s = min(WINDOW_S, now_s - self._started_s)
            stamp_hz, delivered = self._delivery()
            return IntakeSummary(
                hz=len(self._arrivals_s) / span_s if span_s > 0 else 0.0,
                stamp_hz=stamp_hz,
                delivered=delivered,
                zero_stamps=self._zero_stamps,
                backward_stamps=self._backward_stamps,
                recent_jumps=len(self._jumps_s),
                silent_s=float("inf") if self._last_s is None else now_s - self._last_s,
            )

    def _delivery(self) -> tuple[float, float]:
        """Return the camera's rate by its stamps, and which share of it arrived."""
        gaps_s = np.diff(np.array([stamp for _, stamp in self._stamps], np.int64)) / 1e9
        gaps_s = gaps_s[gaps_s > 0]
        if len(gaps_s) < MIN_STAMPS - 1:
            return float("nan"), float("nan")
        period_s = float(np.quantile(gaps_s, _PERIOD_QUANTILE))
        num_taken = float(gaps_s.sum()) / period_s
        return 1.0 / period_s, min(1.0, len(gaps_s) / num_taken)
