"""LoRA: low-rank adapters in numbered slots, mixed freely within a batch.

Slot 0 is "no adapter" and holds zeros. An adapter occupies a slot from the admission of its
first sequence until the slot is needed for another one; while any row reads it, it stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from photon_ros.core.errors import CapacityError
from photon_ros.engine.device import Device
from photon_ros.engine.interfaces import ModelSpec


@dataclass(frozen=True, eq=False, slots=True)
class LoraAdapter:
    """One adapter: for some linears of some layers, the two factors of a weight difference.

    Attributes:
        name: what people call it.
        rank: the largest rank of its factors.
        factors: (layer, linear name) to (A, B) with A (rank, in) and B (out, rank); the
            difference is B @ A, the adapter's scale already in B.
    """

    name: str
    rank: int
    factors: Mapping[tuple[int, str], tuple[Tensor, Tensor]]


class LoraBank:
    """The stacked factors of all slots on the device.

    Attributes:
        down: per linear (num_layers, slots, rank, in); up: (num_layers, slots, out, rank).
    """

    def __init__(self, device: Device, spec: ModelSpec, num_slots: int, max_rank: int) -> None:
        self._max_rank = max_rank
        self._num_slots = num_slots
        layers, rows = spec.num_layers, num_slots + 1

        def stack(*shape: int) -> Tensor:
            return device.device_buffer((layers, rows, *shape), spec.dtype)

        linears = spec.adapted_linears if num_slots else ()
        self.down = {x.name: stack(max_rank, x.num_inputs) for x in linears}
        self.up = {x.name: stack(x.num_outputs, max_rank) for x in linears}

    def check(self, adapter: LoraAdapter) -> None:
        """Raise CapacityError when the adapter can never be loaded here."""
        if not self._num_slots:
            raise CapacityError(f"adapter {adapter.name!r}: this engine has no LoRA slots")
        if adapter.rank > self._max_rank:
            raise CapacityError(
                f"adapter {adapter.name!r} has rank {adapter.rank}; slots hold {self._max_rank}"
            )
        for (layer, name), (down, up) in adapter.factors.items():
            stack = self.down.get(name)
            if stack is None or layer >= len(stack):
                raise CapacityError(f"adapter {adapter.name!r}: no {name!r} in layer {layer}")
            if down.shape[1] != stack.shape[3] or up.shape[0] != self.up[name].shape[2]:
                raise CapacityError(
                    f"adapter {adapter.name!r}: {name!r} of layer {layer} maps {down.shape[1]} to "
                    f"{up.shape[0]}, the model's maps {stack.shape[3]} to {self.up[name].shape[2]}"
                )

    def load(self, slot: int, adapter: LoraAdapter) -> None:
        """Write an adapter's factors to a slot; runs on the compute stream.

        They come from ordinary memory, so a GPU makes the host wait, once for each time that an
        adapter takes a slot.
        """
        for name in self.down:
            self.down[name][:, slot] = 0
            self.up[name][:, slot] = 0
        for (layer, name), (down, up) in adapter.factors.items():
            rank = down.shape[0]
            self.down[name][layer, slot, :rank].copy_(down)
            self.up[name][layer, slot, :, :rank].copy_(up)

    def adapt(self, slots_B: Tensor, layer: int, name: str, x_BTI: Tensor) -> Tensor:
        """Return (B, T, out): the difference in slot ``slots_B[b]`` applied to row b of ``x``.

        With the slots given it is an ``interfaces.Adapt``.
        """
        down = self.down[name][layer].index_select(0, slots_B)
        up = self.up[name][layer].index_select(0, slots_B)
        return torch.bmm(torch.bmm(x_BTI, down.transpose(1, 2)), up.transpose(1, 2))
