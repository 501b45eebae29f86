"""Device: two ordered streams, events between them, and memory for both sides.

Everything the engine asks of a device goes through :meth:`Stream.submit`, so that a device
may run it at once (CPU), queue it on hardware (CUDA) or hold it back and run it in any order
the streams and events allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from photon_ros.core.errors import InputError

_CUDA_NAME = re.compile(r"cuda(:(0|[1-9][0-9]{0,3}))?")


class Event(Protocol):
    """A point in a stream's order."""

    def synchronize(self) -> None:
        """Block the host until everything before the event has run."""


class Stream(Protocol):
    """Operations that run in the order they were submitted."""

    def submit(self, op: Callable[[], None], name: str) -> None:
        """Queue ``op``; it may run now or later, but after all that was queued before."""

    def record(self) -> Event:
        """Return an event after everything submitted so far."""

    def wait(self, event: Event) -> None:
        """Let later operations of this stream run only after ``event``."""


class Device(Protocol):
    """One accelerator as the engine sees it."""

    @property
    def torch_device(self) -> torch.device:
        """Where device tensors live."""

    @property
    def compute(self) -> Stream:
        """The only stream that runs forwards and sampling."""

    @property
    def copy(self) -> Stream:
        """The stream of device-to-host copies."""

    @property
    def can_capture(self) -> bool:
        """True when :meth:`capture` saves time."""

    def capture(self, op: Callable[[], None]) -> Callable[[], None]:
        """Return something that does again what ``op`` does, without running it now.

        Called from inside an operation of the compute stream.
        """

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed host tensor that copies to and from the device may use directly."""

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed tensor on the device, ready before anything else is queued."""


def device_named(name: str | torch.device, *, cuda_graphs: bool = True) -> Device:
    """Return the device called "cpu", "cuda" or "cuda:N"; raises InputError for another name."""
    text = str(name) if isinstance(name, torch.device) else name
    if text == "cpu":
        return CpuDevice()
    if isinstance(text, str) and _CUDA_NAME.fullmatch(text):
        return CudaDevice(text, use_graphs=cuda_graphs)
    raise InputError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {name!r}")


class _ImmediateStream:
    """Runs each operation when it is submitted, which is one legal order.

    So whatever was submitted has happened, and the stream is its own event.
    """

    def submit(self, op: Callable[[], None], name: str) -> None:  # noqa: ARG002
        op()

    def record(self) -> Event:
        return self

    def wait(self, event: Event) -> None:
        pass

    def synchronize(self) -> None:
        pass


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

    device_buffer = host_buffer


class _CudaStream:
    def __init__(self, device: torch.device) -> None:
        self._raw = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def submit(self, op: Callable[[], None], name: str) -> None:
        with torch.cuda.stream(self._raw), torch.cuda.nvtx.range(name):
            op()

    def record(self) -> Event:
        # Blocking instead of spinning: a Jetson needs that core.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._raw)
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, torch.cuda.Event)
        self._raw.wait_event(event)


class CudaDevice:
    """One NVIDIA GPU with a compute stream and a copy stream.

    ``use_graphs`` captures decode steps; without, every step is launched kernel by kernel.
    """

    def __init__(self, device: str = "cuda", *, use_graphs: bool = True) -> None:
        if not torch.cuda.is_available():
            raise InputError(f"device {device!r}: this torch sees no CUDA GPU; use device 'cpu'")
        number, num_gpus = int(device.partition(":")[2] or 0), torch.cuda.device_count()
        if number >= num_gpus:
            raise InputError(f"device {device!r}: there are cuda:0 to cuda:{num_gpus - 1}")
        self.torch_device = torch.device(device)
        self.can_capture = use_graphs
        self._pool: tuple[int, int] | None = None  # one for all graphs: they never run at once
        self.compute: Stream = _CudaStream(self.torch_device)
        self.copy: Stream = _CudaStream(self.torch_device)

    def capture(self, op: Callable[[], None]) -> Callable[[], None]:
        """Capture ``op`` on the current stream; all graphs share one memory pool."""
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(
            graph,
            pool=self._pool,  # type: ignore[arg-type]
            stream=torch.cuda.current_stream(self.torch_device),
            capture_error_mode="thread_local",
        ):
            op()
        return lambda: graph.replay()

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed pinned tensor: a copy from pageable memory would synchronise."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed tensor on the GPU, ready before anything else is queued."""
        buffer = torch.zeros(shape, dtype=dtype, device=self.torch_device)
        torch.cuda.synchronize(self.torch_device)
        return buffer
