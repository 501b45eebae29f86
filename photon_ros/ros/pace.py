"""Pace: when which part of a recording is due, and what time it is there. No ROS here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

# As often as `ros2 bag play --clock` tells the time.
CLOCK_PERIOD_S = 0.025


@dataclass(frozen=True, slots=True)
class Pace:
    """Recorded time, a multiple of ``rate`` as fast as steady time.

    Args:
        publish: told the recorded time in ns, again and again while it is waited for.
    """

    began_s: float
    first_ns: int
    rate: float
    publish: Callable[[int], None] | None = None

    def wait(self, time_ns: int, stop: Event) -> float | None:
        """Wait until a recorded time; return how late that was in s, None when stopped."""
        due_s = self.began_s + (time_ns - self.first_ns) / 1e9 / self.rate
        while not stop.is_set():
            now_s = time.monotonic()
            if self.publish is not None:
                passed_ns = round((min(now_s, due_s) - self.began_s) * self.rate * 1e9)
                self.publish(self.first_ns + passed_ns)
            if now_s >= due_s:
                return now_s - due_s
            stop.wait(min(due_s - now_s, CLOCK_PERIOD_S if self.publish else math.inf))
        return None
