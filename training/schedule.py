"""How far a run is, and what follows from it: stage and step size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from photon_ros.core.errors import InputError

WARMUP_STEPS = 100
_LEAST_LR = 0.01


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run bounded by steps, or by time: one half cosine over the whole of it.

    A run bounded by steps is repeatable to the bit; one bounded by time fits a machine of any
    speed, and how far it is depends on that speed.

    Attributes:
        max_steps: steps of the run, or None.
        max_seconds: seconds of the run, all its sittings added, or None.
        vision_share: share of the run that trains the vision encoder alone.
    """

    max_steps: int | None = None
    max_seconds: float | None = None
    vision_share: float = 0.36

    def __post_init__(self) -> None:
        if (self.max_steps is None) == (self.max_seconds is None):
            raise InputError("a run is bounded by steps or by time: give one of them")
        bound = self.max_steps if self.max_steps is not None else self.max_seconds
        if bound is None or bound <= 0:
            raise InputError(f"the bound of a run must be above 0, got {bound}")
        if not 0 <= self.vision_share < 1:
            raise InputError(f"vision_share must be in [0, 1), got {self.vision_share}")

    def progress(self, step: int, elapsed_s: float) -> float:
        """Return how far the run is, 0 to 1."""
        if self.max_steps is not None:
            return min(1.0, step / self.max_steps)
        assert self.max_seconds is not None
        return min(1.0, elapsed_s / self.max_seconds)

    def is_joint(self, progress: float) -> bool:
        """Return True once the text decoder is trained too."""
        return progress >= self.vision_share

    def lr_factor(self, progress: float, steps_in_stage: int) -> float:
        """Return the factor on every step size."""
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        warmup = min(1.0, (steps_in_stage + 1) / WARMUP_STEPS)
        return warmup * (_LEAST_LR + (1 - _LEAST_LR) * cosine)
