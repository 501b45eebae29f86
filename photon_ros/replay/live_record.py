"""What a live run left behind: the recorder's lines and the player's report, made into books.

A frame is received when the player published it. It then was answered, dropped by the node for
a reason the node counts, or lost: "transport" between player and node, "unrecorded" between
node and recorder, "unfinished" when the run ended before its answer.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from photon_ros.core.result import Detection, DetectionKind
from photon_ros.replay.bag_reader import BagEntry
from photon_ros.replay.children import LiveError
from photon_ros.replay.outcome import BAD, FrameOutcome, FrameStatus, RunOutcome

_STATUSES: Final = (
    FrameStatus.OK,
    FrameStatus.PARTIAL,
    FrameStatus.TIMEOUT,
    FrameStatus.ERROR,
)
_KINDS: Final = (DetectionKind.POINT, DetectionKind.BOX, DetectionKind.MASK)
_DROP_REASONS: Final = ("overwritten", "stale", "rate", BAD, "reset")
_STAGES: Final = (
    "queue",
    "decode_image",
    "preprocess",
    "prefill",
    "decode",
    "postprocess",
    "publish",
    "total",
)
_NS_PER_MS: Final = 1e6
_QUIET_S: Final = 3.5  # three of the node's accounts, one a second, and some room

Message = Mapping[str, Any]


@dataclass(slots=True)
class Record:
    """The recorder's file, read while it grows.

    Attributes:
        arrays: detection arrays with the ROS time in ns at which they were received.
        stats: the node's last account; None before the first one.
    """

    path: Path
    arrays: list[tuple[int, Message]] = field(default_factory=list)
    stats: Message | None = None
    _offset: int = 0

    def update(self) -> int:
        """Read the lines that are complete by now; return how many arrays are new."""
        if not self.path.exists():
            return 0
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        num_before = len(self.arrays)
        for line in whole.splitlines():
            entry = json.loads(line)
            if entry["kind"] == "detections":
                self.arrays.append((entry["receive_ns"], entry["message"]))
            else:
                self.stats = entry["message"]
        return len(self.arrays) - num_before

    @property
    def num_underway(self) -> int:
        """Frames that the node holds without an answer yet."""
        if self.stats is None:
            return 0
        return int(self.stats["in_flight"] + self.stats["mailboxed"])

    @property
    def num_settled(self) -> int:
        """Frames that the node has answered or dropped."""
        if self.stats is None:
            return 0
        return int(self.stats["received"]) - self.num_underway

    @property
    def num_missing(self) -> int:
        """Answers that the node says it gave and that are not recorded."""
        if self.stats is None:
            return 0
        return int(self.stats["completed"] + self.stats["failed"]) - len(self.arrays)


class Settling:
    """Decides when a node that gets no more frames has settled what it received.

    Frames lost on the way to it will never be settled, so it is also over when the node holds
    nothing and nothing has changed for a while.
    """

    def __init__(self, record: Record, num_published: int) -> None:
        self._record = record
        self._num_published = num_published
        self._last: tuple[int, ...] = ()
        self._since_s = 0.0

    def is_over(self, now_s: float) -> bool:
        """Look at the record as it is now; ``now_s`` is on any steady clock."""
        record = self._record
        if record.num_underway == 0 and record.num_settled >= self._num_published:
            return True
        now = (record.num_underway, record.num_settled, len(record.arrays))
        if now != self._last:
            self._last, self._since_s = now, now_s
        return record.num_underway == 0 and now_s - self._since_s > _QUIET_S


@dataclass(frozen=True, slots=True)
class Published:
    """One frame that the player published; times in ROS nanoseconds."""

    stamp_ns: int
    publish_ns: int


def read_published(path: Path) -> list[Published]:
    """Return the player's report."""
    report = json.loads(path.read_text("utf-8"))
    return [Published(item["stamp_ns"], item["publish_ns"]) for item in report["published"]]


def books_of(
    entries: Iterable[BagEntry],
    published: list[Published],
    record: Record,
    notes: tuple[str, ...] = (),
) -> RunOutcome:
    """Return the outcome of a live run; raise LiveError if its account does not close."""
    if record.stats is None:
        raise LiveError("the node never reported its account of frames")
    frames, latencies_ms = _answered(entries, published, record.arrays)
    stats = record.stats
    dropped = {reason: int(stats[f"dropped_{reason}"]) for reason in _DROP_REASONS}
    dropped["transport"] = len(published) - int(stats["received"])
    dropped["unrecorded"] = int(stats["completed"] + stats["failed"]) - len(frames)
    dropped["unfinished"] = record.num_underway
    try:
        return RunOutcome(
            frames=frames,
            received=len(published),
            dropped={reason: number for reason, number in dropped.items() if number},
            latencies_ms=tuple(latencies_ms),
            elapsed_s=_elapsed_s(published, record.arrays),
            notes=notes,
        )
    except ValueError as error:
        raise LiveError(f"the account of the live run does not close: {error}") from error


def _answered(
    entries: Iterable[BagEntry],
    published: list[Published],
    arrays: Iterable[tuple[int, Message]],
) -> tuple[dict[int, FrameOutcome], list[dict[str, float]]]:
    """Match answers to frames by stamp; equal stamps are taken in the order of publishing."""
    waiting: dict[int, deque[tuple[int, Published]]] = defaultdict(deque)
    for entry, item in zip(entries, published, strict=False):
        waiting[item.stamp_ns].append((entry.index, item))
    frames: dict[int, FrameOutcome] = {}
    latencies_ms: list[dict[str, float]] = []
    for receive_ns, message in arrays:
        stamp_ns = _stamp_ns(message["header"]["stamp"])
        if not waiting[stamp_ns]:
            raise LiveError(f"the node answered a frame stamped {stamp_ns} that was not published")
        index, item = waiting[stamp_ns].popleft()
        frames[index] = _outcome(index, stamp_ns, message)
        latencies_ms.append(_latency_ms(message["latency"], item, receive_ns))
    return frames, latencies_ms


def _elapsed_s(published: list[Published], arrays: list[tuple[int, Message]]) -> float:
    """Return the seconds from the first frame published to the last answer received."""
    if not published or not arrays:
        return 0.0
    first_ns = min(item.publish_ns for item in published)
    return (max(receive_ns for receive_ns, _ in arrays) - first_ns) / 1e9


def _stamp_ns(stamp: Mapping[str, int]) -> int:
    return stamp["sec"] * 1_000_000_000 + stamp["nanosec"]


def _outcome(index: int, stamp_ns: int, message: Message) -> FrameOutcome:
    width, height = message["image_width"], message["image_height"]
    return FrameOutcome(
        index=index,
        stamp_ns=stamp_ns,
        status=_STATUSES[message["status"]],
        detections=tuple(_detection(found, width, height) for found in message["detections"]),
        error=message["error"],
        width_px=width,
        height_px=height,
    )


def _detection(found: Message, width_px: int, height_px: int) -> Detection:
    score = found["score"]
    return Detection(
        kind=_KINDS[found["kind"]],
        label=found["label"],
        x=found["x"] / width_px,
        y=found["y"] / height_px,
        width=found["width"] / width_px,
        height=found["height"] / height_px,
        score=math.nan if score is None else score,
    )


def _latency_ms(latency: Message, item: Published, receive_ns: int) -> dict[str, float]:
    """Return the node's stages, and what only the outside sees.

    The header's stamp is that of the recording, so the way to the node is taken from when the
    player published; both read the clock of this machine.
    """
    arrived_ns = _stamp_ns(latency["receive_stamp"])
    stages = {"transport": (arrived_ns - item.publish_ns) / _NS_PER_MS}
    for stage in _STAGES:
        value = latency[f"{stage}_ms"]
        stages[stage] = math.nan if value is None else value
    stages["end_to_end"] = (receive_ns - item.publish_ns) / _NS_PER_MS
    return stages
