"""A Photon that answers from the pixels after a set time, on a thread of its own.

The prompt says what happens: "person" is found where the frame's first pixel says, "nothing" is
not there, "crowd" ends by max_objects, "boom" fails in the engine. Other words are unknown.
"""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import Future

from photon_ros.core.errors import (
    DeadlineExceeded,
    EngineFault,
    EngineStopped,
    UnknownWordError,
)
from photon_ros.core.request import Request
from photon_ros.core.result import Detection, DetectionKind, EndReason, Result, Timings

KNOWN = ("person", "nothing", "crowd", "boom")


class FakePhoton:
    """One request at a time, in the order of submission."""

    model_name = "fake"
    skills = ("point", "detect")

    def __init__(self, service_s: float = 0.0) -> None:
        self.service_s = service_s
        self.requests: list[Request] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._queue: queue.Queue[tuple[Request, Future[Result]] | None] = queue.Queue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def validate(self, skill: str, prompt: str) -> None:
        if prompt not in KNOWN:
            raise UnknownWordError([prompt], KNOWN, self.model_name)

    def submit(self, request: Request) -> Future[Result]:
        if self._closed.is_set():
            raise EngineStopped("photon was closed")
        self.validate(request.skill, request.prompt)
        future: Future[Result] = Future()
        self.requests.append(request)
        self._queue.put((request, future))
        return future

    def close(self) -> None:
        self._closed.set()
        self.may_answer.set()
        self._queue.put(None)
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            request, future = item
            self.may_answer.wait()
            is_late = request.deadline_s is not None and time.monotonic() > request.deadline_s
            if not is_late:
                self._closed.wait(self.service_s)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if is_late:
                    raise DeadlineExceeded("the deadline passed before the start")
                future.set_result(self._answer(request))
            except Exception as error:
                future.set_exception(error)

    def _answer(self, request: Request) -> Result:
        if self._closed.is_set():
            raise EngineStopped("photon was closed before the answer")
        if request.deadline_s is not None and time.monotonic() > request.deadline_s:
            raise DeadlineExceeded("the deadline passed", has_started=True)
        if request.prompt == "boom":
            raise EngineFault("the device is on fire")
        assert request.frame is not None
        red, green, blue = (int(value) for value in request.frame.image[0, 0])
        kind = DetectionKind.BOX if request.skill == "detect" else DetectionKind.POINT
        extent = 0.5 if request.skill == "detect" else 0.0
        found = Detection(
            kind, request.prompt, red / 255, green / 255, extent, extent / 2, score=blue / 255
        )
        num_found = {"nothing": 0, "crowd": request.max_objects}.get(request.prompt, 1)
        return Result(
            request.skill,
            request.prompt,
            (found,) * num_found,
            end_reason=EndReason.MAX_OBJECTS if request.prompt == "crowd" else EndReason.EOS,
            timings=Timings(
                preprocess_ms=1.0,
                queue_ms=2.0,
                prefill_ms=3.0,
                decode_ms=4.0,
                postprocess_ms=5.0,
                total_ms=15.0,
                num_tokens=3 * num_found,
                batch_size=1.5,
                zombie_steps=1,
            ),
        )
