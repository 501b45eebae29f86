"""A Photon that nobody closed: its answers still come, then it goes, with model and threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from photon_ros.core.errors import RequestCancelled
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.photon import Photon


class Held:
    """The model of a checkpoint under a name of its own, so that one can see it go."""

    def __init__(self, checkpoint: Checkpoint, delay_s: float = 0.0) -> None:
        self._model, self._delay_s = checkpoint.model, delay_s

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def decode(self, *arguments: object) -> object:
        time.sleep(self._delay_s)
        return self._model.decode(*arguments)  # type: ignore[arg-type]


def opened(checkpoint: Checkpoint, delay_s: float = 0.0) -> tuple[Photon, weakref.ref[Held]]:
    model = Held(checkpoint, delay_s)
    return Photon(replace(checkpoint, model=model)), weakref.ref(model)


def photon_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("photon-")}


def becomes_true(condition: Callable[[], bool], timeout_s: float = 15.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline_s:
        gc.collect()
        time.sleep(0.02)
    return condition()


def test_a_photon_that_is_dropped_goes_with_its_model_and_its_threads(
    checkpoint: Checkpoint, frame: Frame
) -> None:
    before = photon_threads()
    models = []
    for is_used in (True, False, True):
        photon, model = opened(checkpoint)
        if is_used:
            photon.point(frame, "cup", max_objects=2)
        models.append(model)
        assert photon_threads() > before
        del photon
    assert becomes_true(lambda: photon_threads() <= before)
    assert becomes_true(lambda: not any(model() for model in models))


def test_who_keeps_an_answers_future_does_not_keep_the_model(
    checkpoint: Checkpoint, frame: Frame
) -> None:
    photon, model = opened(checkpoint)
    future = photon.submit(Request("point", "cup", frame, max_objects=2))
    stream = photon.stream(Request("query", "what?", frame, max_tokens=5))
    future.result(20)
    list(stream)
    del photon
    assert becomes_true(lambda: model() is None)
    assert future.result().skill == "point"


def test_a_cycle_of_references_goes_too(checkpoint: Checkpoint) -> None:
    before = photon_threads()
    photon, model = opened(checkpoint)
    photon.itself = photon  # type: ignore[attr-defined]
    del photon
    assert becomes_true(lambda: model() is None)
    assert becomes_true(lambda: photon_threads() <= before)


@pytest.mark.parametrize("has_frame", [True, False])
def test_what_was_asked_before_is_answered_all_the_same(
    checkpoint: Checkpoint, has_frame: bool
) -> None:
    before = photon_threads()
    rng = np.random.default_rng(1)
    frames = [Frame(rng.integers(0, 255, (400, 600, 3), dtype=np.uint8)) for _ in range(3)]
    requests = [Request("query", "what?", f if has_frame else None, max_tokens=9) for f in frames]
    with Photon(checkpoint) as photon:
        right = [photon.submit(request).result(20).token_ids for request in requests]
    photon, model = opened(checkpoint, delay_s=0.01)
    futures = [photon.submit(request) for request in requests]
    del photon
    assert [future.result(20).token_ids for future in futures] == right
    assert becomes_true(lambda: model() is None)
    assert becomes_true(lambda: photon_threads() <= before)


def test_what_was_asked_before_can_still_be_cancelled(checkpoint: Checkpoint) -> None:
    photon, model = opened(checkpoint, delay_s=0.05)
    request = Request("query", "what?", None, max_tokens=90, temperature=0.7, seed=11)
    stream = photon.stream(request)
    next(stream)
    del photon
    gc.collect()
    stream.result.cancel()
    with pytest.raises(RequestCancelled):
        list(stream)
    assert becomes_true(lambda: model() is None)


def test_a_closed_photon_goes_too(checkpoint: Checkpoint, frame: Frame) -> None:
    photon, model = opened(checkpoint)
    photon.point(frame, "cup", max_objects=1)
    photon.close()
    assert photon.engine_stats.num_tokens
    del photon
    assert becomes_true(lambda: model() is None)


END = {
    "idle": "",
    "asked": "futures = [photon.submit(request) for _ in range(5)]",
    "dropped": "future = photon.submit(request); del photon",
    "in a cycle": "photon.itself = photon; del photon",
}


@pytest.mark.parametrize("end", END)
def test_an_interpreter_ends_although_nobody_closed(end: str) -> None:
    script = f"""
import numpy as np
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.photon import Photon
photon = Photon("nano")
request = Request("detect", "person", Frame(np.zeros((60, 80, 3), np.uint8)))
{END[end]}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], timeout=120, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
