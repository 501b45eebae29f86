"""From futures to answers: one per skill, the worst status of its prompts, exactly once."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.errors import DeadlineExceeded, EngineFault, EngineStopped
from photon_ros.core.frame import Frame
from photon_ros.core.result import EndReason, Result, Timings
from photon_ros.ros.answer import Answer, AnswerStatus, FrameJob
from photon_ros.ros.arrival import Decoded

ASKED = (("detect", ("person", "cup")), ("point", ("door",)))


class Watched:
    """A job with what it reported."""

    def __init__(self, asked: tuple[tuple[str, tuple[str, ...]], ...] = ASKED) -> None:
        self.answers: list[Answer] = []
        self.on_answer: Callable[[Answer], None] = self.answers.append
        self.num_answered = 0
        self.num_shed = 0
        self.job = FrameJob(
            camera="",
            decoded=Decoded(Frame(np.zeros((2, 2, 3), np.uint8)), header=None),
            asked=asked,
            prompt_version=3,
            dropped_since_last=0,
            receive_s=0.0,
            receive_stamp_ns=0,
            mailbox_ms=0.0,
            decode_image_ms=0.0,
            on_answer=lambda answer: self.on_answer(answer),
            on_answered=self._answered,
            on_shed=self._shed,
        )

    def _answered(self, job: FrameJob) -> None:
        assert job is self.job
        self.num_answered += 1

    def _shed(self, job: FrameJob) -> None:
        assert job is self.job
        self.num_shed += 1


def result(prompt: str, end_reason: EndReason = EndReason.EOS, total_ms: float = 1.0) -> Result:
    timings = Timings(total_ms=total_ms, prefill_ms=total_ms, num_tokens=4, zombie_steps=1)
    return Result("detect", prompt, end_reason=end_reason, timings=timings)


def test_a_frame_is_closed_even_if_its_answer_could_not_be_handed_out() -> None:
    watched = Watched((("detect", ("person",)),))

    def fail(answer: Answer) -> None:
        raise RuntimeError("nobody takes it")

    watched.on_answer = fail
    with pytest.raises(RuntimeError, match="nobody takes it"):
        watched.job.settle(0, 0, result("person"))
    assert (watched.num_answered, watched.num_shed) == (1, 0)
    watched.job.settle(0, 0, result("person"))
    assert watched.num_answered == 1


def test_a_skill_is_answered_with_its_last_prompt_and_not_before() -> None:
    watched = Watched()
    watched.job.settle(0, 1, result("cup"))
    assert not watched.answers
    watched.job.settle(1, 0, result("door"))
    assert [answer.skill for answer in watched.answers] == ["point"]
    assert watched.num_answered == 0
    watched.job.settle(0, 0, result("person"))
    assert [answer.skill for answer in watched.answers] == ["point", "detect"]
    assert watched.num_answered == 1
    detect = watched.answers[1]
    assert detect.prompts == ("person", "cup")
    assert [item.prompt for item in detect.results if item is not None] == ["person", "cup"]


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        (result("cup"), AnswerStatus.OK, ""),
        (result("cup", EndReason.MAX_OBJECTS), AnswerStatus.PARTIAL, "cup: ended by max_objects"),
        (result("cup", EndReason.MAX_CONTEXT), AnswerStatus.PARTIAL, "cup: ended by max_context"),
        (DeadlineExceeded("too late"), AnswerStatus.TIMEOUT, "cup: too late"),
        (EngineFault("on fire"), AnswerStatus.ERROR, "cup: EngineFault: on fire"),
    ],
)
def test_the_worst_prompt_decides_the_status(
    outcome: Result | Exception, status: AnswerStatus, reason: str
) -> None:
    watched = Watched()
    watched.job.settle(0, 0, result("person"))
    watched.job.settle(0, 1, outcome)
    answer = watched.answers[0]
    assert (answer.status, answer.error) == (status, reason)
    assert answer.results[0] is not None, "the good prompt keeps its result"
    assert (answer.results[1] is None) == isinstance(outcome, Exception)


def test_a_cancelled_future_is_an_error_with_a_reason() -> None:
    watched = Watched((("detect", ("person",)),))
    future: Future[Result] = Future()
    future.cancel()
    watched.job.receive(0, 0, future)
    assert watched.answers[0].status is AnswerStatus.ERROR
    assert "was cancelled" in watched.answers[0].error


def test_timings_are_those_of_the_slowest_prompt_and_counts_are_summed() -> None:
    watched = Watched()
    watched.job.settle(0, 0, result("person", total_ms=30.0))
    watched.job.settle(0, 1, result("cup", total_ms=20.0))
    timings = watched.answers[0].timings
    assert timings.prefill_ms == 30.0
    assert (timings.num_tokens, timings.zombie_steps) == (8, 2)


def test_abandoning_settles_what_is_open_and_keeps_what_was_answered() -> None:
    watched = Watched()
    watched.job.settle(0, 0, result("person"))
    watched.job.abandon(EngineStopped("closing"))
    assert watched.num_answered == 1
    by_skill = {answer.skill: answer for answer in watched.answers}
    assert by_skill["detect"].error == "cup: EngineStopped: closing"
    assert by_skill["detect"].results[0] is not None
    watched.job.settle(1, 0, result("door"))  # a late result changes nothing
    assert len(watched.answers) == 2
    assert watched.num_answered == 1


def test_the_frame_is_settled_with_its_last_publication_by_the_worst_status() -> None:
    job = Watched().job
    assert job.published(AnswerStatus.PARTIAL) is None
    assert job.published(AnswerStatus.OK) is AnswerStatus.PARTIAL


def test_a_frame_of_which_nothing_was_started_has_no_answers() -> None:
    watched = Watched()
    for skill_index, prompt_index in ((0, 0), (1, 0), (0, 1)):
        watched.job.settle(skill_index, prompt_index, DeadlineExceeded("too late"))
    assert (watched.answers, watched.num_answered, watched.num_shed) == ([], 0, 1)


def test_a_frame_of_which_anything_was_started_has_every_answer() -> None:
    watched = Watched()
    watched.job.settle(1, 0, DeadlineExceeded("never begun"))
    assert not watched.answers, "whether the frame is dropped is not known yet"
    watched.job.settle(0, 0, DeadlineExceeded("never begun"))
    watched.job.settle(0, 1, DeadlineExceeded("too slow", has_started=True))
    assert [answer.skill for answer in watched.answers] == ["point", "detect"]
    assert {answer.status for answer in watched.answers} == {AnswerStatus.TIMEOUT}
    assert watched.answers[1].error == "person: never begun; cup: too slow"
    assert (watched.num_answered, watched.num_shed) == (1, 0)


@given(st.permutations([(0, 0), (0, 1), (1, 0)]), st.sets(st.sampled_from([0, 1, 2])))
def test_shed_or_answered_whatever_comes_first(
    order: list[tuple[int, int]], shed: set[int]
) -> None:
    watched = Watched()
    for place, (skill_index, prompt_index) in enumerate(order):
        outcome = DeadlineExceeded("late") if place in shed else result("x")
        watched.job.settle(skill_index, prompt_index, outcome)
    is_shed = len(shed) == 3
    assert (watched.num_shed, watched.num_answered) == (int(is_shed), int(not is_shed))
    assert sorted(a.skill for a in watched.answers) == ([] if is_shed else ["detect", "point"])
    assert watched.job.answers == watched.answers


@given(st.permutations([(0, 0), (0, 1), (1, 0)]), st.integers(0, 3))
def test_any_order_of_outcomes_gives_each_answer_once(
    order: list[tuple[int, int]], num_before_abandon: int
) -> None:
    watched = Watched()
    for skill_index, prompt_index in order[:num_before_abandon]:
        watched.job.settle(skill_index, prompt_index, result("x"))
    watched.job.abandon(EngineStopped("closing"))
    for skill_index, prompt_index in order:
        watched.job.settle(skill_index, prompt_index, result("x"))
    assert sorted(answer.skill for answer in watched.answers) == ["detect", "point"]
    assert watched.num_answered == 1


def test_outcomes_from_many_threads_give_one_answer() -> None:
    prompts = tuple(f"prompt {index}" for index in range(32))
    watched = Watched((("detect", prompts),))
    barrier = threading.Barrier(len(prompts))

    def settle(index: int) -> None:
        barrier.wait()
        watched.job.settle(0, index, result(prompts[index]))

    threads = [threading.Thread(target=settle, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(watched.answers) == 1
    assert watched.num_answered == 1
    results = watched.answers[0].results
    assert tuple(item.prompt for item in results if item is not None) == prompts
