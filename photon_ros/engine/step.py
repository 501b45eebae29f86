"""Step: one launched forward and its sampling."""

from __future__ import annotations

from dataclasses import dataclass

from photon_ros.engine.decode_slot import DecodeSlot, ForwardInputs
from photon_ros.engine.interfaces import Constraint
from photon_ros.engine.metrics import StepRecord
from photon_ros.engine.scheduler import StepPlan
from photon_ros.engine.sequence import Sequence


@dataclass(slots=True)
class Step:
    """One launched forward and its sampling; ``sequences`` is the row order of its buffers."""

    plan: StepPlan
    slot: DecodeSlot
    inputs: ForwardInputs
    constraints: list[Constraint | None]
    record: StepRecord

    @property
    def sequences(self) -> list[Sequence]:
        """Rows in order."""
        return self.plan.sequences

    @property
    def name(self) -> str:
        """What the log calls it."""
        return f"{self.plan.kind} step of {len(self.sequences)} rows on slot {self.slot.slot_id}"

    @property
    def is_held(self) -> bool:
        """True when a row's constraint depends on a token that is not committed yet."""
        return any(constraint is None for constraint in self.constraints)
