"""KVCache: the key and value tensors behind the page pool's numbers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from photon_ros.engine.device import Device
from photon_ros.engine.interfaces import ModelSpec
from photon_ros.engine.page_pool import PagePool


class KVCache:
    """Keys and values of all layers, addressed by position slot = page * page_size + offset.

    Attributes:
        layers: for each layer (2 * num_kv_heads, num_pages * page_size, head_dim), model dtype:
            the keys head by head, then the values. One gather reads both, and what it returns
            is ready for one matrix product per head.
        keys, values: the same memory as (num_layers, num_pages * page_size, num_kv_heads,
            head_dim).
    """

    def __init__(self, device: Device, spec: ModelSpec, pool: PagePool, page_size: int) -> None:
        self.page_size = page_size
        self.prefix_len = spec.prefix_len
        num_slots = pool.num_pages * page_size
        shape = (spec.num_layers, 2 * spec.num_kv_heads, num_slots, spec.head_dim)
        both: Tensor = device.device_buffer(shape, spec.dtype)
        self.layers: tuple[Tensor, ...] = both.unbind(0)
        self.keys, self.values = both.transpose(1, 2).chunk(2, dim=2)
        self._pages = both.view(*shape[:2], pool.num_pages, page_size, spec.head_dim)

    def scrub(self, pages: Iterable[int]) -> None:
        """Write zeros over pages; runs on the compute stream.

        A position that may not be seen still takes part in the arithmetic, with a weight of 0,
        and 0 times NaN is NaN: so nobody may own a page with numbers that are not finite.
        """
        for page in pages:
            self._pages[:, :, page] = 0
