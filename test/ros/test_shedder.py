"""The shedder over an engine whose memory holds only so many requests at once."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import pytest
import torch

from photon_ros.core.errors import EngineFault, PromptError, RequestCancelled
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import Result
from photon_ros.engine.config import EngineConfig
from photon_ros.models.nano import load_nano
from photon_ros.photon import Photon
from photon_ros.ros.shedder import MAX_LIMIT, NUM_CALM, Shedder, memory_cause


class TightEngine:
    """Answers everything inside in one step; a step above ``capacity`` fails as a whole."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.num_freed = 0
        self.num_failed_steps = 0
        self._changed = threading.Condition()
        self._inside: list[tuple[Request, Future[Result]]] = []
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Future[Result]:
        if request.prompt == "unknown":
            raise PromptError("never heard of it")
        future: Future[Result] = Future()
        with self._changed:
            self._inside.append((request, future))
            self._changed.notify()
        return future

    def free_memory(self) -> None:
        self.num_freed += 1

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._inside)
                if self._is_closing:
                    return
            time.sleep(0.003)  # so that a step gathers more than one request
            with self._changed:
                step, self._inside = self._inside, []
            weight = sum(100 if request.prompt == "huge" else 1 for request, _ in step)
            error = None
            if weight > self.capacity:
                self.num_failed_steps += 1
                error = EngineFault("a step failed")
                error.__cause__ = torch.cuda.OutOfMemoryError("no room")
            for request, future in step:
                if not future.set_running_or_notify_cancel():
                    continue
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(Result(request.skill, request.prompt))


@pytest.fixture(params=[1, 3, 7])
def engine(request: pytest.FixtureRequest) -> TightEngine:
    built = TightEngine(request.param)
    yield built
    built.close()


def ask(shedder: Shedder, prompt: str = "person") -> Future[Result]:
    return shedder.submit(Request("detect", prompt, None))


def test_every_request_is_answered_although_they_do_not_fit_together(engine: TightEngine) -> None:
    shedder = Shedder(engine.submit, engine.free_memory)
    chance = random.Random(engine.capacity)
    futures = []
    for _ in range(60):
        futures.append(ask(shedder))
        if chance.random() < 0.2:
            time.sleep(0.004)
    assert not wait(futures, timeout=60.0).not_done
    assert all(future.result().prompt == "person" for future in futures)
    # One failed step is one recovery, however many requests were in it.
    assert 1 <= shedder.num_recoveries <= engine.num_failed_steps
    assert engine.num_freed >= shedder.num_recoveries
    assert shedder.limit < MAX_LIMIT


def test_a_request_that_never_fits_fails_and_the_others_do_not(engine: TightEngine) -> None:
    shedder = Shedder(engine.submit, engine.free_memory)
    futures = [ask(shedder, "huge" if index == 4 else "person") for index in range(9)]
    assert not wait(futures, timeout=60.0).not_done
    failed = [index for index, future in enumerate(futures) if future.exception() is not None]
    assert failed == [4]
    assert isinstance(futures[4].exception(), EngineFault)


def test_the_limit_grows_back_when_it_is_calm() -> None:
    engine = TightEngine(capacity=4)
    shedder = Shedder(engine.submit, engine.free_memory)
    wait([ask(shedder) for _ in range(16)], timeout=60.0)
    low = shedder.limit
    assert low <= 4
    engine.capacity = 10_000
    for _ in range(2 * NUM_CALM):
        ask(shedder).result(timeout=60.0)
    assert shedder.limit >= 2 * low
    engine.close()


def test_other_errors_are_passed_on_at_once() -> None:
    engine = TightEngine(capacity=100)
    shedder = Shedder(engine.submit, engine.free_memory)
    with pytest.raises(PromptError, match="never heard of it"):
        ask(shedder, "unknown").result(timeout=60.0)
    assert (shedder.num_recoveries, engine.num_freed) == (0, 0)
    assert ask(shedder).result(timeout=60.0).prompt == "person"
    engine.close()


def test_cancelling_frees_the_place_and_reaches_the_engine() -> None:
    inner: list[Future[Result]] = []

    def submit(request: Request) -> Future[Result]:
        inner.append(Future())
        return inner[-1]

    shedder = Shedder(submit, lambda: None)
    future = ask(shedder)
    assert future.cancel()
    assert inner[0].cancelled()
    other = ask(shedder)
    inner[1].cancel()
    with pytest.raises(RequestCancelled):
        other.result(timeout=60.0)


def test_the_cause_is_found_however_deep() -> None:
    outer, middle = EngineFault("outer"), RuntimeError("middle")
    root = torch.cuda.OutOfMemoryError("root")
    outer.__cause__, middle.__cause__ = middle, root
    assert memory_cause(outer) is root
    assert memory_cause(middle.with_traceback(None)) is root
    assert memory_cause(ValueError("unrelated")) is None


class TightModel:
    """A model that runs out of memory when a step encodes more frames than ``max_frames``."""

    def __init__(self, model: Any, max_frames: int) -> None:
        self._model = model
        self._max_frames = max_frames
        self.largest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode_frames(self, crops: Any, tilings: Any) -> Any:
        self.largest = max(self.largest, len(tilings))
        if len(tilings) > self._max_frames:
            raise torch.cuda.OutOfMemoryError("tried to allocate too much")
        return self._model.encode_frames(crops, tilings)


def test_the_real_engine_survives_and_every_frame_is_answered_in_smaller_steps() -> None:
    checkpoint = load_nano(device="cpu", dtype="float32")
    model = TightModel(checkpoint.model, max_frames=1)
    frames = [
        Frame(np.random.default_rng(seed).integers(0, 255, (64, 64, 3), np.uint8))
        for seed in range(8)
    ]
    config = EngineConfig(max_prefixes_per_step=4)
    requests = [Request("detect", "person", frame, max_crops=0) for frame in frames]
    with Photon(checkpoint) as roomy:
        wanted = [roomy.submit(request).result(timeout=60.0).token_ids for request in requests]
    with Photon(dataclasses.replace(checkpoint, model=model), config=config) as photon:
        shedder = Shedder(photon.submit)
        futures = [shedder.submit(request) for request in requests]
        results = [future.result(timeout=60.0) for future in futures]
        assert [result.token_ids for result in results] == wanted
        assert model.largest > 1, "nothing was tight"
        assert shedder.num_recoveries >= 1
        assert shedder.limit < MAX_LIMIT
        # And the engine goes on as if nothing had been.
        assert shedder.submit(requests[0]).result(timeout=60.0).token_ids == wanted[0]
