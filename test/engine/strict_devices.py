"""Devices that show what would stall a GPU.

Under :class:`DeviceRules` every operation is seen, and those that read a value on the host, or
whose output size depends on values, are refused. On :class:`ValuelessDevice` device tensors have
no values at all, so that any way of reading them fails, and so does mixing tensors of the two
sides; only the copy stream may cross over.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from photon_ros.engine.device import Event

HOST_READS = {"item", "_local_scalar_dense", "is_nonzero", "equal", "allclose"}
VALUE_SIZED = {
    "nonzero", "nonzero_numpy", "argwhere", "masked_select", "unique_dim", "_unique", "_unique2",
    "unique_consecutive",
}  # fmt: skip


class DeviceRules(TorchDispatchMode):
    """Refuses what would stall a GPU, and counts what each operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.num_allocations: Counter[str] = Counter()
        self.num_bytes = 0
        self.storages: list[weakref.ref[Any]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        assert name not in HOST_READS, f"{name} reads a device value on the host"
        assert name not in VALUE_SIZED, f"{name} has a size that depends on values"
        if name in ("index", "index_put", "index_put_"):
            for index in args[1]:
                is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
                assert not is_mask, f"{name} by a mask has a size that depends on values"
        result = func(*args, **(kwargs or {}))
        known = {t.untyped_storage()._cdata for t in _tensors((args, kwargs or {}))}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in known and storage.nbytes():
                self.num_allocations[name] += 1
                self.num_bytes += storage.nbytes()
                self.storages.append(weakref.ref(storage))
        return result


def _tensors(tree: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


class _CountedEvent:
    def __init__(self, device: ValuelessDevice) -> None:
        self._device = device

    def synchronize(self) -> None:
        self._device.num_host_waits += 1


class _CrossOver(TorchDispatchMode):
    """Lets a copy from device to host through; what arrives is made up."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            return args[0].fill_(7)
        return func(*args, **(kwargs or {}))


class _ValuelessStream:
    def __init__(self, device: ValuelessDevice, *, may_cross: bool) -> None:
        self._device, self._may_cross = device, may_cross

    def submit(self, op: Callable[[], None], name: str) -> None:
        if self._may_cross:
            with _CrossOver():
                op()
        else:
            op()

    def record(self) -> Event:
        return _CountedEvent(self._device)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _CountedEvent)


class ValuelessDevice:
    """Device tensors have shapes and types, and nothing to read."""

    def __init__(self, can_capture: bool = False) -> None:
        self.can_capture = can_capture
        self.torch_device = torch.device("meta")
        self.compute = _ValuelessStream(self, may_cross=False)
        self.copy = _ValuelessStream(self, may_cross=True)
        self.num_host_waits = 0

    def capture(self, op: Callable[[], None]) -> Callable[[], None]:
        return op

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device="meta")
