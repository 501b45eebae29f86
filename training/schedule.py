"""How far a run is, and what follows from it: stage and step size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from photon_ros.core.errors import InputError

WARMUP_STEPS = 100
_LEAST_LR = 0.01


@dataclass(frozen=True, slots=True)
class Schedule:
    """Two stages, each so many steps: the vision encoder alone, then everything.

    Counted in steps and not in time, so that a run is repeatable on a machine of any speed.
    The step size is constant in the first stage and falls by a half cosine in the second: what
    the first one leaves need not be settled, as it goes on learning.

    Attributes:
        vision_steps: steps that train the vision encoder alone.
        joint_steps: steps that train everything.

    As long, when nothing else is said, as for the weights in the package.
    """

    vision_steps: int = 4_157
    joint_steps: int = 6_500

    def __post_init__(self) -> None:
        if self.vision_steps < 0:
            raise InputError(f"vision_steps must be at least 0, got {self.vision_steps}")
        if self.joint_steps < 1:
            raise InputError(f"joint_steps must be at least 1, got {self.joint_steps}")

    @property
    def num_steps(self) -> int:
        """Steps of the run."""
        return self.vision_steps + self.joint_steps

    def is_joint(self, step: int) -> bool:
        """Return True for a step that trains the text decoder too."""
        return step >= self.vision_steps

    def lr_factor(self, step: int) -> float:
        """Return the factor on every step size at ``step``, in (0, 1]."""
        if not self.is_joint(step):
            return min(1.0, (step + 1) / WARMUP_STEPS)
        done = step - self.vision_steps
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done / self.joint_steps)))
        return min(1.0, (done + 1) / WARMUP_STEPS) * (_LEAST_LR + (1 - _LEAST_LR) * cosine)
