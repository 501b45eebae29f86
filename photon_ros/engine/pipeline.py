"""Pipeline: which slot may do what, and in which order. Pure; refuses. No torch.

    slot 0   launch 0 ──── sample 0 ─ copy 0 ─┐ commit 0   launch 2 ──── sample 2 ─ ...
    slot 1             launch 1 ──── sample 1 ─ copy 1 ─┐ commit 1   launch 3 ──── ...

A slot is busy from launch to the end of its commit. Sampling of step t+1 may precede commit t
only when no row of it is held. Commits are first in, first out.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from photon_ros.core.errors import PhotonError


class PipelineError(PhotonError, AssertionError):
    """The engine asked for a transition that is not allowed; never the caller's fault."""


class SlotPhase(Enum):
    """What a slot is doing."""

    FREE = "free"
    LAUNCHED = "launched"  # forward queued, nothing sampled
    SAMPLED = "sampled"  # sampling and the copy to the host are queued


class Pipeline:
    """Order of launches, samplings and commits over ``num_slots`` slots."""

    def __init__(self, num_slots: int) -> None:
        self._phases = [SlotPhase.FREE] * num_slots
        self._inflight: deque[int] = deque()

    @property
    def num_inflight(self) -> int:
        """Steps launched and not yet committed."""
        return len(self._inflight)

    @property
    def oldest(self) -> int | None:
        """Slot of the oldest step in flight."""
        return self._inflight[0] if self._inflight else None

    @property
    def newest(self) -> int | None:
        """Slot of the newest step in flight."""
        return self._inflight[-1] if self._inflight else None

    def free_slot(self) -> int | None:
        """Return a slot that may be launched on, or None."""
        if any(self._phases[slot] is SlotPhase.LAUNCHED for slot in self._inflight):
            return None  # the next forward reads what that step has yet to sample
        for slot, phase in enumerate(self._phases):
            if phase is SlotPhase.FREE:
                return slot
        return None

    def launch(self, slot: int) -> None:
        """Mark a forward as queued on ``slot``."""
        self._require(slot, SlotPhase.FREE, "launch")
        self._phases[slot] = SlotPhase.LAUNCHED
        self._inflight.append(slot)

    def sample(self, slot: int, *, held: bool) -> None:
        """Mark sampling and copy as queued; a held step must be the oldest in flight."""
        self._require(slot, SlotPhase.LAUNCHED, "sample")
        if held and self.oldest != slot:
            raise PipelineError(f"held step on slot {slot} sampled before the commit it waits for")
        self._phases[slot] = SlotPhase.SAMPLED

    def commit(self, slot: int) -> None:
        """Mark the step on ``slot`` as committed, which frees the slot."""
        self._require(slot, SlotPhase.SAMPLED, "commit")
        if self.oldest != slot:
            raise PipelineError(f"commit of slot {slot} before that of slot {self.oldest}")
        self._inflight.popleft()
        self._phases[slot] = SlotPhase.FREE

    def abandon(self, slot: int) -> None:
        """Free the slot of the newest step, whose launch or sampling failed."""
        if self.newest != slot:
            raise PipelineError(f"abandon of slot {slot}, which is not the newest in flight")
        self._inflight.pop()
        self._phases[slot] = SlotPhase.FREE

    def _require(self, slot: int, phase: SlotPhase, action: str) -> None:
        if self._phases[slot] is not phase:
            raise PipelineError(
                f"{action} on slot {slot}: it is {self._phases[slot].value}, must be {phase.value}"
            )
