"""What became of the frames of a run, the same for both modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from photon_ros.core.result import Detection

BAD: Final = "bad"
"""The reason of a frame that was dropped because it could not be decoded."""


class FrameStatus(Enum):
    """How the answer to a frame ended."""

    OK = "ok"
    PARTIAL = "partial"  # an object, token or context budget was reached
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class FrameOutcome:
    """One answered frame; a frame with several prompts has one outcome.

    Attributes:
        index: running number of its message on the topic.
        stamp_ns: stamp of its header.
        width_px, height_px: size of its image; 0 where nobody said.
        detections: of all prompts; kept for a partial answer, empty on an error.
        error: what went wrong; "" otherwise.
    """

    index: int
    stamp_ns: int
    status: FrameStatus
    detections: tuple[Detection, ...] = ()
    error: str = ""
    width_px: int = 0
    height_px: int = 0


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Everything a run yields; received = completed + failed + dropped always holds.

    Attributes:
        frames: answered frames by index.
        received: frames the run was given.
        dropped: frames never answered, by reason.
        latencies_ms: records of {stage: milliseconds}.
        elapsed_s: wall clock time from the first frame to the last answer.
        notes: what a reader should know, one sentence each.
    """

    frames: Mapping[int, FrameOutcome]
    received: int
    dropped: Mapping[str, int]
    latencies_ms: tuple[Mapping[str, float], ...]
    elapsed_s: float
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        accounted = len(self.frames) + sum(self.dropped.values())
        if self.received != accounted or min(self.dropped.values(), default=0) < 0:
            raise ValueError(
                f"{self.received} frames received, {len(self.frames)} answered, "
                f"dropped {dict(self.dropped)}: the books do not close"
            )

    @property
    def completed(self) -> int:
        """Frames whose every answer is whole."""
        return sum(frame.status is FrameStatus.OK for frame in self.frames.values())

    @property
    def failed(self) -> int:
        """Frames answered in part, too late, or with an error."""
        return len(self.frames) - self.completed

    @property
    def is_flawless(self) -> bool:
        """True unless a frame failed, or could not be decoded.

        What a live node dropped for a newer frame is what it is there for, and no failure.
        """
        return not self.failed and not self.dropped.get(BAD, 0)
