"""SleepDevice: a device that only takes time, to measure what the loop around it costs.

Forwards are not computed: a stream is busy for the time an operation is said to take, counted
from the moment the stream could have started it, whatever the host does meanwhile. The host
sleeps in a wait without holding the interpreter lock. So the ratio of pipelined to blocking can
be measured on any machine, and the device's own idle time is known exactly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from photon_ros.engine.device import Event


class _TimedEvent:
    """Happens at a known time on the ``time.perf_counter`` clock."""

    def __init__(self, time_s: float) -> None:
        self.time_s = time_s

    def synchronize(self) -> None:
        remaining_s = self.time_s - time.perf_counter()
        if remaining_s > 0:
            time.sleep(remaining_s)


class TimedStream:
    """Busy or idle; runs only the operations named in ``executed``.

    Attributes:
        spans: (start, end) in seconds of every operation that took time.
    """

    def __init__(self, durations_s: Mapping[str, float], executed: frozenset[str]) -> None:
        self._durations_s = durations_s
        self._executed = executed
        self._free_at_s = 0.0
        self.spans: list[tuple[float, float]] = []

    def submit(self, op: Callable[[], None], name: str) -> None:
        """Take the operation's time, starting when the stream is free."""
        if name in self._executed:
            op()
        duration_s = self._durations_s.get(name, 0.0)
        start_s = max(self._free_at_s, time.perf_counter())
        self._free_at_s = start_s + duration_s
        if duration_s:
            self.spans.append((start_s, self._free_at_s))

    def record(self) -> Event:
        """Return an event at the end of all submitted operations."""
        return _TimedEvent(self._free_at_s)

    def wait(self, event: Event) -> None:
        """Start nothing before ``event``."""
        assert isinstance(event, _TimedEvent)
        self._free_at_s = max(self._free_at_s, event.time_s)


class SleepDevice:
    """Two timed streams.

    Args:
        forward_s: seconds that one forward takes, prefill and decode alike.
    """

    can_capture = False

    def __init__(self, forward_s: float) -> None:
        self.torch_device = torch.device("cpu")
        durations_s = {"prefill": forward_s, "decode": forward_s}
        self.compute = TimedStream(durations_s, frozenset())
        self.copy = TimedStream({}, frozenset({"copy"}))

    def capture(self, op: Callable[[], None]) -> Callable[[], None]:
        """Return ``op``."""
        return op

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed tensor; nothing that was sampled is ever but 0."""
        return torch.zeros(shape, dtype=dtype)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed tensor; nothing that was sampled is ever but 0."""
        return torch.zeros(shape, dtype=dtype)
