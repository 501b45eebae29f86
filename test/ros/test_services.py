"""The services and the action over real DDS: refused with a reason, answered, cancelled."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from action_msgs.msg import GoalStatus
from rclpy.serialization import serialize_message
from ros_world import World, plain_image, wait_until, world
from sensor_msgs.msg import Image
from std_srvs.srv import SetBool, Trigger

from photon_ros.action import Ask
from photon_ros.msg import PhotonDetectionArray
from photon_ros.ros.desk import MAX_QUESTIONS, QuestionDesk
from photon_ros.ros.inquiry import Inquiry
from photon_ros.srv import Infer

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]


def infer(it: World, **fields: Any) -> Infer.Response:
    asked = {"skill": "detect", "prompt": "person", **fields}
    return it.call(Infer, "infer", Infer.Request(**asked))


# enable, reset_stats, flush


def test_disabling_closes_the_input_and_enabling_opens_it_again() -> None:
    with world() as it:
        publisher = it.publisher()
        it.ask(publisher, plain_image(1))
        response = it.call(SetBool, "enable", SetBool.Request(data=False))
        assert (response.success, response.message) == (True, "disabled")
        wait_until(lambda: publisher.get_subscription_count() == 0)
        publisher.publish(plain_image(2))
        wait_until(lambda: [s for s in it.statuses if _value(s, "state") == "disabled"])
        assert it.node.counts("").received == 1
        for _ in range(2):  # twice is no error
            assert it.call(SetBool, "enable", SetBool.Request(data=True)).success
        wait_until(lambda: publisher.get_subscription_count() == 1)
        assert it.ask(publisher, plain_image(3)).frame_seq == 1


def test_reset_begins_the_account_anew_and_running_numbers_go_on() -> None:
    with world() as it:
        publisher = it.publisher()
        for number in range(3):
            it.ask(publisher, plain_image(number))
        bad = plain_image(1)
        bad.encoding = "rgb9"
        publisher.publish(bad)
        wait_until(lambda: it.node.counts("").bad == 1)
        assert it.call(Trigger, "reset_stats", Trigger.Request()).success
        counts = it.node.counts("")
        assert (counts.received, counts.completed, counts.bad) == (0, 0, 0)
        it.statuses.clear()
        status = wait_until(lambda: it.statuses_of("camera"))[0]
        assert not [item.key for item in status.values if item.key.startswith("bad: ")]
        assert it.ask(publisher, plain_image(9)).frame_seq == 4
        assert it.node.counts("").balanced


def test_flush_drops_what_waits_and_gives_up_what_is_in_the_engine() -> None:
    with world() as it:
        it.photon.may_answer.clear()
        publisher = it.publisher()
        publisher.publish(plain_image(1, stamp_ns=1))
        wait_until(lambda: len(it.photon.requests) == 1)
        publisher.publish(plain_image(2, stamp_ns=2))
        wait_until(lambda: it.node.counts("").mailboxed == 1)
        response = it.call(Trigger, "flush", Trigger.Request())
        assert (response.success, response.message) == (True, "flushed on request")
        (answer,) = wait_until(lambda: it.arrays)
        assert answer.status == PhotonDetectionArray.ERROR
        assert "flushed on request" in answer.error
        # An answer is counted a moment after it went out.
        counts = wait_until(lambda: not (now := it.node.counts("")).in_flight and now)
        assert (counts.failed, counts.reset, counts.mailboxed) == (1, 1, 0)
        it.photon.may_answer.set()
        assert it.ask(publisher, plain_image(3, stamp_ns=3)).status == PhotonDetectionArray.OK


def test_services_of_an_inactive_node_refuse_with_its_state() -> None:
    with world(start=False, listen=False) as it:
        for kind, name, request in (
            (SetBool, "enable", SetBool.Request(data=True)),
            (Trigger, "flush", Trigger.Request()),
            (Infer, "infer", Infer.Request(skill="detect", prompt="person")),
        ):
            response = it.call(kind, name, request)
            assert not response.success
            assert response.message == "the node is unconfigured, not active"


# infer


def test_infer_answers_about_the_image_that_is_sent() -> None:
    with world() as it:
        image = plain_image(102, 51, 204, stamp_ns=77, frame_id="arm/optical")
        response = infer(it, image=image)
        assert (response.success, response.message, response.text) == (True, "", "")
        array = response.result
        assert serialize_message(array.header) == serialize_message(image.header)
        assert (array.skill, list(array.prompts)) == ("detect", ["person"])
        assert array.detections[0].x == pytest.approx(102 / 255 * 8)
        assert array.latency.total_ms > 0.0
        assert it.node.counts("").received == 0, "a question is no frame of the camera"
        assert not it.arrays


def test_infer_answers_about_the_latest_frame_of_the_camera_named() -> None:
    with world(cameras="[front, rear]", listen=False) as it:
        it.listen("rear")
        it.ask(it.publisher("rear/image"), plain_image(204, stamp_ns=5))
        response = infer(it, camera="rear", skill="point")
        assert response.success
        assert (response.result.camera, response.result.header.stamp.nanosec) == ("rear", 5)
        assert response.result.detections[0].x == pytest.approx(0.8 * 8)
        assert infer(it, camera="front").message == "no frame has arrived yet"
        message = infer(it, camera="side").message
        assert message == "there is no camera 'side'; known: front, rear"


def test_a_frame_of_before_a_flush_or_an_activation_is_not_asked_about() -> None:
    with world() as it:
        publisher = it.publisher()
        for end in ("flush", "jump", "deactivation"):
            it.ask(publisher, plain_image(1, stamp_ns=100_000_000_000))
            assert infer(it).success, end
            if end == "flush":
                assert it.call(Trigger, "flush", Trigger.Request()).success
            elif end == "deactivation":
                assert it.change_state("DEACTIVATE")
                assert it.change_state("ACTIVATE")
            else:  # the frame that brings the news is the latest from then on
                it.ask(publisher, plain_image(204, stamp_ns=50_000_000_000))
                assert infer(it).result.header.stamp.sec == 50
                continue
            assert infer(it).message == "no frame has arrived yet", end
            wait_until(lambda: publisher.get_subscription_count() == 1)


def test_a_frame_older_than_max_age_ms_is_not_asked_about() -> None:
    with world(max_age_ms=60_000.0) as it:
        it.ask(it.publisher(), plain_image(1, stamp_ns=time.time_ns()))
        assert infer(it).success
        it.set(max_age_ms=1.0)
        time.sleep(0.01)
        response = infer(it)
        assert not response.success
        assert "ms old, and max_age_ms is 1" in response.message
        assert infer(it, image=plain_image(1)).success, "an image that is sent has no age"
        it.set(max_age_ms=0.0)
        assert infer(it).success


def test_infer_answers_in_words() -> None:
    with world() as it:
        response = infer(it, image=plain_image(1), skill="query", prompt="what is it?")
        assert response.success
        assert response.text == "asked: what is it?"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"skill": "fly"}, "there is no skill 'fly'"),
        ({"prompt": "dragon"}, "does not know 'dragon'; it knows: person"),
        ({"prompt": "boom"}, "boom: EngineFault: the device is on fire"),
        ({"image": Image(width=3, height=3, encoding="rgb8", step=4)}, "step is 4 bytes"),
        ({"image": Image(width=3, height=3, encoding="rgb9", step=9)}, "rgb9"),
    ],
)
def test_infer_says_what_is_wrong(fields: dict[str, Any], reason: str) -> None:
    with world(listen=False) as it:
        response = infer(it, **{"image": plain_image(1), **fields})
        assert not response.success
        assert reason in response.message


def test_frames_and_parameters_are_served_while_infer_waits() -> None:
    with world() as it:
        publisher = it.publisher()
        it.photon.may_answer.clear()
        waiting = it.begin(Infer, "infer", Infer.Request(
            skill="detect", prompt="person", image=plain_image(9)
        ))  # fmt: skip
        wait_until(lambda: it.photon.requests)
        (result,) = it.set(max_objects=7)
        assert result.successful
        publisher.publish(plain_image(1))
        wait_until(lambda: it.node.counts("").received == 1)
        assert not waiting.done()
        it.photon.may_answer.set()
        wait_until(waiting.done)
        assert waiting.result().success
        wait_until(lambda: it.arrays)


def test_more_questions_than_there_are_places_are_refused() -> None:
    with world(listen=False) as it:
        it.photon.may_answer.clear()
        request = Infer.Request(skill="detect", prompt="person", image=plain_image(9))
        waiting = [it.begin(Infer, "infer", request) for _ in range(MAX_QUESTIONS)]
        wait_until(lambda: len(it.photon.requests) == MAX_QUESTIONS)
        assert infer(it, image=plain_image(9)).message == "4 questions are open already; ask later"
        it.photon.may_answer.set()
        wait_until(lambda: all(future.done() for future in waiting))
        assert all(future.result().success for future in waiting)
        assert infer(it, image=plain_image(9)).success


def test_a_deactivation_ends_open_questions_within_its_time() -> None:
    with world(listen=False) as it:
        it.photon.may_answer.clear()
        request = Infer.Request(skill="detect", prompt="person", image=plain_image(9))
        waiting = it.begin(Infer, "infer", request)
        wait_until(lambda: it.photon.requests)
        began_s = time.monotonic()
        assert it.change_state("DEACTIVATE")
        wait_until(waiting.done)
        assert time.monotonic() - began_s < 2.0
        assert not waiting.result().success
        assert "the node stopped before the answer" in waiting.result().message


# ask


class Goal:
    """One goal with its feedback."""

    def __init__(self, it: World, **fields: Any) -> None:
        self.pieces: list[str] = []
        self._it = it
        assert it.ask_client.wait_for_server(timeout_sec=60.0)
        goal = Ask.Goal(**{"skill": "query", "prompt": "which?", **fields})
        sent = it.ask_client.send_goal_async(
            goal, feedback_callback=lambda message: self.pieces.append(message.feedback.text)
        )
        wait_until(sent.done, what="the goal's acceptance")
        self.handle = sent.result()

    def result(self, timeout_s: float = 60.0) -> Any:
        future = self.handle.get_result_async()
        wait_until(future.done, timeout_s, "the goal's result")
        return future.result()

    def cancel(self) -> Any:
        future = self.handle.cancel_goal_async()
        wait_until(future.done, what="the cancellation's answer")
        return future.result()


def with_frame(it: World) -> Image:
    image = plain_image(123, stamp_ns=321, frame_id="front/optical")
    it.ask(it.publisher(), image)
    return image


def test_ask_streams_the_words_and_the_result_holds_them_all() -> None:
    with world(service_s=0.02) as it:
        image = with_frame(it)
        goal = Goal(it)
        answer = goal.result()
        assert answer.status == GoalStatus.STATUS_SUCCEEDED
        assert answer.result.text.split() == ["the", "first", "pixel", "is", "123", "of", "255."]
        assert (answer.result.complete, answer.result.error) == (True, "")
        assert serialize_message(answer.result.header) == serialize_message(image.header)
        wait_until(lambda: "".join(goal.pieces) == answer.result.text)
        assert len(goal.pieces) > 3, "it came in one piece"


def test_ask_stops_at_the_tokens_asked_for_and_says_so() -> None:
    with world(max_tokens=5) as it:
        with_frame(it)
        answer = Goal(it, max_tokens=2).result()
        assert answer.result.text.split() == ["the", "first"]
        assert not answer.result.complete
        assert answer.status == GoalStatus.STATUS_SUCCEEDED
        assert Goal(it).result().result.text.split() == ["the", "first", "pixel", "is", "123"]


def test_a_cancelled_ask_ends_at_once_with_what_there_was() -> None:
    with world(service_s=0.05) as it:
        with_frame(it)
        goal = Goal(it)
        wait_until(lambda: len(goal.pieces) >= 1)
        it.photon.may_answer.clear()
        began_s = time.monotonic()
        assert len(goal.cancel().goals_canceling) == 1
        answer = goal.result()
        assert time.monotonic() - began_s < 10.0, "it waited for a word that never comes"
        assert answer.status == GoalStatus.STATUS_CANCELED
        assert answer.result.text.startswith("the")
        assert not answer.result.complete
        it.photon.may_answer.set()
        assert Goal(it).result().status == GoalStatus.STATUS_SUCCEEDED


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"skill": "detect", "prompt": "person"}, "detect does not answer in words"),
        ({"camera": "side"}, "there is no camera 'side'"),
        ({"prompt": "boom"}, "the device is on fire"),
    ],
)
def test_an_ask_that_cannot_be_answered_is_aborted_with_the_reason(
    fields: dict[str, str], reason: str
) -> None:
    with world() as it:
        with_frame(it)
        answer = Goal(it, **fields).result()
        assert answer.status == GoalStatus.STATUS_ABORTED
        assert reason in answer.result.error


def test_an_ask_of_an_inactive_node_or_without_a_frame_is_aborted_with_the_reason() -> None:
    with world(start=False, listen=False) as it:
        assert Goal(it).result().result.error == "the node is unconfigured, not active"
        assert it.change_state("CONFIGURE")
        assert it.change_state("ACTIVATE")
        assert Goal(it).result().result.error == "no frame has arrived yet"


# Out of GPU memory


def test_questions_that_do_not_fit_together_are_asked_again_and_all_answered() -> None:
    with world(service_s=0.03) as it:
        with_frame(it)
        it.photon.max_inside = 1
        goal = Goal(it)
        wait_until(lambda: len(goal.pieces) >= 2)
        response = infer(it, image=plain_image(9))  # beside it: both fail, and are asked again
        assert (response.success, response.message) == (True, "")
        answer = goal.result()
        assert answer.status == GoalStatus.STATUS_SUCCEEDED
        assert answer.result.text.split() == ["the", "first", "pixel", "is", "123", "of", "255."]
        assert (answer.result.complete, answer.result.error) == (True, "")
        # What the first try had written was not written again.
        wait_until(lambda: "".join(goal.pieces) == answer.result.text)
        assert it.photon.num_out_of_memory >= 1
        assert sum(request.skill == "query" for request in it.photon.requests) == 2
        it.listen_diagnostics()
        wait_until(lambda: [s for s in it.statuses if _value(s, "oom_recoveries") not in ("", "0")])


def test_frames_and_a_question_that_do_not_fit_together_are_all_answered() -> None:
    with world(service_s=0.02) as it:
        image = with_frame(it)
        publisher = it.publisher()
        it.photon.max_inside = 1
        goal = Goal(it)
        wait_until(lambda: goal.pieces)
        for number in range(3):
            it.ask(publisher, plain_image(7, stamp_ns=400 + number))
        answer = goal.result()
        assert answer.status == GoalStatus.STATUS_SUCCEEDED
        assert serialize_message(answer.result.header) == serialize_message(image.header)
        assert "".join(answer.result.text.split()[:4]) == "thefirstpixelis"
        assert all(array.status == PhotonDetectionArray.OK for array in it.arrays)
        assert it.photon.num_out_of_memory >= 1
        wait_until(lambda: it.node.counts("").completed == 4)
        assert it.node.counts("").failed == 0


def test_questions_that_never_fit_end_with_the_reason() -> None:
    with world() as it:
        with_frame(it)
        it.photon.max_inside = 0
        reason = "out of GPU memory with nothing else in the engine, at try 1: a step failed"
        answer = Goal(it).result()
        assert (answer.status, answer.result.error) == (GoalStatus.STATUS_ABORTED, reason)
        response = infer(it, image=plain_image(9))
        assert not response.success
        assert reason in response.message
        it.photon.max_inside = 9
        assert Goal(it).result().status == GoalStatus.STATUS_SUCCEEDED


def test_a_question_that_waits_for_room_can_be_cancelled() -> None:
    with world() as it:
        with_frame(it)
        it.photon.max_inside = 1
        it.photon.may_answer.clear()
        first = Goal(it)
        wait_until(lambda: len(it.photon.requests) == 2)
        second = Goal(it)
        wait_until(lambda: len(it.photon.requests) == 3)
        it.photon.may_answer.set()
        wait_until(lambda: it.photon.num_out_of_memory)
        for goal in (first, second):
            goal.cancel()
        answers = [goal.result() for goal in (first, second)]
        ends = (GoalStatus.STATUS_CANCELED, GoalStatus.STATUS_SUCCEEDED)
        assert all(answer.status in ends for answer in answers)
        assert Goal(it).result().status == GoalStatus.STATUS_SUCCEEDED


# Cancelled or stopped at the worst moment


def test_an_ask_cancelled_before_it_is_looked_at_is_never_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_begin = threading.Event()
    begin = QuestionDesk._on_ask

    def late(desk: QuestionDesk, goal_handle: Any) -> Any:
        may_begin.wait(10.0)
        return begin(desk, goal_handle)

    monkeypatch.setattr(QuestionDesk, "_on_ask", late)
    with world() as it:
        with_frame(it)
        it.photon.may_answer.clear()
        goal = Goal(it)
        assert len(goal.cancel().goals_canceling) == 1
        may_begin.set()
        answer = goal.result()
        assert (answer.status, answer.result.text) == (GoalStatus.STATUS_CANCELED, "")
        it.photon.may_answer.set()
        assert Goal(it).result().status == GoalStatus.STATUS_SUCCEEDED


def test_a_question_asked_while_the_node_stops_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_preparing, may_ask = threading.Event(), threading.Event()
    frame = Inquiry.frame

    def slow(inquiry: Inquiry, camera: str, image: Any) -> Any:
        is_preparing.set()
        may_ask.wait(10.0)
        return frame(inquiry, camera, image)

    with world(listen=False) as it:
        it.photon.may_answer.clear()
        with monkeypatch.context() as patched:
            patched.setattr(Inquiry, "frame", slow)
            request = Infer.Request(skill="detect", prompt="person", image=plain_image(9))
            waiting = it.begin(Infer, "infer", request)
            assert is_preparing.wait(5.0)
            assert it.change_state("DEACTIVATE")
            may_ask.set()
            wait_until(waiting.done)
        assert not waiting.result().success
        assert "the node stopped before the answer" in waiting.result().message
        assert infer(it, image=plain_image(9)).message == "the node is inactive, not active"


def test_a_deactivation_aborts_an_open_ask() -> None:
    with world(service_s=0.05) as it:
        with_frame(it)
        goal = Goal(it)
        wait_until(lambda: goal.pieces)
        it.photon.may_answer.clear()
        assert it.change_state("DEACTIVATE")
        answer = goal.result()
        assert answer.status == GoalStatus.STATUS_ABORTED
        assert "the node stopped before the answer" in answer.result.error


def test_questions_follow_namespace_and_remapping() -> None:
    with world(arguments=("-r", "~/infer:=/robot/look"), listen=False) as it:
        client = it.client.create_client(Infer, "/robot/look")
        assert client.wait_for_service(timeout_sec=60.0)
        future = client.call_async(
            Infer.Request(skill="detect", prompt="person", image=plain_image(9))
        )
        wait_until(future.done)
        assert future.result().success


def test_no_thread_is_left_when_the_node_is_gone() -> None:
    before = set(threading.enumerate())
    with world() as it:
        with_frame(it)
        Goal(it).result()
    wait_until(lambda: not [t for t in set(threading.enumerate()) - before if t.is_alive()])


def _value(status: Any, key: str) -> str:
    return next((str(item.value) for item in status.values if item.key == key), "")
