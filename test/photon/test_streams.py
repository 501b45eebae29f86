"""The reasoning of a stream: given, or what went wrong is raised; never waited for in vain."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from photon_ros.core.errors import CapacityError, DeadlineExceeded, InputError, RequestCancelled
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import Reasoning, Result
from photon_ros.engine.config import EngineConfig
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.photon import Photon
from photon_ros.text_stream import StreamInbox, TextStream

Ask = Callable[[TextStream], Reasoning]


def ask(stream: TextStream) -> Reasoning:
    return stream.reasoning()


def ask_in_a_loop(stream: TextStream) -> Reasoning:
    return asyncio.run(stream.areasoning())


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call gives, or raise what it raises; fail when it takes longer."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(seconds)


def thoughtful(frame: Frame, **options: Any) -> Request:
    return Request("query", "why?", frame, reasoning=True, max_tokens=20, **options)


@pytest.mark.parametrize("reasoning", [ask, ask_in_a_loop])
def test_a_closed_stream_raises_however_often_its_reasoning_is_asked_for(
    photon: Photon, frame: Frame, reasoning: Ask
) -> None:
    stream = photon.stream(thoughtful(frame))
    stream.close()
    for _ in range(3):
        with pytest.raises(RequestCancelled):
            within(5, lambda: reasoning(stream))


@pytest.mark.parametrize("reasoning", [ask, ask_in_a_loop])
def test_a_stream_whose_deadline_passed_raises_however_often_it_is_asked(
    photon: Photon, frame: Frame, reasoning: Ask
) -> None:
    stream = photon.stream(thoughtful(frame, deadline_s=time.monotonic() - 1))
    for _ in range(3):
        with pytest.raises(DeadlineExceeded):
            within(5, lambda: reasoning(stream))


@pytest.mark.parametrize("reasoning", [ask, ask_in_a_loop])
def test_what_the_reader_was_told_is_told_to_who_asks_for_the_reasoning(
    checkpoint: Checkpoint, frame: Frame, reasoning: Ask
) -> None:
    with Photon(checkpoint, config=EngineConfig(num_private_pages=1)) as photon:
        stream = photon.stream(thoughtful(frame))
        with pytest.raises(CapacityError):
            list(stream)
        for _ in range(2):
            with pytest.raises(CapacityError):
                within(5, lambda: reasoning(stream))


@pytest.mark.parametrize("reasoning", [ask, ask_in_a_loop])
def test_a_stream_that_was_closed_when_all_was_said_still_has_its_reasoning(
    photon: Photon, frame: Frame, reasoning: Ask
) -> None:
    stream = photon.stream(thoughtful(frame))
    whole = stream.result.result(20).reasoning
    stream.close()
    assert within(5, lambda: reasoning(stream)) == whole


@pytest.mark.parametrize("reasoning", [ask, ask_in_a_loop])
def test_a_reasoning_may_be_asked_for_after_the_text(
    photon: Photon, frame: Frame, reasoning: Ask
) -> None:
    stream = photon.stream(thoughtful(frame))
    text = "".join(stream)
    result = stream.result.result()
    assert text == result.text
    assert within(5, lambda: reasoning(stream)) == result.reasoning


@pytest.mark.parametrize("reasoning", [ask, ask_in_a_loop])
def test_an_answer_asked_without_reasoning_refuses_it_and_keeps_its_text(
    photon: Photon, frame: Frame, reasoning: Ask
) -> None:
    request = Request("query", "why?", frame, max_tokens=20)
    stream = photon.stream(request)
    with pytest.raises(InputError, match="without reasoning"):
        within(5, lambda: reasoning(stream))
    assert "".join(stream) == photon.submit(request).result().text


def test_who_waits_for_a_reasoning_while_the_stream_is_closed_is_woken() -> None:
    future: Future[Result] = Future()
    stream = TextStream(StreamInbox(), future, None, has_reasoning=True)  # type: ignore[arg-type]
    threading.Timer(0.2, stream.close).start()
    with pytest.raises(RequestCancelled):
        within(5, stream.reasoning)
