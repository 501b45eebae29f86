"""The feeder: newest frame to the engine while there is room, fair to every camera."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from fake_photon import FakePhoton

from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import Result
from photon_ros.ros.answer import Answer, AnswerStatus
from photon_ros.ros.arrival import Arrival, BadFrame, Decoded
from photon_ros.ros.feeder import Decode, Feeder
from photon_ros.ros.live_config import LiveConfig
from photon_ros.ros.mailbox import Mailbox, Taken
from photon_ros.ros.params import NodeConfig


def decode(camera: str, taken: Taken[Arrival], config: NodeConfig) -> Decoded:
    """A frame of the message's first byte; 255 is a bad frame, 254 one nobody thought of."""
    value = taken.item.serialised[0]
    if value == 255:
        raise BadFrame("a white lie")
    if value == 254:
        raise MemoryError("no room for it")
    image = np.full((4, 6, 3), value, np.uint8)
    stamp_ns = taken.item.receive_stamp_ns - 20_000_000
    return Decoded(
        Frame(image, stamp_ns=stamp_ns, camera=camera, sequence=taken.sequence), header=value
    )


class Rig:
    """Mailboxes, a feeder and an engine; answers are settled as the node would."""

    def __init__(
        self,
        photon: FakePhoton,
        cameras: tuple[str, ...],
        config: NodeConfig,
        decode: Decode,
    ) -> None:
        self.photon = photon
        self.live = LiveConfig(config, {"": 7})
        self.mailboxes: dict[str, Mailbox[Arrival]] = {name: Mailbox() for name in cameras}
        self.answers: list[Answer] = []
        self.bad: list[tuple[str, str]] = []
        self.defects: list[Exception] = []
        self.defect = ""
        self.feeder = Feeder(
            photon,
            self.mailboxes,
            decode=decode,
            live_config=self._live_config,
            deliver=self._deliver,
            on_bad_frame=self._note_bad,
            on_defect=self.defects.append,
            max_in_engine=1,
        )

    def _break_at(self, place: str) -> None:
        if self.defect == place:
            self.defect = ""
            raise RuntimeError(place)

    def _live_config(self) -> LiveConfig:
        self._break_at("config")
        return self.live

    def _note_bad(self, camera: str, reason: str) -> None:
        self._break_at("bad frame")
        self.bad.append((camera, reason))

    def _deliver(self, answer: Answer) -> None:
        self._break_at("deliver")
        self.answers.append(answer)
        worst = answer.job.published(answer.status)
        if worst is not None:
            self.mailboxes[answer.job.camera].finish(completed=worst is AnswerStatus.OK)

    def put(self, value: int, camera: str = "", *, age_s: float = 0.0) -> None:
        now_s = time.monotonic() - age_s
        arrival = Arrival(bytes([value]), now_s, 1_000_000_000_000)
        self.mailboxes[camera].put(arrival, now_s=now_s)
        self.feeder.notify()

    def settle(self) -> None:
        wait_until(lambda: all(not box.has_frame for box in self.mailboxes.values()))
        assert self.feeder.wait_idle(60.0)

    def seen(self, camera: str = "") -> list[int]:
        return [a.job.decoded.header for a in self.answers if a.job.camera == camera]


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.001)


@contextmanager
def rig(
    cameras: tuple[str, ...] = ("",),
    *,
    service_s: float = 0.0,
    decode: Decode = decode,
    **changes: object,
) -> Iterator[Rig]:
    photon = FakePhoton(service_s)
    config = NodeConfig().changed({name.replace("__", "."): v for name, v in changes.items()})
    built = Rig(photon, cameras, config, decode)
    try:
        yield built
    finally:
        built.feeder.close()
        photon.close()


def test_one_request_for_each_prompt_shares_one_frame_object() -> None:
    changes: dict[str, object] = {
        "skills": ["detect", "point"],
        "prompts__detect": ["person", "nothing"],
        "prompts__point": ["person"],
        "max_objects": 9,
        "max_crops": 2,
    }
    with rig(**changes) as built:
        built.put(10)
        built.settle()
        requests = built.photon.requests
        assert [(r.skill, r.prompt) for r in requests] == [
            ("detect", "person"), ("detect", "nothing"), ("point", "person"),
        ]  # fmt: skip
        assert len({id(request.frame) for request in requests}) == 1
        assert {(r.max_objects, r.max_crops, r.deadline_s) for r in requests} == {(9, 2, None)}
        assert [answer.skill for answer in built.answers] == ["detect", "point"]
        assert built.answers[0].job.prompt_version == 7


def test_while_the_engine_works_the_newest_frame_waits_and_older_ones_are_dropped() -> None:
    with rig() as built:
        built.photon.may_answer.clear()
        built.put(1)
        wait_until(lambda: len(built.photon.requests) == 1)
        for value in (2, 3, 4):
            built.put(value)
        time.sleep(0.02)
        assert len(built.photon.requests) == 1, "a second frame entered a full engine"
        built.photon.may_answer.set()
        built.settle()
        assert built.seen() == [1, 4]
        counts = built.mailboxes[""].counts()
        assert (counts.completed, counts.overwritten) == (2, 2)
        assert built.answers[1].job.dropped_since_last == 2
        assert counts.balanced


def test_bad_frames_are_counted_and_the_next_frame_is_answered() -> None:
    with rig() as built:
        built.put(255)
        wait_until(lambda: built.mailboxes[""].counts().bad == 1)
        built.put(254)
        wait_until(lambda: built.mailboxes[""].counts().bad == 2)
        built.put(5)
        built.settle()
        assert built.bad == [("", "a white lie"), ("", "MemoryError('no room for it')")]
        assert built.seen() == [5]
        assert built.mailboxes[""].counts().balanced


def test_old_frames_are_not_begun() -> None:
    with rig(max_age_ms=20_000.0) as built:
        built.put(1, age_s=19.99)  # 20 ms of transport on top: 20,010 ms
        wait_until(lambda: built.mailboxes[""].counts().stale == 1)
        built.put(2, age_s=0.0)
        built.settle()
        assert built.seen() == [2]


def test_deadline_counts_from_reception_and_a_missed_one_is_a_timeout() -> None:
    with rig(service_s=1.5, request_timeout_ms=1000.0) as built:
        built.put(1)
        built.settle()
        request = built.photon.requests[0]
        assert request.deadline_s == pytest.approx(built.answers[0].job.receive_s + 1.0)
        assert built.answers[0].status is AnswerStatus.TIMEOUT
        assert built.mailboxes[""].counts().failed == 1


def test_a_frame_that_the_engine_never_started_is_dropped_as_stale() -> None:
    with rig(request_timeout_ms=50.0, skills=["detect", "point"]) as built:
        built.photon.may_answer.clear()
        built.put(1)
        wait_until(lambda: len(built.photon.requests) == 2)
        time.sleep(0.06)
        built.photon.may_answer.set()
        built.settle()
        counts = built.mailboxes[""].counts()
        assert (counts.stale, counts.failed, counts.in_flight) == (1, 0, 0)
        assert not built.answers


def test_failing_prompts_fail_the_frame_and_not_the_feeder() -> None:
    with rig(prompts__detect=["person", "boom"]) as built:
        built.put(1)
        built.settle()
        assert built.answers[0].status is AnswerStatus.ERROR
        built.live = built.live.changed(NodeConfig())
        built.put(2)
        built.settle()
        assert built.answers[1].status is AnswerStatus.OK
        assert built.answers[1].job.prompt_version == 8
        counts = built.mailboxes[""].counts()
        assert (counts.completed, counts.failed) == (1, 1)


def test_prompts_that_the_engine_refuses_at_once_are_answered_with_the_reason() -> None:
    with rig(prompts__detect=["unheard of"]) as built:
        built.put(1)
        built.settle()
        assert "fake does not know 'unheard of'" in built.answers[0].error
        assert built.mailboxes[""].counts().failed == 1


def test_a_defect_in_submitting_is_an_answer_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rig() as built:
        with monkeypatch.context() as patched:
            patched.setattr(built.photon, "submit", lambda request: 1 / 0)
            built.put(1)
            built.settle()
        assert built.answers[0].status is AnswerStatus.ERROR
        assert "ZeroDivisionError" in built.answers[0].error
        built.put(2)
        built.settle()
        assert built.answers[1].status is AnswerStatus.OK


@pytest.mark.parametrize(("place", "value"), [("config", 1), ("bad frame", 255), ("deliver", 1)])
def test_a_defect_anywhere_fails_one_frame_and_not_the_camera(place: str, value: int) -> None:
    with rig() as built:
        built.defect = place
        built.put(value)
        wait_until(lambda: built.mailboxes[""].counts().failed == 1)
        assert built.feeder.wait_idle(60.0)
        assert [str(error) for error in built.defects] == [place]
        built.put(2)
        built.settle()
        assert built.seen() == [2]
        counts = built.mailboxes[""].counts()
        assert (counts.completed, counts.failed, counts.dropped) == (1, 1, 0)
        assert counts.balanced


def test_a_defect_between_two_submissions_cancels_the_first() -> None:
    with rig(prompts__detect=["person", "nothing"]) as built:
        built.photon.may_answer.clear()
        good = built.live.config
        # A count that no request takes, which no parameter lets through either.
        futures: list[Future[Result]] = []
        submit = built.photon.submit

        def submit_and_break(request: Request) -> Future[Result]:
            futures.append(submit(request))
            object.__setattr__(built.live.config, "max_objects", 0)
            return futures[-1]

        built.live = LiveConfig(replace(good))
        built.photon.submit = submit_and_break  # type: ignore[method-assign]
        built.put(1)
        wait_until(lambda: len(built.answers) == 1)
        assert built.feeder.wait_idle(60.0)
        built.photon.submit = submit  # type: ignore[method-assign]
        assert len(built.defects) == 1
        assert "max_objects" in str(built.defects[0])
        assert "max_objects" in built.answers[0].error
        assert [future.cancelled() for future in futures] == [True]
        built.photon.may_answer.set()
        built.live = LiveConfig(good)
        built.put(2)
        built.settle()
        counts = built.mailboxes[""].counts()
        assert (counts.completed, counts.failed) == (1, 1)
        assert counts.balanced


def test_cameras_take_turns_whatever_their_rates() -> None:
    with rig(("fast", "slow"), service_s=0.004) as built:
        stop_s = time.monotonic() + 0.6
        index = 0
        while time.monotonic() < stop_s:
            built.put(1, "fast")
            if index % 5 == 0:
                built.put(2, "slow")
            index += 1
            time.sleep(0.001)
        built.settle()
        share = Counter(answer.job.camera for answer in built.answers)
        # The engine is the bottleneck of both: neither camera starves the other.
        assert share["slow"] >= 0.35 * sum(share.values())
        assert share["fast"] >= 0.35 * sum(share.values())
        assert all(box.counts().balanced for box in built.mailboxes.values())


def test_closing_drops_the_waiting_frame_and_cancelling_answers_the_open_ones() -> None:
    with rig() as built:
        built.photon.may_answer.clear()
        built.put(1)
        wait_until(lambda: len(built.photon.requests) == 1)
        built.put(2)
        built.feeder.close()
        assert not built.feeder.wait_idle(0.01)
        built.feeder.cancel()
        assert built.feeder.wait_idle(1.0)
        assert "EngineStopped: the node stopped before the answer" in built.answers[0].error
        counts = built.mailboxes[""].counts()
        assert (counts.received, counts.failed, counts.reset) == (2, 1, 1)
        assert (counts.in_flight, counts.mailboxed) == (0, 0)


def test_frames_given_up_while_they_are_submitted_leave_no_request_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rig(prompts__detect=["person", "nothing"]) as built:
        built.photon.may_answer.clear()
        is_submitting, may_return = threading.Event(), threading.Event()
        futures: list[Future[Result]] = []
        submit = built.photon.submit

        def slow_submit(request: Request) -> Future[Result]:
            futures.append(submit(request))
            is_submitting.set()
            assert may_return.wait(5.0)
            return futures[-1]

        with monkeypatch.context() as patched:
            patched.setattr(built.photon, "submit", slow_submit)
            built.put(1)
            assert is_submitting.wait(5.0)
            built.feeder.flush("", "a jump")
            assert not built.feeder.wait_idle(0.02), "idle while a request was being submitted"
            may_return.set()
            assert built.feeder.wait_idle(60.0)
        assert [future.cancelled() for future in futures] == [True]
        assert [answer.error for answer in built.answers] == [
            "person: RequestCancelled: a jump; nothing: RequestCancelled: a jump"
        ]
        counts = built.mailboxes[""].counts()
        assert (counts.failed, counts.reset, counts.in_flight) == (1, 0, 0)
        built.photon.may_answer.set()
        built.put(2)
        built.settle()
        assert built.seen() == [1, 2]
        assert built.answers[1].status is AnswerStatus.OK


@pytest.mark.parametrize("give_up", ["flush", "cancel"])
def test_a_frame_that_is_decoded_when_its_camera_is_given_up_is_dropped_once(give_up: str) -> None:
    is_decoding, may_decode = threading.Event(), threading.Event()

    def slow_decode(camera: str, taken: Taken[Arrival], config: NodeConfig) -> Decoded:
        is_decoding.set()
        assert may_decode.wait(5.0)
        return decode(camera, taken, config)

    with rig(("left", "right"), decode=slow_decode) as built:
        built.put(1, "left")
        assert is_decoding.wait(5.0)
        if give_up == "flush":
            built.feeder.flush("left", "a jump")
        else:
            built.feeder.cancel()
        built.put(2, "left")  # came afterwards: wanted
        may_decode.set()
        built.settle()
        counts = built.mailboxes["left"].counts()
        assert (counts.received, counts.reset, counts.completed, counts.failed) == (2, 1, 1, 0)
        assert built.seen("left") == [2]
        assert len(built.photon.requests) == 1


def test_giving_up_one_camera_leaves_the_frame_of_another_that_is_decoded() -> None:
    is_decoding, may_decode = threading.Event(), threading.Event()

    def slow_decode(camera: str, taken: Taken[Arrival], config: NodeConfig) -> Decoded:
        is_decoding.set()
        assert may_decode.wait(5.0)
        return decode(camera, taken, config)

    with rig(("left", "right"), decode=slow_decode) as built:
        built.put(1, "left")
        assert is_decoding.wait(5.0)
        built.feeder.flush("right", "a jump")
        may_decode.set()
        built.settle()
        assert built.seen("left") == [1]


def test_account_is_balanced_at_any_moment_of_an_overload() -> None:
    with rig(service_s=0.001) as built:
        stop = threading.Event()
        snapshots = []

        def watch() -> None:
            while not stop.is_set():
                snapshots.append(built.mailboxes[""].counts())
                time.sleep(0.0005)

        watcher = threading.Thread(target=watch)
        watcher.start()
        for index in range(1500):
            built.put(255 if index % 97 == 0 else index % 200)
            if index % 10 == 0:
                time.sleep(0.001)
        built.settle()
        stop.set()
        watcher.join()
        assert len(snapshots) > 50
        assert all(counts.balanced for counts in snapshots)
        assert any(counts.in_flight for counts in snapshots)
        final = built.mailboxes[""].counts()
        assert final.received == 1500
        assert final.completed > 20
        assert final.overwritten > 20
        assert final.in_flight == final.mailboxed == 0
