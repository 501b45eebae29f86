"""Sampler: queue the sampling of one step, and the copy of its tokens to the host."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from photon_ros.engine import sampling
from photon_ros.engine.decode_slot import DecodeSlot
from photon_ros.engine.device import Device
from photon_ros.engine.interfaces import Constraint, Model
from photon_ros.engine.sequence import Sequence


class Sampler:
    """Samples from ``slot.hidden`` and leaves the next input embeddings in the relay.

    ``relay`` is (max_rows, D) on the device, as in :class:`photon_ros.engine.forward.Forward`.
    """

    def __init__(self, model: Model, device: Device, relay: Tensor) -> None:
        self._model = model
        self._device = device
        self._relay = relay

    def submit(
        self,
        slot: DecodeSlot,
        lanes: Tensor,
        constraints: Seq[Constraint],
        sequences: Seq[Sequence],
        positions: Seq[int],
    ) -> None:
        """Stage what the rows may sample, then queue sampling and copy; sets ``copied_event``.

        Args:
            slot: the step's buffers.
            lanes: (rows,) int64 device; relay row of each sequence.
            constraints, sequences: one a row.
            positions: absolute position of each token to be sampled.
        """
        plan = sampling.plan_sampling(constraints, sequences, self._model.spec)
        sampling.stage_sampling(slot, plan, constraints, sequences, positions)

        def sample() -> None:
            sampling.copy_sampling_inputs(slot, plan)
            sampling.sample(self._model, slot, plan, self._relay, lanes)

        self._device.compute.submit(sample, "sample")
        # After the sampling's last write: spatial decode is part of it.
        self._device.copy.wait(self._device.compute.record())
        self._device.copy.submit(lambda: slot.copy_landed(plan.num_rows), "copy")
        slot.copied_event = self._device.copy.record()
