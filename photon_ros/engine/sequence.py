"""Sequence: the engine's state of one request. No torch.

Two clocks count tokens. ``num_launched`` moves when a step that samples the next token is
launched, ``num_committed`` when that token has reached the host. Their difference is the
number of steps in flight for a live sequence, at most two. Both start over with each phase.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from photon_ros.core.result import EndReason
from photon_ros.engine.metrics import RequestClock, StepRecord

if TYPE_CHECKING:  # the interfaces name tensors; a sequence never touches one
    from photon_ros.engine.interfaces import FrameCrops, SkillState
    from photon_ros.engine.lora import LoraAdapter
    from photon_ros.engine.shared_places import Place


class SequenceStatus(Enum):
    """Where a sequence is in its life."""

    NEW = "new"  # not submitted
    WAITING = "waiting"  # not admitted: owns nothing
    RUNNING = "running"  # owns a lane, pages and a hold on its prefix
    RELEASED = "released"  # gave everything back, exactly once


@dataclass(frozen=True, slots=True)
class PrefixSource:
    """What a frame's prefix is made from.

    ``key`` identifies frame, crop settings and model; sequences with equal keys share pages.
    """

    key: Hashable
    crops: FrameCrops


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How free tokens are chosen; temperature 0 takes the most likely one."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sequence ended: an error, or else an end reason (None: its grammar ended it)."""

    error: BaseException | None = None
    by_length: EndReason | None = None


@dataclass(eq=False, slots=True)
class Sequence:
    """One request in the engine; only the engine's thread changes it after submission.

    Attributes:
        prompt_ids: ids after the prefix, or the whole prompt with BOS when there is none; in a
            later phase the ids that start it.
        prompt_values: (index into prompt_ids, value) of coord ids (x,) and size ids (w, h) that
            stand for values given by the caller.
        adapter: changes the model for this sequence; None for the model as it is.
        prompt_start: private position of the first of ``prompt_ids``.
        is_between_phases: its phase has ended; it is prefilled again once nothing names it.
        is_tainted: its pages may hold numbers that are not finite; they are scrubbed when given
            back.
        state: the grammar; told every committed token.
        source: the frame asked about; None for text only.
        on_done: called once, on the engine's thread, when the sequence is finalized.
        num_pages: private pages it can ever need.
        lane: row of the relay that carries its next input embedding between steps.
        pages: private KV pages, in position order.
        prefix, adapter_place: its holds on the frame's shared pages, and on its adapter's slot.
    """

    prompt_ids: tuple[int, ...]
    state: SkillState
    on_done: Callable[[Sequence, Outcome], None]
    source: PrefixSource | None = None
    prompt_values: tuple[tuple[int, tuple[float, ...]], ...] = ()
    adapter: LoraAdapter | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    deadline_s: float | None = None
    status: SequenceStatus = SequenceStatus.NEW
    finalized: bool = False
    is_between_phases: bool = False
    is_tainted: bool = False
    inflight_refs: int = 0
    prompt_start: int = 0
    num_launched: int = 0
    num_committed: int = 0
    max_new_tokens: int = 0
    length_reason: EndReason = EndReason.MAX_TOKENS
    num_pages: int = 0
    lane: int = -1
    pages: list[int] = field(default_factory=list)
    prefix: Place | None = None
    adapter_place: Place | None = None
    clock: RequestClock = field(default_factory=RequestClock)

    @property
    def num_inflight(self) -> int:
        """Tokens launched and not yet committed."""
        return self.num_launched - self.num_committed

    @property
    def lora_slot(self) -> int:
        """Where its adapter is on the device; 0 for none."""
        return 0 if self.adapter_place is None else self.adapter_place.number

    def count_launch(self, record: StepRecord) -> None:
        """Take note of a step that will sample its next token."""
        self.num_launched += 1
        if record.kind == "decode":
            self.clock.num_decode_steps += 1
            self.clock.num_decode_rows += record.num_rows
        elif not self.clock.launched_s:
            self.clock.launched_s = record.launch_s

    def private_position(self) -> int:
        """Return the private position of the token the next decode step feeds."""
        return self.prompt_start + len(self.prompt_ids) + self.num_launched - 1

    def enter_phase(self, prompt_ids: tuple[int, ...]) -> None:
        """Start over after the last fed token; what ran ahead of it will be overwritten."""
        self.prompt_start += len(self.prompt_ids) + self.num_committed - 1
        self.prompt_ids = prompt_ids
        self.prompt_values = ()
        self.num_launched = self.num_committed = 0
        self.is_between_phases = True
