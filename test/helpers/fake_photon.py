"""A Photon that answers from the pixels after a set time, on a thread of its own.

The prompt says what happens: "person" is found where the frame's first pixel says, "nothing" is
not there, "crowd" ends by max_objects, "boom" fails in the engine. Other words are unknown. A
"query" is answered by the frame's first pixel, a word at a time while ``may_answer`` is set.

Its memory holds ``max_inside`` requests: with more of them inside whichever is served fails for
want of memory, a query in the middle of its words.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

import torch

from photon_ros.core.errors import (
    DeadlineExceeded,
    EngineFault,
    EngineStopped,
    InputError,
    UnknownWordError,
)
from photon_ros.core.request import Request
from photon_ros.core.result import Detection, DetectionKind, EndReason, Result, Timings
from photon_ros.engine.metrics import EngineLoad, EngineStats
from photon_ros.text_stream import StreamInbox, TextStream

KNOWN = ("person", "nothing", "crowd", "boom")
KINDS = {"detect": DetectionKind.BOX, "segment": DetectionKind.MASK}


class WordTokenizer:
    """Each token is a word of an answer, a blank after it."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def encode(self, text: str) -> list[int]:
        return [self.words.index(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.words[token] + " " for token in ids)


class FakePhoton:
    """One request at a time, in the order of submission."""

    model_name = "fake"
    skills = ("point", "detect", "segment", "query")

    def __init__(self, service_s: float = 0.0) -> None:
        self.service_s = service_s
        self.known = KNOWN
        self.requests: list[Request] = []
        self.max_inside = 1_000
        self.num_out_of_memory = 0
        self._inside: set[int] = set()
        self._numbers = itertools.count()
        self.engine_stats = EngineStats()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._queue: queue.Queue[tuple[Request, Future[Result]] | None] = queue.Queue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def engine_load(self) -> EngineLoad:
        return EngineLoad(self._queue.qsize(), 3, 17, 256)

    def _enter(self, request: Request, future: Future[Result]) -> None:
        self.requests.append(request)
        number = next(self._numbers)
        self._inside.add(number)
        future.add_done_callback(lambda _: self._inside.discard(number))

    def _check_memory(self) -> None:
        if len(self._inside) > self.max_inside:
            self.num_out_of_memory += 1
            raise EngineFault("a step failed") from torch.cuda.OutOfMemoryError("no room")

    def check(self, request: Request) -> None:
        self.validate(request.skill, request.prompt)

    def stream(self, request: Request) -> TextStream:
        if request.skill != "query":
            raise InputError(f"{request.skill} does not answer in words")
        assert request.frame is not None
        if self._closed.is_set():
            raise EngineStopped("photon was closed")
        inbox: StreamInbox = StreamInbox()
        future: Future[Result] = Future()
        self._enter(request, future)
        words = ["the", "first", "pixel", "is", str(request.frame.image[0, 0, 0]), "of", "255."]
        threading.Thread(
            target=self._speak, args=(request, words, inbox, future), daemon=True
        ).start()
        return TextStream(inbox, future, WordTokenizer(words))

    def _speak(
        self, request: Request, words: list[str], inbox: StreamInbox, future: Future[Result]
    ) -> None:
        try:
            self._say(request, words, inbox, future)
        except EngineFault as error:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _say(
        self, request: Request, words: list[str], inbox: StreamInbox, future: Future[Result]
    ) -> None:
        for token in range(min(len(words), request.max_tokens)):
            while not self.may_answer.wait(0.01):
                if self._closed.is_set() or future.cancelled():
                    return
            time.sleep(self.service_s)
            if future.cancelled():
                return
            self._check_memory()
            inbox.on_token(token)
        if request.prompt == "boom":
            raise EngineFault("the device is on fire")
        if not future.set_running_or_notify_cancel():
            return
        is_cut = request.max_tokens < len(words)
        reason = EndReason.MAX_TOKENS if is_cut else EndReason.EOS
        text = "".join(word + " " for word in words[: request.max_tokens])
        future.set_result(Result("query", request.prompt, text=text, end_reason=reason))

    def validate(self, skill: str, prompt: str) -> None:
        if skill not in self.skills:
            raise InputError(f"there is no skill {skill!r}; known: {', '.join(self.skills)}")
        if skill == "query":
            return
        if prompt not in self.known:
            raise UnknownWordError([prompt], self.known, self.model_name)

    def submit(self, request: Request) -> Future[Result]:
        if self._closed.is_set():
            raise EngineStopped("photon was closed")
        self.validate(request.skill, request.prompt)
        future: Future[Result] = Future()
        self._enter(request, future)
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
                self._check_memory()
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
        if request.skill == "query":
            return Result("query", request.prompt, text=f"asked: {request.prompt}")
        assert request.frame is not None
        red, green, blue = (int(value) for value in request.frame.image[0, 0])
        kind = KINDS.get(request.skill, DetectionKind.POINT)
        extent = 0.0 if request.skill == "point" else 0.5
        x, y = red / 255, green / 255
        # A mask is the lower left half of its box.
        left, top, right, bottom = x - extent / 2, y - extent / 4, x + extent / 2, y + extent / 4
        ring = ((left, top), (right, bottom), (left, bottom))
        polygon = (ring,) if request.skill == "segment" else ()
        found = Detection(
            kind, request.prompt, x, y, extent, extent / 2, score=blue / 255, polygon=polygon
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
