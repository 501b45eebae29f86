"""A stream that is asked again after the GPU's memory ran out, over streams of the test's own."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
import torch

from photon_ros.core.errors import EngineFault, InputError, RequestCancelled
from photon_ros.core.request import Request
from photon_ros.core.result import Result
from photon_ros.ros.retried_stream import RetriedStream
from photon_ros.ros.shedder import MAX_TRIES, Shedder
from photon_ros.text_stream import StreamInbox, TextStream


class Words:
    """Token n is the letter n of the alphabet and a blank."""

    def encode(self, text: str) -> list[int]:
        return [ord(word) - ord("a") for word in text.split()]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + token) + " " for token in ids)


class Tries:
    """Each try says its letters and ends with what is given: a result, or an error."""

    def __init__(self, *tries: tuple[str, Exception | None]) -> None:
        self._tries = list(tries)
        self.num_begun = 0

    def start(self) -> TextStream:
        letters, error = self._tries[min(self.num_begun, len(self._tries) - 1)]
        self.num_begun += 1
        inbox, future = StreamInbox(), Future[Result]()
        stream = TextStream(inbox, future, Words())
        for letter in letters:
            inbox.on_token(ord(letter) - ord("a"))
        future.set_running_or_notify_cancel()
        if error is None:
            future.set_result(Result("query", "?", text=" ".join(letters)))
        else:
            future.set_exception(error)
        return stream


def out_of_memory() -> EngineFault:
    error = EngineFault("a step failed")
    error.__cause__ = torch.cuda.OutOfMemoryError("no room")
    return error


def busy_shedder(num_others: int = 1) -> Shedder:
    """One in which requests are inside that never end, so nobody is alone."""
    shedder = Shedder(lambda request: Future(), lambda: None)
    for _ in range(num_others):
        shedder.submit(Request("query", "?"))
    return shedder


def test_an_undisturbed_answer_comes_piece_by_piece() -> None:
    tries = Tries(("abc", None))
    stream = RetriedStream(tries.start, Shedder(lambda request: Future()).enter)
    assert list(stream) == ["a ", "b ", "c "]
    assert stream.result.result().skill == "query"
    assert tries.num_begun == 1


@pytest.mark.parametrize("num_written", [0, 1, 2, 3])
def test_a_second_try_writes_only_what_the_first_had_not(num_written: int) -> None:
    tries = Tries(("abcd"[:num_written], out_of_memory()), ("abcd", None))
    shedder = busy_shedder(9)  # 10 inside are too many, and 5 still more than there would be
    stream = RetriedStream(tries.start, shedder.enter)
    pieces: list[str] = []
    reader = threading.Thread(target=lambda: pieces.extend(stream))
    reader.start()
    for other in list(shedder._inside):  # the others end, and make room for the second try
        other.future.cancel()
    reader.join(5.0)
    assert not reader.is_alive()
    assert "".join(pieces) == "a b c d "
    assert tries.num_begun == 2
    assert shedder.num_recoveries == 1


def test_an_answer_that_turns_out_otherwise_is_an_error_and_not_a_mixture() -> None:
    tries = Tries(("ab", out_of_memory()), ("axy", None))
    shedder = busy_shedder()
    stream = RetriedStream(tries.start, shedder.enter)
    pieces: list[str] = []
    for other in list(shedder._inside):
        other.future.cancel()
    with pytest.raises(EngineFault, match="asked again the model answers otherwise"):
        pieces.extend(stream)
    assert "x" not in "".join(pieces)


def test_what_never_fits_ends_with_the_reason_and_the_number_of_tries() -> None:
    tries = Tries(("ab", out_of_memory()))
    stream = RetriedStream(tries.start, Shedder(lambda request: Future(), lambda: None).enter)
    pieces = iter(stream)
    assert [next(pieces), next(pieces)] == ["a ", "b "]
    with pytest.raises(EngineFault, match="nothing else in the engine, at try 1: a step failed"):
        next(pieces)


def test_other_errors_end_it_at_once() -> None:
    for error in (InputError("a query needs words"), EngineFault("the device is on fire")):
        tries = Tries(("", error))
        with pytest.raises(type(error), match=str(error)):
            list(RetriedStream(tries.start, busy_shedder().enter))
        assert tries.num_begun == 1


def test_what_cannot_even_begin_is_told_to_whoever_reads() -> None:
    def start() -> TextStream:
        raise InputError("detect does not answer in words")

    with pytest.raises(InputError, match="does not answer in words"):
        list(RetriedStream(start, busy_shedder().enter))


def test_closing_wakes_the_reader_before_during_and_between_tries() -> None:
    future = Future[Result]()
    inbox = StreamInbox()
    begun = threading.Event()

    def start() -> TextStream:
        begun.set()
        return TextStream(inbox, future, Words())

    shedder = busy_shedder()
    stream = RetriedStream(start, shedder.enter)
    assert begun.wait(1.0)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            list(stream)
        except RequestCancelled as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    stream.close()
    reader.join(5.0)
    assert len(errors) == 1
    assert future.cancelled(), "the engine goes on with what nobody wants"
    shedder._limit = 1  # as after a failure: the next one waits outside
    waiting = RetriedStream(start, shedder.enter)
    waiting.close()
    with pytest.raises(RequestCancelled):
        list(waiting)


def test_a_request_that_fails_again_and_again_beside_others_is_given_up() -> None:
    """Others by the hundred are answered meanwhile, so the limit grows back each time."""
    inside: list[tuple[Request, Future[Result]]] = []

    def submit(request: Request) -> Future[Result]:
        inside.append((request, Future()))
        return inside[-1][1]

    shedder = Shedder(submit, lambda: None)
    others = [shedder.submit(Request("query", "?")) for _ in range(400)]
    unlucky = shedder.submit(Request("query", "huge"))
    num_tries = 0
    while not unlucky.done():
        # The unlucky one first, while the others are still inside.
        round_, inside[:] = sorted(inside, key=lambda item: item[0].prompt != "huge"), []
        for request, future in round_:
            future.set_running_or_notify_cancel()
            if request.prompt == "huge":
                num_tries += 1
                future.set_exception(out_of_memory())
            else:
                future.set_result(Result("query", "?"))
        others += [shedder.submit(Request("query", "?")) for _ in range(400)]
        assert num_tries <= MAX_TRIES
    assert isinstance(unlucky.exception(), EngineFault)
    assert f"beside others, at try {MAX_TRIES}" in str(unlucky.exception())
