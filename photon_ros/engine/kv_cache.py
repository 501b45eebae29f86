"""KVCache: the key and value tensors behind the page pool's numbers."""

from __future__ import annotations

from torch import Tensor

from photon_ros.engine.device import Device
from photon_ros.engine.interfaces import ModelSpec
from photon_ros.engine.page_pool import PagePool


class KVCache:
    """Keys and values of all layers, addressed by position slot = page * page_size + offset.

    Attributes:
        keys, values: (num_layers, num_pages * page_size, num_kv_heads, head_dim), model dtype.
    """

    def __init__(self, device: Device, spec: ModelSpec, pool: PagePool, page_size: int) -> None:
        self.page_size = page_size
        self.prefix_len = spec.prefix_len
        shape = (spec.num_layers, pool.num_pages * page_size, spec.num_kv_heads, spec.head_dim)
        self.keys: Tensor = device.device_buffer(shape, spec.dtype)
        self.values: Tensor = device.device_buffer(shape, spec.dtype)
