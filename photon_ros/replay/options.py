"""What to evaluate, on what, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from photon_ros.core.errors import InputError
from photon_ros.core.request import MAX_CROPS, MAX_OBJECTS, check_count
from photon_ros.pixels import DepthPolicy
from photon_ros.replay.truth import label_key

SKILLS: Final = ("detect", "point", "segment")
"""Skills whose answers are places; others have nothing to draw or score."""


@dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """One evaluation.

    Attributes:
        bag: the recording.
        out: folder of the report; its own files of an earlier run are replaced.
        skill: the skill to ask, one of SKILLS.
        prompts: what to ask for in each frame, at least one, no two the same.
        topic: image topic; None takes the only one.
        truth: COCO JSON; None scores nothing.
        truth_frames_only: take only the frames that the truth names; lockstep only.
        truth_may_miss: truth that names frames that the bag does not have is left out.
        live: replay through the node over the middleware instead of straight into the engine.
        rate: speed of the live replay, 1 is as recorded.
        model: "nano" or a checkpoint folder.
        device, dtype: where and in what the model runs; dtype None is the device's usual one.
        max_objects: objects after which an answer ends.
        max_crops: budget of local crops; None is the model's own limit.
        depth_policy: whether depth images are refused as bad, or shown as grey.
    """

    bag: Path
    out: Path
    skill: str
    prompts: tuple[str, ...]
    topic: str | None = None
    truth: Path | None = None
    truth_frames_only: bool = False
    truth_may_miss: bool = False
    live: bool = False
    rate: float = 1.0
    model: str = "nano"
    device: str = "cpu"
    dtype: str | None = None
    max_objects: int = 50
    max_crops: int | None = None
    depth_policy: DepthPolicy = "reject"

    def __post_init__(self) -> None:
        if self.skill not in SKILLS:
            raise InputError(f"evaluate knows {', '.join(SKILLS)}, not {self.skill!r}")
        if not self.prompts:
            raise InputError("evaluate needs at least one prompt")
        if len({label_key(prompt) for prompt in self.prompts}) < len(self.prompts):
            raise InputError(f"a prompt is given twice: {', '.join(self.prompts)}")
        if self.truth is not None and self.skill != "detect":
            raise InputError(f"truth is boxes: it scores skill detect, not {self.skill}")
        if self.truth_frames_only and self.truth is None:
            raise InputError("truth frames only: there is no truth to name them")
        if self.truth_may_miss and self.truth is None:
            raise InputError("truth may miss: there is no truth")
        if self.truth_frames_only and self.live:
            raise InputError("truth frames only reads single frames; a live replay plays them all")
        if not 0 < self.rate <= 100:
            raise InputError(f"rate must be above 0 and at most 100, got {self.rate}")
        check_count("max_objects", self.max_objects, 1, MAX_OBJECTS)
        if self.max_crops is not None:
            check_count("max_crops", self.max_crops, 0, MAX_CROPS)

    @property
    def mode(self) -> str:
        """How the frames reach the model: "lockstep" or "live"."""
        return "live" if self.live else "lockstep"
