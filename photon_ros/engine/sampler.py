"""Sampler: queue the sampling of one step, and the copy of its tokens to the host."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from functools import partial

import numpy as np
from torch import Tensor

from photon_ros.engine.decode_slot import Control, DecodeSlot
from photon_ros.engine.device import Device
from photon_ros.engine.graphs import Graphs
from photon_ros.engine.interfaces import Constraint, Model, ModelSpec
from photon_ros.engine.sampling import SamplingPlan, sample
from photon_ros.engine.sequence import Sequence
from photon_ros.engine.step import Step
from photon_ros.engine.step_inputs import sampled_positions

SEED_MASK = 2**63 - 1


class Sampler:
    """Samples from ``slot.hidden`` and leaves the next input embeddings in the relay.

    ``relay`` is (max_rows + 1, D) on the device, as in :class:`photon_ros.engine.forward.Forward`.
    """

    def __init__(self, model: Model, device: Device, relay: Tensor, graphs: Graphs) -> None:
        self._model = model
        self._device = device
        self._relay = relay
        self._graphs = graphs
        # What padding and zombies sample: the least work.
        self._unread = Constraint(allowed=(model.spec.eos_id,), spatial=True)

    def submit(self, step: Step, constraints: Seq[Constraint | None]) -> None:
        """Stage what the rows may sample, then queue sampling and copy; sets ``copied_event``.

        ``constraints`` has one a row, None where nobody will read what the row samples.
        """
        slot, sequences, lanes = step.slot, step.sequences, step.inputs.lanes
        known = [self._unread if c is None else c for c in constraints]
        known += [self._unread] * (len(lanes) - len(known))
        plan = plan_sampling(known, sequences, self._model.spec)
        stage_sampling(slot, plan, known, sequences, self._model.spec.prefix_len)
        op = partial(sample, self._model, slot, plan, self._relay, lanes)
        if step.inputs.is_fixed:
            op = partial(self._graphs.run, (slot.slot_id, plan), op)
        self._device.compute.submit(op, "sample")
        # After the sampling's last write: spatial decode is part of it.
        self._device.copy.wait(self._device.compute.record())
        self._device.copy.submit(partial(slot.landed.to_host, len(sequences)), "copy")
        slot.copied_event = self._device.copy.record()


def plan_sampling(
    constraints: Seq[Constraint], sequences: Seq[Sequence], spec: ModelSpec
) -> SamplingPlan:
    """Return what a batch with these constraints needs; one constraint a row."""
    pair = (min(spec.eos_id, spec.coord_id), max(spec.eos_id, spec.coord_id))
    # Rows in one state mostly share one constraint object: look at each only once.
    distinct = list({id(c): c for c in constraints}.values())
    free = [c for c in distinct if c.forced_id is None]
    any_random = bool(free) and any(s.sampling.temperature > 0 for s in sequences)
    uses_pair = not any_random and all(
        c.spatial and (c.forced_id in (*pair, spec.size_id) or c.allowed == pair) for c in distinct
    )
    return SamplingPlan(
        num_rows=len(constraints),
        pair=pair if uses_pair else None,
        any_free=bool(free),
        may_coord=any(c.spatial and c.permits(spec.coord_id) for c in distinct),
        may_size=any(c.spatial and c.permits(spec.size_id) for c in distinct),
        any_random=any_random,
        any_folded=any(c.fold_to is not None for c in distinct),
    )


def stage_sampling(
    slot: DecodeSlot,
    plan: SamplingPlan,
    constraints: Seq[Constraint],
    sequences: Seq[Sequence],
    prefix_len: int,
) -> None:
    """Write the controls, and where needed mask and temperatures, to the host staging."""
    controls = slot.controls.array[: plan.num_rows]
    controls[:, Control.FORCED] = [-1 if (i := c.forced_id) is None else i for c in constraints]
    controls[:, Control.SPATIAL] = [c.spatial for c in constraints]
    if plan.any_folded:
        controls[:, Control.FOLD] = [-1 if c.fold_to is None else c.fold_to for c in constraints]
    if plan.pair is None:
        slot.stage_mask(constraints)
    if plan.any_random:
        count = len(sequences)
        controls[:count, Control.SEED] = [s.sampling.seed & SEED_MASK for s in sequences]
        controls[:count, Control.POSITION] = sampled_positions(sequences, prefix_len)
        values = [(s.sampling.temperature, s.sampling.top_p) for s in sequences]
        slot.sampling.array[:count] = np.asarray(values, dtype=np.float32)
