"""Lockstep: every frame of a recording straight into the engine, in order, none dropped.

Several frames are in flight, so that the engine has a batch to work on; their answers come out
in the order of the recording. Accuracy is measured here; latency includes the queue behind the
frames in flight and says what this machine does under load, not what a live camera would see.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from photon_ros.core.errors import EngineStopped, PhotonError
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import Detection, Result
from photon_ros.pixels import DepthPolicy
from photon_ros.replay.bag_reader import BagFrame, BagReader
from photon_ros.replay.outcome import BAD, FrameOutcome, FrameStatus, RunOutcome

MAX_FRAMES_IN_FLIGHT: Final = 4


class Submitter(Protocol):
    """What a run needs of Photon."""

    def submit(self, request: Request) -> Future[Result]:
        """Queue a request and return at once."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about every frame."""

    skill: str
    prompts: Sequence[str]
    max_objects: int = 50
    max_crops: int | None = None

    def request(self, prompt: str, frame: Frame) -> Request:
        """Return one prompt's request."""
        return Request(
            self.skill,
            prompt,
            frame,
            max_objects=self.max_objects,
            max_crops=self.max_crops,
        )


class _Pending:
    """One frame between submit and its last answer."""

    def __init__(
        self, photon: Submitter, item: BagFrame, frame: Frame, question: Question, decode_ms: float
    ) -> None:
        self._item = item
        self._width_px, self._height_px = frame.width_px, frame.height_px
        self._decode_ms = decode_ms
        self._answers = [
            _submitted(photon, question.request(prompt, frame)) for prompt in question.prompts
        ]

    def cancel(self) -> None:
        """Give up what is not answered yet."""
        for answer in self._answers:
            answer.cancel()

    def wait(self) -> tuple[FrameOutcome, list[dict[str, float]]]:
        """Return the outcome, and latency records: one per answer and one for the frame."""
        answers = [_waited(answer) for answer in self._answers]
        results = [answer for answer in answers if isinstance(answer, Result)]
        errors = [str(answer) for answer in answers if isinstance(answer, PhotonError)]
        records = [{"decode_image": self._decode_ms}, *map(_stages, results)]
        if errors:
            return self._outcome(FrameStatus.ERROR, error="; ".join(errors)), records
        complete = all(result.end_reason.is_complete for result in results)
        status = FrameStatus.OK if complete else FrameStatus.PARTIAL
        detections = tuple(found for result in results for found in result.detections)
        # All prompts of a frame are submitted together: the slowest answer is the frame's.
        slowest_ms = max(result.timings.total_ms for result in results)
        records.append({"total": self._decode_ms + slowest_ms})
        return self._outcome(status, detections), records

    def _outcome(
        self, status: FrameStatus, detections: tuple[Detection, ...] = (), error: str = ""
    ) -> FrameOutcome:
        return FrameOutcome(
            index=self._item.index,
            stamp_ns=self._item.stamp_ns,
            status=status,
            detections=detections,
            error=error,
            width_px=self._width_px,
            height_px=self._height_px,
        )


def _submitted(photon: Submitter, request: Request) -> Future[Result]:
    """Return the answer's future; what submit refuses at once fails in the future as well."""
    try:
        return photon.submit(request)
    except EngineStopped:
        raise
    except PhotonError as error:
        refused: Future[Result] = Future()
        refused.set_exception(error)
        return refused


def _waited(answer: Future[Result]) -> Result | PhotonError:
    """Return the result, or the error of this one request; raise what ends the whole run."""
    try:
        return answer.result()
    except EngineStopped:
        raise
    except PhotonError as error:
        return error


def _stages(result: Result) -> dict[str, float]:
    timings = result.timings
    return {
        "preprocess": timings.preprocess_ms,
        "queue": timings.queue_ms,
        "prefill": timings.prefill_ms,
        "decode": timings.decode_ms,
        "postprocess": timings.postprocess_ms,
    }


@dataclass(slots=True)
class _Books:
    """The account of a run while it goes on."""

    frames: dict[int, FrameOutcome] = field(default_factory=dict)
    num_bad: int = 0
    num_errors: int = 0
    latencies_ms: list[dict[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_bad(self, item: BagFrame) -> None:
        if not self.num_bad:
            self.notes.append(f"first bad frame, number {item.index}: {item.error}")
        self.num_bad += 1

    def add_answer(self, pending: _Pending) -> None:
        outcome, records = pending.wait()
        if outcome.status is FrameStatus.ERROR:
            if not self.num_errors:
                self.notes.append(f"first failed frame, number {outcome.index}: {outcome.error}")
            self.num_errors += 1
        self.frames[outcome.index] = outcome
        self.latencies_ms.extend(records)


def run_lockstep(
    photon: Submitter,
    reader: BagReader,
    topic: str,
    question: Question,
    *,
    wanted: Collection[int] | None = None,
    depth_policy: DepthPolicy = "reject",
    on_frame: Callable[[], None] = lambda: None,
) -> RunOutcome:
    """Ask the question about the frames of a topic and return what became of each.

    Args:
        wanted: indices of the frames to take; None takes all.
        depth_policy: whether depth images are refused as bad, or shown as grey.
        on_frame: called after each frame, answered or dropped.
    """
    books = _Books()
    in_flight: deque[_Pending] = deque()
    started_s = time.monotonic()

    def collect_oldest() -> None:
        books.add_answer(in_flight.popleft())
        on_frame()

    try:
        frames = reader.frames(topic, wanted, depth_policy=depth_policy)
        for item, decode_ms in _timed(frames):
            if item.frame is None:
                books.add_bad(item)
                on_frame()
                continue
            in_flight.append(_Pending(photon, item, item.frame, question, decode_ms))
            if len(in_flight) >= MAX_FRAMES_IN_FLIGHT:
                collect_oldest()
        while in_flight:
            collect_oldest()
    finally:
        for pending in in_flight:
            pending.cancel()
    return RunOutcome(
        frames=books.frames,
        received=len(books.frames) + books.num_bad,
        dropped={BAD: books.num_bad} if books.num_bad else {},
        latencies_ms=tuple(books.latencies_ms),
        elapsed_s=time.monotonic() - started_s,
        notes=tuple(books.notes),
    )


def _timed(frames: Iterator[BagFrame]) -> Iterator[tuple[BagFrame, float]]:
    """Yield each frame with the milliseconds that reading and decoding it took."""
    while True:
        started_s = time.monotonic()
        item = next(frames, None)
        if item is None:
            return
        yield item, 1e3 * (time.monotonic() - started_s)
