"""Step: one forward and its sampling. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from photon_ros.engine.metrics import StepRecord
from photon_ros.engine.sequence import PrefixSource, Sequence
from photon_ros.engine.shared_places import Place

if TYPE_CHECKING:  # they hold tensors, which the bookkeeping never touches
    from photon_ros.engine.decode_slot import DecodeSlot
    from photon_ros.engine.interfaces import Constraint
    from photon_ros.engine.lora import LoraAdapter
    from photon_ros.engine.step_inputs import ForwardInputs

StepKind = Literal["prefill", "decode"]


@dataclass(eq=False, slots=True)
class Step:
    """What the scheduler planned, and from its launch on where it runs.

    Attributes:
        sequences: its rows in order, which is the row order of its buffers; rows that share a
            prefix are neighbours.
        new_prefixes: frames to encode before the rows run; only in a prefill.
        new_adapters: adapters to load before anything of the step runs.
        constraints: what each row may sample; None where that depends on a token that is not
            committed yet. ``is_held``: there is such a row.
        is_sampled: its sampling and copy are queued; kept by the pipeline.
        slot, inputs: its buffers, and what its forward reads; set by its launch.
        record: its times; set by its launch.
    """

    kind: StepKind
    sequences: list[Sequence]
    new_prefixes: list[tuple[Place, PrefixSource]] = field(default_factory=list)
    new_adapters: list[tuple[Place, LoraAdapter]] = field(default_factory=list)
    constraints: list[Constraint | None] = field(default_factory=list)
    is_held: bool = False
    is_sampled: bool = False
    slot: DecodeSlot = field(init=False)
    inputs: ForwardInputs = field(init=False)
    record: StepRecord = field(init=False)

    def __str__(self) -> str:
        return f"{self.kind} step of {len(self.sequences)} rows on slot {self.slot.slot_id}"
