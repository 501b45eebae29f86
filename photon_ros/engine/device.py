"""Device: two ordered streams, events between them, and memory for both sides.

Everything the engine asks of a device goes through :meth:`Stream.submit`, so that a device
may run it at once (CPU), queue it on hardware (CUDA) or hold it back and run it in any order
the streams and events allow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in a stream's order."""

    def synchronize(self) -> None:
        """Block the host until everything before the event has run."""
        ...


class Stream(Protocol):
    """Operations that run in the order they were submitted."""

    def submit(self, op: Callable[[], None], name: str) -> None:
        """Queue ``op``; it may run now or later, but after all that was queued before."""
        ...

    def record(self) -> Event:
        """Return an event after everything submitted so far."""
        ...

    def wait(self, event: Event) -> None:
        """Let later operations of this stream run only after ``event``."""
        ...


class Device(Protocol):
    """One accelerator as the engine sees it."""

    @property
    def torch_device(self) -> torch.device:
        """Where device tensors live."""
        ...

    @property
    def compute(self) -> Stream:
        """The only stream that runs forwards and sampling."""
        ...

    @property
    def copy(self) -> Stream:
        """The stream of device-to-host copies."""
        ...

    @property
    def can_capture(self) -> bool:
        """True when :meth:`capture` saves time."""
        ...

    def capture(self, op: Callable[[], None]) -> Callable[[], None]:
        """Return something that does again what ``op`` does, without running it now.

        Called from inside an operation of the compute stream.
        """
        ...

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed host tensor that copies to and from the device may use directly."""
        ...

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed tensor on the device."""
        ...


class _PastEvent:
    """The event of a stream that runs everything at once: it has always happened."""

    def synchronize(self) -> None:
        return


class _ImmediateStream:
    """Runs each operation when it is submitted, which is one legal order."""

    _past = _PastEvent()

    def submit(self, op: Callable[[], None], name: str) -> None:  # noqa: ARG002
        op()

    def record(self) -> Event:
        return self._past

    def wait(self, event: Event) -> None:  # noqa: ARG002
        return


class CpuDevice:
    """The host as a device: function without a GPU, no overlap and none claimed."""

    can_capture = False

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.compute: Stream = _ImmediateStream()
        self.copy: Stream = _ImmediateStream()

    def capture(self, op: Callable[[], None]) -> Callable[[], None]:
        """Return ``op``: there is nothing cheaper than running it."""
        return op

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed tensor of ordinary memory."""
        return torch.zeros(shape, dtype=dtype)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed tensor of ordinary memory."""
        return torch.zeros(shape, dtype=dtype)
