"""CudaDevice: streams, events and pinned memory of an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from photon_ros.core.errors import InputError
from photon_ros.engine.device import Event, Stream


class _CudaEvent:
    """A CUDA event that blocks instead of spinning: a Jetson needs that core."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.raw = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.raw.record(stream)

    def synchronize(self) -> None:
        self.raw.synchronize()


class _CudaStream:
    def __init__(self, device: torch.device) -> None:
        self._raw = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def submit(self, op: Callable[[], None], name: str) -> None:
        with torch.cuda.stream(self._raw), torch.cuda.nvtx.range(name):
            op()

    def record(self) -> Event:
        return _CudaEvent(self._raw)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self._raw.wait_event(event.raw)


class CudaDevice:
    """One CUDA GPU with a compute stream and a copy stream.

    ``use_graphs`` captures decode steps; without, every step is launched kernel by kernel.
    """

    def __init__(self, device: str = "cuda", *, use_graphs: bool = True) -> None:
        if not torch.cuda.is_available():
            raise InputError(f"device {device!r}: this torch sees no CUDA GPU; use device 'cpu'")
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

        def replay() -> None:
            graph.replay()

        return replay

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed pinned tensor: a copy from pageable memory would synchronise."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a zeroed tensor on the GPU, ready before anything else is queued."""
        buffer = torch.zeros(shape, dtype=dtype, device=self.torch_device)
        torch.cuda.synchronize(self.torch_device)
        return buffer
