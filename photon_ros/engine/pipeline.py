"""Pipeline: which step may do what, and in which order. Pure; refuses. No torch.

    slot 0   launch 0 ──── sample 0 ─ copy 0 ─┐ commit 0   launch 2 ──── sample 2 ─ ...
    slot 1             launch 1 ──── sample 1 ─ copy 1 ─┐ commit 1   launch 3 ──── ...

A slot is busy from launch to the end of its commit. Sampling of step t+1 may precede commit t
only when no row of it is held. Commits are first in, first out.
"""

from __future__ import annotations

from collections import deque

from photon_ros.core.errors import PhotonError
from photon_ros.engine.step import Step


class PipelineError(PhotonError, AssertionError):
    """The engine asked for a transition that is not allowed; never the caller's fault."""


class Pipeline:
    """The steps in flight on ``num_slots`` slots; in ``steps`` the oldest is first."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self.steps: deque[Step] = deque()

    @property
    def oldest(self) -> Step | None:
        """The step to commit next."""
        return self.steps[0] if self.steps else None

    @property
    def newest(self) -> Step | None:
        """The step launched last."""
        return self.steps[-1] if self.steps else None

    def free_slot(self) -> int | None:
        """Return a slot that may be launched on, or None."""
        if not all(step.is_sampled for step in self.steps):
            return None  # the next forward reads what that step has yet to sample
        busy = [step.slot.slot_id for step in self.steps]
        return next((slot for slot in range(self._num_slots) if slot not in busy), None)

    def launch(self, step: Step) -> None:
        """Take a step whose forward is to be queued on its slot."""
        if any(other.slot is step.slot for other in self.steps):
            raise PipelineError(f"launch of a {step}: the slot is in flight")
        self.steps.append(step)

    def sample(self, step: Step) -> None:
        """Mark sampling and copy as queued; a held step must be the oldest in flight."""
        if step not in self.steps or step.is_sampled:
            raise PipelineError(f"sampling of a {step}: it is not in flight, or was sampled before")
        if step.is_held and step is not self.oldest:
            raise PipelineError(f"sampling of a held {step} before the commit it waits for")
        step.is_sampled = True

    def commit(self, step: Step) -> None:
        """Mark a step as committed, which frees its slot."""
        if step is not self.oldest or not step.is_sampled:
            raise PipelineError(f"commit of a {step}: it is not the oldest, or was not sampled")
        self.steps.popleft()

    def abandon(self, step: Step) -> None:
        """Free the slot of the newest step, whose launch or sampling failed."""
        if step is not self.newest:
            raise PipelineError(f"abandon of a {step}: it is not the newest in flight")
        self.steps.pop()
