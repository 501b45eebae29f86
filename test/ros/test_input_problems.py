"""What is wrong with a camera's input is told with what to do about it, over real DDS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.context import Context
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from ros_world import PATIENCE_S, RELIABLE, World, plain_image, wait_until, world
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray

from photon_ros.msg import PhotonDetectionArray
from photon_ros.ros.input_problems import MIN_JUMPS

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]

SECOND_NS = 1_000_000_000


def told(it: World, *words: str, name: str = "camera") -> DiagnosticStatus:
    """The first status from now on whose message has all the words."""
    it.statuses.clear()
    return wait_until(
        lambda: [s for s in it.statuses_of(name) if all(word in s.message for word in words)],
        PATIENCE_S,
        f"a status with {words}",
    )[0]


@contextmanager
def driver(it: World, name: str, topic: str = "image", kind: type = Image) -> Iterator[Any]:
    """A publisher in a node and a DDS participant of its own, as another process has it."""
    context = Context()
    rclpy.init(context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = Node(name, namespace=it.namespace, context=context)
    try:
        yield node.create_publisher(kind, topic, RELIABLE)
    finally:
        node.destroy_node()
        context.try_shutdown()


def test_two_cameras_on_one_topic_whose_clocks_differ_warn_and_are_named() -> None:
    with (
        world(diagnostics__period=0.2) as it,
        driver(it, "left_driver") as left,
        driver(it, "right_driver") as right,
    ):
        wait_until(lambda: left.get_subscription_count() and right.get_subscription_count())
        now_ns = time.time_ns()
        for number in range(2 * MIN_JUMPS):
            publisher, behind_ns = ((left, 0), (right, 2 * SECOND_NS))[number % 2]
            before = it.node.counts("").received
            publisher.publish(plain_image(1, stamp_ns=now_ns - behind_ns + number))
            wait_until(lambda n=before + 1: it.node.counts("").received == n, PATIENCE_S)
        status = told(it, "the stamps jumped backward")
        assert status.level == DiagnosticStatus.WARN
        assert f"{MIN_JUMPS} times in 10 s" in status.message
        for name in ("left_driver", "right_driver"):
            assert f"{it.namespace}/{name}" in status.message
        assert f"{it.namespace}/image is published by" in status.message
        assert "keep one of them, or set their clocks" in status.message


def test_a_short_recording_that_begins_again_and_again_warns_and_a_single_jump_does_not() -> None:
    with world(diagnostics__period=0.2) as it:
        publisher = it.publisher()

        def play(times: int) -> None:
            for _ in range(times):
                for second in (100, 101):
                    it.ask(publisher, plain_image(1, stamp_ns=second * SECOND_NS))

        play(2)  # one jump
        assert "jumped" not in told(it, "").message
        play(MIN_JUMPS)
        status = told(it, "the stamps jumped backward")
        assert status.level == DiagnosticStatus.WARN
        assert "a recording that begins again" in status.message


@pytest.mark.parametrize(
    ("transport", "topic", "kind", "carried", "advice"),
    [
        ("raw", "image", CompressedImage, "CompressedImage", "set image_transport to compressed"),
        ("compressed", "image/compressed", Image, "Image", "set image_transport to raw"),
        ("raw", "image", String, "std_msgs/msg/String", "takes sensor_msgs/msg/Image"),
    ],
)
def test_a_topic_of_another_type_is_an_error_that_says_what_to_set(
    transport: str, topic: str, kind: type, carried: str, advice: str
) -> None:
    with world(diagnostics__period=0.2, image_transport=transport) as it:
        with driver(it, "driver", topic, kind):
            status = told(it, f"{it.namespace}/{topic} carries", carried, advice)
            assert status.level == DiagnosticStatus.ERROR
            assert "FASTDDS" not in status.message, "the profile has nothing to do with it"
        assert told(it, "nobody publishes it").level == DiagnosticStatus.WARN


@pytest.mark.parametrize(
    ("transport", "topic", "kind", "advice"),
    [
        ("raw", "image/compressed", CompressedImage, "set image_transport to compressed"),
        ("compressed", "image", Image, "set image_transport to raw"),
    ],
)
def test_images_of_the_other_transport_beside_a_silent_topic_are_pointed_out(
    transport: str, topic: str, kind: type, advice: str
) -> None:
    with world(diagnostics__period=0.2, image_transport=transport) as it:
        it.client.create_publisher(kind, topic, 1)
        status = told(it, f"nobody publishes it, but {it.namespace}/{topic} is there", advice)
        assert status.level == DiagnosticStatus.WARN


def test_stamps_ahead_of_the_nodes_time_warn_and_those_behind_do_not() -> None:
    with world(diagnostics__period=0.2) as it:
        publisher = it.publisher()
        it.ask(publisher, plain_image(1, stamp_ns=time.time_ns() - 50 * SECOND_NS))
        assert told(it, "").level == DiagnosticStatus.OK
        it.ask(publisher, plain_image(1, stamp_ns=time.time_ns() + 60 * SECOND_NS))
        status = told(it, "s ahead of this node's time", "use_sim_time")
        assert status.level == DiagnosticStatus.WARN


def test_markers_that_wait_for_a_calibration_say_where_it_is_missed() -> None:
    with world(diagnostics__period=0.2) as it:
        publisher = it.publisher()
        it.ask(publisher, plain_image(1))
        assert "camera_info" not in told(it, "").message, "nobody looks"
        it.client.create_subscription(MarkerArray, "photon/markers", lambda _: None, RELIABLE)
        words = f"no camera_info has come on {it.namespace}/camera_info, so there are no markers"
        assert told(it, words).level == DiagnosticStatus.WARN
        it.publisher("camera_info", CameraInfo).publish(CameraInfo())
        it.statuses.clear()
        wait_until(lambda: [s for s in it.statuses_of("camera") if "camera_info" not in s.message])


def test_simulated_time_that_never_comes_warns_and_answers_all_the_same() -> None:
    arguments = ("-r", "/clock:=sim_clock")
    with world(arguments=arguments, use_sim_time=True, diagnostics__period=0.2) as it:
        status = told(it, "no time has come on /clock", name="engine")
        assert status.level == DiagnosticStatus.WARN
        answer = it.ask(it.publisher(), plain_image(1, stamp_ns=5 * SECOND_NS))
        assert answer.status == PhotonDetectionArray.OK
        assert "ahead" not in told(it, "").message


def test_nodes_of_two_robots_are_told_apart() -> None:
    with world(diagnostics__period=0.2) as one, world(diagnostics__period=0.2) as other:
        for it in (one, other):
            told(it, "active", name="engine")
        names = {s.name for s in list(one.statuses) if s.name.endswith("photon: engine")}
        assert {f"{it.namespace[1:]}/photon: engine" for it in (one, other)} <= names


def test_a_node_without_a_namespace_is_told_by_its_own_name() -> None:
    with world(arguments=("-r", "__node:=eyes"), listen=False, diagnostics__period=0.2) as it:
        it.listen_diagnostics()
        found = wait_until(lambda: it.statuses_of("engine"), PATIENCE_S)
        assert found[0].name.endswith("/eyes: engine")
