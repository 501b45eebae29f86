"""Devices by the names people give them."""

from __future__ import annotations

from photon_ros.core.errors import InputError
from photon_ros.engine.cuda_device import CudaDevice
from photon_ros.engine.device import CpuDevice, Device


def device_named(name: str, *, cuda_graphs: bool = True) -> Device:
    """Return the device called "cpu", "cuda" or "cuda:N"; raises InputError for another name."""
    kind = name.partition(":")[0]
    if kind == "cpu":
        return CpuDevice()
    if kind == "cuda":
        return CudaDevice(name, use_graphs=cuda_graphs)
    raise InputError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {name!r}")
