"""Clock jumps, simulated time and stamps that go backward, over real DDS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from ros_world import World, plain_image, wait_until, world
from rosgraph_msgs.msg import Clock

from photon_ros.msg import PhotonDetectionArray

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]


class SimulatedClock:
    """Publishes /clock into a world's own topic."""

    def __init__(self, it: World) -> None:
        self._it = it
        self._publisher = it.client.create_publisher(Clock, "sim_clock", 10)
        wait_until(lambda: self._publisher.get_subscription_count() == 1, what="the node's clock")

    def set(self, seconds: float) -> None:
        message = Clock()
        message.clock.sec = int(seconds)
        message.clock.nanosec = round((seconds % 1) * 1e9)
        self._publisher.publish(message)
        wait_until(
            lambda: abs(self._it.node.get_clock().now().nanoseconds / 1e9 - seconds) < 1e-6,
            what="the new time",
        )


@contextmanager
def simulated(**parameters: object) -> Iterator[tuple[World, SimulatedClock]]:
    arguments = ("-r", "/clock:=sim_clock")
    with world(arguments=arguments, use_sim_time=True, **parameters) as it:
        yield it, SimulatedClock(it)


def camera_value(it: World, key: str) -> str:
    it.statuses.clear()
    status = wait_until(lambda: it.statuses_of("camera"))[0]
    return next(item.value for item in status.values if item.key == key)


def test_stamps_and_durations_under_simulated_time() -> None:
    with simulated(zero_stamp_policy="receive_time") as (it, clock):
        clock.set(1000.0)
        publisher = it.publisher()
        began_s = time.monotonic()
        answer = it.ask(publisher, plain_image(1, stamp_ns=0))
        assert (answer.header.stamp.sec, answer.latency.receive_stamp.sec) == (1000, 1000)
        # Durations are measured on the steady clock, whatever the simulation does.
        assert 0.0 < answer.latency.total_ms < (time.monotonic() - began_s) * 1e3
        answer = it.ask(publisher, plain_image(1, stamp_ns=999_990_000_000))
        assert answer.latency.transport_ms == pytest.approx(10.0, abs=1e-3)
        stats = wait_until(lambda: [s for s in it.stats if s.received == 2])[-1]
        assert stats.header.stamp.sec == 1000, "stats come although simulated time stands still"


def test_a_backward_jump_of_the_clock_flushes_and_is_counted() -> None:
    with simulated() as (it, clock):
        clock.set(5000.0)
        publisher = it.publisher()
        it.photon.may_answer.clear()
        publisher.publish(plain_image(1, stamp_ns=4_999_900_000_000))
        wait_until(lambda: len(it.photon.requests) == 1)
        publisher.publish(plain_image(2, stamp_ns=4_999_950_000_000))
        wait_until(lambda: it.node.counts("").mailboxed == 1)
        clock.set(5001.0)  # forward is no jump
        assert it.node.counts("").mailboxed == 1
        clock.set(3.0)
        (answer,) = wait_until(lambda: it.arrays)
        assert answer.status == PhotonDetectionArray.ERROR
        assert "ROS time jumped backward" in answer.error
        # An answer is counted a moment after it went out.
        counts = wait_until(lambda: not (now := it.node.counts("")).in_flight and now)
        assert (counts.reset, counts.failed) == (1, 1)
        it.photon.may_answer.set()
        answer = it.ask(publisher, plain_image(3, stamp_ns=3_000_000_000))
        assert answer.status == PhotonDetectionArray.OK
        assert it.node.counts("").balanced
        engine = wait_until(
            lambda: [
                item.value
                for s in list(it.statuses)
                for item in s.values
                if item.key == "clock_jumps" and item.value == "1"
            ]
        )
        assert engine


def test_a_camera_whose_stamps_jump_backward_is_flushed_and_the_others_are_not() -> None:
    with world(cameras="[front, rear]", listen=False) as it:
        it.listen("front")
        front, rear = it.publisher("front/image"), it.publisher("rear/image")
        it.photon.may_answer.clear()
        second_ns = 1_000_000_000
        front.publish(plain_image(1, stamp_ns=50 * second_ns))
        rear.publish(plain_image(1, stamp_ns=50 * second_ns))
        wait_until(lambda: len(it.photon.requests) == 2)
        for publisher, camera in ((front, "front"), (rear, "rear")):
            publisher.publish(plain_image(2, stamp_ns=51 * second_ns))
            wait_until(lambda name=camera: it.node.counts(name).mailboxed == 1)
        front.publish(plain_image(3, stamp_ns=10 * second_ns))
        (answer,) = wait_until(lambda: it.arrays)
        assert "stamps jumped backward" in answer.error
        assert it.node.counts("front").reset == 1
        assert (it.node.counts("rear").reset, it.node.counts("rear").in_flight) == (0, 1)
        it.photon.may_answer.set()
        wait_until(lambda: it.arrays[1:])
        assert it.arrays[1].header.stamp.sec == 10
        wait_until(lambda: it.node.counts("rear").completed == 2)


def test_a_driver_whose_stamps_jitter_backward_loses_nothing() -> None:
    with world() as it:
        publisher = it.publisher()
        it.photon.may_answer.clear()
        second_ns = 1_000_000_000
        publisher.publish(plain_image(1, stamp_ns=50 * second_ns))
        wait_until(lambda: it.photon.requests)
        for stamp_ns in (50 * second_ns - 1, 50 * second_ns - 500_000_000 - 1):
            before = it.node.counts("").received
            publisher.publish(plain_image(2, stamp_ns=stamp_ns))
            wait_until(lambda n=before + 1: it.node.counts("").received == n)
        assert it.node.counts("").reset == 0
        assert not it.arrays, "the answer in flight was given up"
        it.photon.may_answer.set()
        wait_until(lambda: len(it.arrays) == 2)
        assert all(array.status == PhotonDetectionArray.OK for array in it.arrays)
        counts = wait_until(lambda: not (now := it.node.counts("")).in_flight and now)
        assert (counts.completed, counts.overwritten, counts.reset) == (2, 1, 0)
        assert camera_value(it, "backward_stamps") == "2"


def test_messages_on_the_clock_that_overtake_one_another_are_no_jump() -> None:
    with simulated() as (it, clock):
        clock.set(100.0)
        publisher = it.publisher()
        it.photon.may_answer.clear()
        publisher.publish(plain_image(1, stamp_ns=99_900_000_000))
        wait_until(lambda: it.photon.requests)
        clock.set(99.6)
        it.photon.may_answer.set()
        (answer,) = wait_until(lambda: it.arrays)
        assert answer.status == PhotonDetectionArray.OK


def test_rolled_over_and_zero_stamps_are_told() -> None:
    with world() as it:
        publisher = it.publisher()
        last_ns = (2**31 - 1) * 1_000_000_000
        for stamp_ns in (last_ns, -(2**31) * 1_000_000_000, 0):
            answer = it.ask(publisher, plain_image(1, stamp_ns=stamp_ns))
            assert answer.status == PhotonDetectionArray.OK
        assert camera_value(it, "backward_stamps") == "1"
        assert camera_value(it, "zero_stamps") == "1"
        wait_until(lambda: it.node.counts("").completed == 3)
