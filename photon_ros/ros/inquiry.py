"""Inquiry: one question about one image or the latest frame, asked of an active node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from photon_ros.core.errors import DeadlineExceeded, InputError, RequestCancelled
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import Result
from photon_ros.msg import PhotonDetectionArray
from photon_ros.ros.answer import Answer, FrameJob
from photon_ros.ros.arrival import Arrival, Decoded, age_ms
from photon_ros.ros.conversions import array_from_answer
from photon_ros.ros.live_config import LiveConfig
from photon_ros.ros.retried_stream import RetriedStream

TIMEOUT_S = 30.0
# The engine ends a late request at its next step; this long afterwards it is given up.
GRACE_S = 2.0


class Answerer(Protocol):
    """What an inquiry needs of the engine."""

    def check(self, request: Request) -> None:
        """Raise PhotonError when the request is wrong."""
        ...

    def submit(self, request: Request) -> Future[Result]:
        """Queue a request."""
        ...

    def stream(self, request: Request) -> RetriedStream:
        """Queue a request for an answer in words."""
        ...


class Decoder(Protocol):
    """Turns messages into frames; raises BadFrame."""

    def arrival(self, camera: str, arrival: Arrival) -> Decoded:
        """Decode a received, still serialised message."""
        ...

    def message(self, camera: str, message: Any) -> Decoded:
        """Decode an Image."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer as a message; ``text`` is that of a text skill."""

    array: PhotonDetectionArray
    text: str
    is_answered: bool


class Asked:
    """A question on its way."""

    def __init__(
        self, decoded: Decoded, skill: str, prompt: str, version: int, receive_stamp_ns: int
    ) -> None:
        self._over = threading.Event()
        self._answer: Answer | None = None
        now_s = time.monotonic()
        self.job = FrameJob(
            camera=decoded.frame.camera,
            decoded=decoded,
            asked=[(skill, (prompt,))],
            prompt_version=version,
            dropped_since_last=0,
            receive_s=now_s,
            receive_stamp_ns=receive_stamp_ns,
            mailbox_ms=0.0,
            decode_image_ms=0.0,
            on_answer=self._on_answer,
            on_answered=lambda _job: None,
            on_shed=lambda _job: self._over.set(),
        )
        self._future: Future[Result] | None = None

    def begin(self, future: Future[Result]) -> None:
        """Take the future that the answer comes from."""
        self._future = future
        future.add_done_callback(partial(self.job.receive, 0, 0))

    def _on_answer(self, answer: Answer) -> None:
        self._answer = answer
        self._over.set()

    def give_up(self) -> None:
        """End the question with an error."""
        self.job.abandon(RequestCancelled("the node stopped before the answer"))
        if self._future is not None:
            self._future.cancel()

    def wait(self) -> Outcome:
        """Wait for the answer; raises DeadlineExceeded when there is none in time."""
        if not self._over.wait(TIMEOUT_S + GRACE_S) or self._answer is None:
            self.give_up()
            raise DeadlineExceeded(f"not answered within {TIMEOUT_S:g} s")
        array = array_from_answer(self._answer, now_s=time.monotonic())
        (result,) = self._answer.results
        return Outcome(array, "" if result is None else result.text, result is not None)


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What questions are asked with, while the node is active.

    Attributes:
        now_ns: gives the ROS time.
        latest: the newest frame of each camera, None before the first; by its name, "" for the
            only one.
    """

    engine: Answerer
    decoder: Decoder
    now_ns: Callable[[], int]
    latest: Mapping[str, Arrival | None]
    live: LiveConfig

    def frame(self, camera: str, image: Any | None) -> Decoded:
        """Return the frame to ask about: the image, or else the camera's latest frame.

        Raises:
            InputError: no such camera, no frame yet, one older than max_age_ms, or an image that
                cannot be used.
        """
        if image is not None:
            return self.decoder.message(camera, image)
        if camera not in self.latest:
            known = ", ".join(self.latest) or "none"
            raise InputError(f"there is no camera {camera!r}; known: {known}")
        arrival = self.latest[camera]
        if arrival is None:
            raise InputError("no frame has arrived yet")
        decoded = self.decoder.arrival(camera, arrival)
        age = age_ms(arrival, decoded.frame.stamp_ns, now_s=time.monotonic())
        max_age = self.live.config.max_age_ms
        if 0.0 < max_age < age:
            raise InputError(f"the latest frame is {age:.0f} ms old, and max_age_ms is {max_age:g}")
        return decoded

    def submit(self, decoded: Decoded, skill: str, prompt: str) -> Asked:
        """Ask; raises PhotonError when the skill or the prompt is wrong."""
        request = replace(
            self._request(decoded.frame, skill, prompt, self.live.config.max_tokens),
            deadline_s=time.monotonic() + TIMEOUT_S,
        )
        self.engine.check(request)
        asked = Asked(
            decoded, skill, prompt, self.live.version(decoded.frame.camera), self.now_ns()
        )
        asked.begin(self.engine.submit(request))
        return asked

    def stream(self, decoded: Decoded, skill: str, prompt: str, max_tokens: int) -> RetriedStream:
        """Ask for an answer in words; 0 tokens takes the parameter."""
        num_tokens = max_tokens or self.live.config.max_tokens
        return self.engine.stream(self._request(decoded.frame, skill, prompt, num_tokens))

    def _request(self, frame: Frame, skill: str, prompt: str, max_tokens: int) -> Request:
        config = self.live.config
        return Request(
            skill,
            prompt,
            frame,
            max_objects=config.max_objects,
            max_tokens=max_tokens,
            max_crops=None if config.max_crops < 0 else config.max_crops,
        )


Source = Callable[[], Inquiry]
"""Gives the inquiry of an active node; raises PhotonError when it is not active."""
