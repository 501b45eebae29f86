"""The list of open questions: whoever gives one up reaches it, whenever that is."""

from __future__ import annotations

import threading

import pytest

from photon_ros.core.errors import PhotonError
from photon_ros.ros.open_questions import OpenQuestion, OpenQuestions


def test_what_gives_a_question_up_is_called_once_whichever_comes_first() -> None:
    for is_told_first in (True, False):
        calls: list[str] = []
        question = OpenQuestion()
        if is_told_first:
            question.on_give_up(lambda kept=calls: kept.append("over"))
        question.cancel()
        question.give_up()
        question.cancel()
        if not is_told_first:
            question.on_give_up(lambda kept=calls: kept.append("over"))
        assert calls == ["over"]
        assert (question.was_cancelled, question.was_given_up) == (True, False)


def test_a_cancellation_that_comes_before_the_question_holds() -> None:
    questions = OpenQuestions(2)
    questions.cancel("early")
    with questions.opened("early") as question:
        assert question.was_cancelled
    with questions.opened("early") as question:
        assert not question.was_cancelled, "it was for one question"
        questions.cancel("early")
        assert question.was_cancelled


def test_giving_up_all_reaches_those_that_are_open_and_no_later_one() -> None:
    questions = OpenQuestions(3)
    with questions.opened("a") as a, questions.opened("b") as b:
        questions.give_up_all()
        assert (a.was_given_up, b.was_given_up) == (True, True)
    with questions.opened("a") as later:
        assert not later.was_given_up


def test_places_are_limited_and_come_back() -> None:
    questions = OpenQuestions(2)
    with questions.opened(1), questions.opened(2):
        assert not questions.has_place
        with pytest.raises(PhotonError, match="2 questions are open already"), questions.opened(3):
            pass
    assert questions.has_place
    with pytest.raises(ValueError, match="inside"), questions.opened(4):
        raise ValueError("inside")
    with questions.opened(1), questions.opened(2):
        pass


def test_no_question_slips_through_while_all_are_given_up() -> None:
    """Opened by many threads while another gives up all: each is given up, or opened after it."""
    questions = OpenQuestions(1000)
    is_stopped = threading.Event()
    missed: list[int] = []

    def ask(number: int) -> None:
        with questions.opened(number) as question:
            if is_stopped.is_set():  # as the node, which is inactive by then, would refuse it
                return
            ended = threading.Event()
            question.on_give_up(ended.set)
            if not ended.wait(5.0):
                missed.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(100)]
    for thread in threads[:50]:
        thread.start()
    is_stopped.set()
    questions.give_up_all()
    for thread in threads[50:]:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missed
