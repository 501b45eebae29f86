"""Sampler: queue the sampling of one step, and the copy of its tokens to the host."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from torch import Tensor

from photon_ros.engine import sampling
from photon_ros.engine.decode_slot import DecodeSlot
from photon_ros.engine.device import Device
from photon_ros.engine.graphs import Graphs
from photon_ros.engine.interfaces import Constraint, Model
from photon_ros.engine.sequence import Sequence
from photon_ros.engine.step_inputs import sampled_positions


class Sampler:
    """Samples from ``slot.hidden`` and leaves the next input embeddings in the relay.

    ``relay`` is (max_rows + 1, D) on the device, as in :class:`photon_ros.engine.forward.Forward`.
    """

    def __init__(self, model: Model, device: Device, relay: Tensor, graphs: Graphs) -> None:
        self._model = model
        self._graphs = graphs
        self._prefix_len = model.spec.prefix_len
        self._padding = Constraint(allowed=(model.spec.eos_id,), spatial=True)
        self._device = device
        self._relay = relay

    def submit(
        self,
        slot: DecodeSlot,
        lanes: Tensor,
        constraints: Seq[Constraint],
        sequences: Seq[Sequence],
        *,
        is_fixed_shape: bool,
    ) -> None:
        """Stage what the rows may sample, then queue sampling and copy; sets ``copied_event``.

        Args:
            slot: the step's buffers.
            lanes: (rows,) int64 device; relay row of each sequence, then of padding rows.
            constraints, sequences: one a row, without padding.
            is_fixed_shape: the step's shapes are those of a bucket, so it may be captured.
        """
        num_padding = len(lanes) - len(sequences)
        constraints = [*constraints, *[self._padding] * num_padding]
        plan = sampling.plan_sampling(constraints, sequences, self._model.spec)
        # Only noise depends on positions: greedy batches, nearly all of them, need none.
        positions = sampled_positions(sequences, self._prefix_len) if plan.any_random else ()
        sampling.stage_sampling(slot, plan, constraints, sequences, positions)

        def sample() -> None:
            sampling.copy_sampling_inputs(slot, plan)
            sampling.sample(self._model, slot, plan, self._relay, lanes)

        if is_fixed_shape:
            key = (slot.slot_id, plan)
            self._device.compute.submit(lambda: self._graphs.run(key, sample), "sample")
        else:
            self._device.compute.submit(sample, "sample")
        # After the sampling's last write: spatial decode is part of it.
        self._device.copy.wait(self._device.compute.record())
        num_rows = len(sequences)
        self._device.copy.submit(lambda: slot.copy_landed(num_rows), "copy")
        slot.copied_event = self._device.copy.record()
