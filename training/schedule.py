"""How far a run is, and what follows from it: stage and step size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from photon_ros.core.errors import InputError

WARMUP_STEPS = 100
# Where the step size starts in the last stage, as a share of the full one.
RESTART_LR = 0.6
_LEAST_LR = 0.01


@dataclass(frozen=True, slots=True)
class Schedule:
    """Three stages, each so many steps: the vision encoder alone, everything, everything again.

    Counted in steps and not in time, so that a run is repeatable on a machine of any speed.
    The step size is constant in the first stage and falls by a half cosine in the second: what
    the first one leaves need not be settled, as it goes on learning. The third starts from a
    large step size once more and lets it fall again (a warm restart, Loshchilov and Hutter
    2017), so that a run that is over can be made longer.

    Attributes:
        vision_steps: steps that train the vision encoder alone.
        joint_steps: steps that train everything.
        again_steps: steps that train everything after the restart; 0 for none.

    As long, when nothing else is said, as for the weights in the package.
    """

    vision_steps: int = 4_157
    joint_steps: int = 6_500
    again_steps: int = 8_000

    def __post_init__(self) -> None:
        for name in ("vision_steps", "joint_steps", "again_steps"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.joint_steps + self.again_steps == 0:
            raise InputError("joint_steps and again_steps cannot both be 0")

    @property
    def num_steps(self) -> int:
        """Steps of the run."""
        return self.vision_steps + self.joint_steps + self.again_steps

    def is_joint(self, step: int) -> bool:
        """Return True for a step that trains the text decoder too."""
        return step >= self.vision_steps

    def lr_factor(self, step: int) -> float:
        """Return the factor on every step size at ``step``, in (0, 1]."""
        if not self.is_joint(step):
            return min(1.0, (step + 1) / WARMUP_STEPS)
        restart = self.vision_steps + self.joint_steps
        if step < restart:
            return _falling(step - self.vision_steps, self.joint_steps)
        return RESTART_LR * _falling(step - restart, self.again_steps)


def _falling(done: int, num_steps: int) -> float:
    """Return the factor after ``done`` steps of a stage: a short rise, then a half cosine."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, done / max(1, num_steps))))
    return min(1.0, (done + 1) / WARMUP_STEPS) * (_LEAST_LR + (1 - _LEAST_LR) * cosine)
