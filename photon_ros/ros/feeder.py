"""Feeder: takes the newest frame of each camera to the engine while there is room. No rclpy.

    mailbox of a camera -> decode -> one Request per (skill, prompt), same Frame -> answers

One thread. Cameras take turns. A camera has at most ``max_in_engine`` frames with open requests;
while they are open its newest frame waits in the mailbox, where a newer one replaces it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from photon_ros.core.errors import EngineStopped, PhotonError, RequestCancelled
from photon_ros.core.request import Request
from photon_ros.core.result import Result
from photon_ros.ros.answer import Answer, AnswerStatus, FrameJob
from photon_ros.ros.arrival import Arrival, BadFrame, Decoded, age_ms
from photon_ros.ros.live_config import LiveConfig
from photon_ros.ros.mailbox import DropReason, Mailbox, Taken
from photon_ros.ros.params import NodeConfig


class Answerer(Protocol):
    """What the feeder needs of Photon."""

    def submit(self, request: Request) -> Future[Result]:
        """Queue a request; errors about the request may be raised or arrive in the future."""
        ...


# Decoding and submitting one frame takes milliseconds; longer is a defect, not work to wait for.
MAX_ADMISSION_S = 1.0

Decode = Callable[[str, Taken[Arrival], NodeConfig], Decoded]


@dataclass(eq=False, slots=True)
class Admission:
    """A frame between its mailbox and the last of its submitted requests.

    Attributes:
        given_up: why the frame was given up meanwhile; nothing of it is submitted from then on.
        job: keeps the frame's account from now on; None before.
    """

    camera: str
    taken: Taken[Arrival]
    given_up: PhotonError | None = None
    job: FrameJob | None = None

    @property
    def is_given_up(self) -> bool:
        """True once ``given_up`` has a reason."""
        return self.given_up is not None


class Feeder:
    """Admits frames and turns finished requests into answers.

    Args:
        mailboxes: one for each camera.
        decode: turns a taken message into a frame; raises BadFrame.
        live_config: gives the config in force, read once per frame.
        deliver: takes each answer; called on the engine's threads and on the feeder's.
        on_bad_frame: told the camera and the reason, on the feeder's thread.
        on_defect: told of an error that is nobody's answer; its frame has failed.
        max_in_engine: frames of one camera with open requests.
    """

    def __init__(
        self,
        photon: Answerer,
        mailboxes: Mapping[str, Mailbox[Arrival]],
        *,
        decode: Decode,
        live_config: Callable[[], LiveConfig],
        deliver: Callable[[Answer], None],
        on_bad_frame: Callable[[str, str], None],
        on_defect: Callable[[Exception], None],
        max_in_engine: int,
    ) -> None:
        self._photon = photon
        self._mailboxes = dict(mailboxes)
        self._decode = decode
        self._live_config = live_config
        self._deliver = deliver
        self._on_bad_frame = on_bad_frame
        self._on_defect = on_defect
        self._max_in_engine = max_in_engine
        self._changed = threading.Condition()
        self._open: dict[str, dict[FrameJob, list[Future[Result]]]] = {
            camera: {} for camera in self._mailboxes
        }
        self._turn = list(self._mailboxes)
        self._admission: Admission | None = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="photon-feeder", daemon=True)
        self._thread.start()

    def notify(self) -> None:
        """Say that a frame was put into a mailbox."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Admit no more frames; drop those that wait."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=MAX_ADMISSION_S)
        for mailbox in self._mailboxes.values():
            mailbox.flush()

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is open; return False when the time ran out before."""
        with self._changed:
            return self._changed.wait_for(self._is_idle, timeout=timeout_s)

    def flush(self, camera: str, reason: str) -> None:
        """Drop the camera's waiting frame and give up its open requests, for ``reason``.

        A frame that is being decoded is dropped, too.
        """
        self._mailboxes[camera].flush()
        self._give_up([camera], RequestCancelled(reason))

    def cancel(self) -> None:
        """Give up the open requests: each ends with EngineStopped as its answer."""
        self._give_up(list(self._open), EngineStopped("the node stopped before the answer"))

    def _give_up(self, cameras: list[str], error: PhotonError) -> None:
        with self._changed:
            if self._admission is not None and self._admission.camera in cameras:
                self._admission.given_up = error
            entries = [item for camera in cameras for item in self._open[camera].items()]
        for job, futures in entries:
            # The answer first: cancelling reports too, with a reason that says less. A request
            # that runs cannot be cancelled on the spot; its answer then comes too late to count.
            job.abandon(error)
            for future in list(futures):
                future.cancel()

    def _is_idle(self) -> bool:
        return self._admission is None and not any(self._open.values())

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or self._next_camera() is not None)
                if self._is_stopping:
                    return
                camera = self._next_camera()
                assert camera is not None
                # Whoever just had a turn is asked last.
                self._turn.remove(camera)
                self._turn.append(camera)
                taken = self._mailboxes[camera].take()
                if taken is None:  # flushed since it was seen
                    continue
                admission = self._admission = Admission(camera, taken)
            try:
                self._admit(admission)
            except Exception as error:  # the thread outlives it: a silent node looks healthy
                self._fail(admission, error)
            finally:
                with self._changed:
                    self._admission = None
                    self._changed.notify_all()

    def _next_camera(self) -> str | None:
        for camera in self._turn:
            has_room = len(self._open[camera]) < self._max_in_engine
            if has_room and self._mailboxes[camera].has_frame:
                return camera
        return None

    def _admit(self, admission: Admission) -> None:
        camera, taken = admission.camera, admission.taken
        mailbox = self._mailboxes[camera]
        live = self._live_config()
        began_s = time.monotonic()
        try:
            decoded = self._decode(camera, taken, live.config)
        except Exception as error:  # whatever a camera sends, the next frame gets its turn
            # Told first: if that fails, the frame is still in flight and counted once, as failed.
            self._on_bad_frame(camera, str(error) if isinstance(error, BadFrame) else repr(error))
            mailbox.drop(DropReason.BAD)
            return
        now_s = time.monotonic()
        age = age_ms(taken.item, decoded.frame.stamp_ns, now_s=now_s)
        if 0.0 < live.config.max_age_ms < age:
            mailbox.drop(DropReason.STALE)
            return
        job = FrameJob(
            camera=camera,
            decoded=decoded,
            asked=live.config.questions(camera),
            prompt_version=live.version(camera),
            dropped_since_last=taken.dropped_since_last,
            receive_s=taken.item.receive_s,
            receive_stamp_ns=taken.item.receive_stamp_ns,
            mailbox_ms=(began_s - taken.item.receive_s) * 1e3,
            decode_image_ms=(now_s - began_s) * 1e3,
            on_answer=self._hand_out,
            on_answered=self._close_job,
            on_shed=self._shed_job,
        )
        futures: list[Future[Result]] = []
        with self._changed:
            is_wanted = not (admission.is_given_up or self._is_stopping)
            if is_wanted:
                self._open[camera][job] = futures
                admission.job = job
        if is_wanted:
            self._submit(admission, job, futures, live.config)
        else:
            mailbox.drop(DropReason.RESET)

    def _submit(
        self,
        admission: Admission,
        job: FrameJob,
        futures: list[Future[Result]],
        config: NodeConfig,
    ) -> None:
        timeout_s = config.request_timeout_ms / 1e3
        for skill_index, (skill, prompts) in enumerate(job.asked):
            for prompt_index, prompt in enumerate(prompts):
                if admission.is_given_up:
                    return
                request = Request(
                    skill,
                    prompt,
                    job.decoded.frame,
                    max_objects=config.max_objects,
                    max_tokens=config.max_tokens,
                    max_crops=None if config.max_crops < 0 else config.max_crops,
                    deadline_s=job.receive_s + timeout_s if timeout_s > 0 else None,
                )
                try:
                    future = self._photon.submit(request)
                except Exception as error:  # becomes the answer's status and reason
                    job.settle(skill_index, prompt_index, error)
                    continue
                with self._changed:
                    futures.append(future)
                    reason = admission.given_up
                future.add_done_callback(partial(job.receive, skill_index, prompt_index))
                if reason is not None:  # given up during submit: nobody else cancels this one
                    job.abandon(reason)
                    future.cancel()

    def _fail(self, admission: Admission, error: Exception) -> None:
        self._on_defect(error)
        job = admission.job
        if job is None:
            self._mailboxes[admission.camera].finish(completed=False)
            return
        with self._changed:
            futures = self._open[job.camera].get(job, [])
        job.abandon(error)
        for future in futures:
            future.cancel()

    def _hand_out(self, answer: Answer) -> None:
        try:
            self._deliver(answer)
        except Exception as error:
            self._on_defect(error)
            # Nobody else will count it.
            if answer.job.published(AnswerStatus.ERROR) is not None:
                self._mailboxes[answer.job.camera].finish(completed=False)

    def _shed_job(self, job: FrameJob) -> None:
        self._mailboxes[job.camera].drop(DropReason.STALE)
        self._close_job(job)

    def _close_job(self, job: FrameJob) -> None:
        with self._changed:
            del self._open[job.camera][job]
            self._changed.notify_all()
