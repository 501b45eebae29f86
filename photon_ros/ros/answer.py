"""From the futures of one frame's requests to one answer per skill. No ROS here.

A FrameJob lives from admission to the publication of the frame's last answer. Futures report on
any thread; each answer is handed out once, when the last prompt of its skill is answered. A frame
of which nothing was started in time is shed: it has no answers at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from enum import IntEnum

from photon_ros.core.errors import DeadlineExceeded, RequestCancelled
from photon_ros.core.result import Result, Timings
from photon_ros.ros.arrival import Decoded


class AnswerStatus(IntEnum):
    """How an answer ended; of several prompts the worst counts."""

    OK = 0
    PARTIAL = 1  # a budget cut it off
    TIMEOUT = 2
    ERROR = 3


@dataclass(frozen=True, eq=False, slots=True)
class Answer:
    """One skill's answer to one frame.

    Attributes:
        results: one for each prompt, None where it failed.
        error: the reasons why the status is not OK, "" otherwise.
        timings: those of the prompt that took longest; tokens and zombie steps are summed.
        answered_s: steady time of the last result.
    """

    job: FrameJob
    skill: str
    prompts: tuple[str, ...]
    results: tuple[Result | None, ...]
    status: AnswerStatus
    error: str
    timings: Timings
    answered_s: float


class FrameJob:
    """One admitted frame, what was asked of it, and what is still missing.

    Args:
        camera: name of the camera the account is kept for.
        asked: skills with their prompts, at least one prompt each.
        receive_s, receive_stamp_ns: when the frame was received, steady and ROS time.
        mailbox_ms, decode_image_ms: time spent before the requests were submitted.
        on_answer: called with each skill's answer, on the thread of its last result.
        on_answered: called once, after the last answer was handed out.
        on_shed: called instead of both when every prompt was shed before it was started: nothing
            was spent on the frame, so it is a dropped one and not a failed one.
    """

    def __init__(
        self,
        *,
        camera: str,
        decoded: Decoded,
        asked: Sequence[tuple[str, tuple[str, ...]]],
        prompt_version: int,
        dropped_since_last: int,
        receive_s: float,
        receive_stamp_ns: int,
        mailbox_ms: float,
        decode_image_ms: float,
        on_answer: Callable[[Answer], None],
        on_answered: Callable[[FrameJob], None],
        on_shed: Callable[[FrameJob], None],
    ) -> None:
        self.camera = camera
        self.decoded = decoded
        self.asked = tuple(asked)
        self.prompt_version = prompt_version
        self.dropped_since_last = dropped_since_last
        self.receive_s = receive_s
        self.receive_stamp_ns = receive_stamp_ns
        self.mailbox_ms = mailbox_ms
        self.decode_image_ms = decode_image_ms
        self._on_answer = on_answer
        self._on_answered = on_answered
        self._on_shed = on_shed
        self._lock = threading.Lock()
        self._outcomes: list[list[Result | BaseException | None]] = [
            [None] * len(prompts) for _, prompts in self.asked
        ]
        self._num_unanswered = len(self.asked)
        self._num_unpublished = len(self.asked)
        self._shed_skills: list[int] = []
        self._worst = AnswerStatus.OK
        self.answers: list[Answer] = []

    def receive(self, skill_index: int, prompt_index: int, future: Future[Result]) -> None:
        """Take a finished future; the answer goes out with the skill's last one."""
        try:
            outcome: Result | BaseException = future.result(timeout=0)
        except (Exception, CancelledError) as error:
            outcome = error
        self.settle(skill_index, prompt_index, outcome)

    def settle(self, skill_index: int, prompt_index: int, outcome: Result | BaseException) -> None:
        """Take one prompt's outcome; a prompt that already has one keeps it."""
        with self._lock:
            outcomes = self._outcomes[skill_index]
            if outcomes[prompt_index] is not None:
                return
            outcomes[prompt_index] = outcome
            if any(item is None for item in outcomes):
                return
            self._num_unanswered -= 1
            is_last = self._num_unanswered == 0
            ready = self._ready_skills(skill_index, is_last=is_last)
            answers = [self._answer(index) for index in ready]
            self.answers += answers
        try:
            for answer in answers:
                self._on_answer(answer)
        finally:  # or the frame would stay open for good
            if is_last and ready:
                self._on_answered(self)
            elif is_last:
                self._on_shed(self)

    def _ready_skills(self, skill_index: int, *, is_last: bool) -> list[int]:
        """Return the skills to answer now; none at the end means that the frame was shed.

        A skill of which every prompt was shed waits until the others tell whether the frame is
        a dropped one.
        """
        if all(_was_shed(outcome) for outcome in self._outcomes[skill_index]):
            self._shed_skills.append(skill_index)
            if not is_last or len(self._shed_skills) == len(self.asked):
                return []
            return self._shed_skills
        return [*self._shed_skills, skill_index] if is_last else [skill_index]

    def abandon(self, error: BaseException) -> None:
        """Settle every open prompt with ``error``."""
        for skill_index, (_, prompts) in enumerate(self.asked):
            for prompt_index in range(len(prompts)):
                self.settle(skill_index, prompt_index, error)

    def _answer(self, skill_index: int) -> Answer:
        skill, prompts = self.asked[skill_index]
        outcomes = self._outcomes[skill_index]
        judged = [_judge(outcome) for outcome in outcomes]
        reasons = [
            f"{prompt}: {reason}"
            for prompt, (_, reason) in zip(prompts, judged, strict=True)
            if reason
        ]
        results = tuple(item if isinstance(item, Result) else None for item in outcomes)
        return Answer(
            job=self,
            skill=skill,
            prompts=prompts,
            results=results,
            status=max(status for status, _ in judged),
            error="; ".join(reasons),
            timings=_joint_timings([item.timings for item in results if item is not None]),
            answered_s=time.monotonic(),
        )

    def published(self, status: AnswerStatus) -> AnswerStatus | None:
        """Record that an answer went out; return the frame's worst status after the last one."""
        with self._lock:
            self._num_unpublished -= 1
            self._worst = max(self._worst, status)
            return self._worst if self._num_unpublished == 0 else None


def _was_shed(outcome: Result | BaseException | None) -> bool:
    return isinstance(outcome, DeadlineExceeded) and not outcome.has_started


def _judge(outcome: Result | BaseException | None) -> tuple[AnswerStatus, str]:
    if isinstance(outcome, Result):
        if outcome.end_reason.is_complete:
            return AnswerStatus.OK, ""
        return AnswerStatus.PARTIAL, f"ended by {outcome.end_reason.value}"
    if isinstance(outcome, DeadlineExceeded):
        return AnswerStatus.TIMEOUT, str(outcome)
    if isinstance(outcome, CancelledError):
        outcome = RequestCancelled("the request was cancelled")
    return AnswerStatus.ERROR, f"{type(outcome).__name__}: {outcome}"


def _joint_timings(timings: Sequence[Timings]) -> Timings:
    if not timings:
        return Timings()
    slowest = max(timings, key=lambda item: item.total_ms)
    return replace(
        slowest,
        num_tokens=sum(item.num_tokens for item in timings),
        zombie_steps=sum(item.zombie_steps for item in timings),
    )
