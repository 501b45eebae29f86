"""Camera images through Fast DDS with and without the profile, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.utilities import get_rmw_implementation_identifier
from ros_world import World, wait_until, world

from photon_ros.ros.compat import PROFILE_VARIABLE

pytestmark = [
    pytest.mark.ros,
    pytest.mark.usefixtures("ros"),
    pytest.mark.skipif(
        "fastrtps" not in get_rmw_implementation_identifier(), reason="it is about Fast DDS"
    ),
]

PROFILE = Path(__file__).parents[2] / "config" / "fastdds.xml"
# A camera driver as most are: 640x480 rgb8, 30 Hz, best effort.
CAMERA = """
import sys, time
import numpy as np
import rclpy
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
rclpy.init()
node = rclpy.create_node("camera")
qos = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
publisher = node.create_publisher(Image, sys.argv[1], qos)
message = Image(width=640, height=480, encoding="rgb8", step=1920)
message.data.frombytes(np.full((480, 640, 3), 99, np.uint8).tobytes())
while publisher.get_subscription_count() == 0:
    time.sleep(0.02)
began_s = time.monotonic()
for number in range(900):
    now_ns = time.time_ns()
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(now_ns, 10**9)
    publisher.publish(message)
    time.sleep(max(0.0, began_s + (number + 1) / 30 - time.monotonic()))
"""


@contextmanager
def camera(it: World, profile: Path | None) -> Iterator[None]:
    environment = {name: value for name, value in os.environ.items() if name != PROFILE_VARIABLE}
    if profile is not None:
        environment[PROFILE_VARIABLE] = str(profile)
    child = subprocess.Popen(
        [sys.executable, "-c", CAMERA, f"{it.namespace}/image"], env=environment
    )
    try:
        yield
    finally:
        child.kill()
        child.wait()


def share_delivered(status: DiagnosticStatus) -> float:
    told = {item.key: float(item.value) for item in status.values if item.key.endswith("_hz")}
    return told["input_hz"] / told["stamp_hz"]


def camera_statuses(it: World) -> list[DiagnosticStatus]:
    return it.statuses_of("camera")


def test_a_camera_without_the_profile_loses_its_frames_and_the_node_says_what_to_do() -> None:
    with world(diagnostics__period=0.5) as it, camera(it, None):
        status = wait_until(
            lambda: [s for s in camera_statuses(it) if "frames per second arrive" in s.message],
            120.0,  # which fragments are lost, and so when it is noticed, is left to chance
            "the warning",
        )[0]
        assert status.level == DiagnosticStatus.WARN
        assert f"camera driver is started with {PROFILE_VARIABLE}=" in status.message
        assert "fastdds.xml" in status.message
        assert share_delivered(status) < 0.5


def test_a_camera_with_the_profile_loses_next_to_nothing() -> None:
    # A deep queue, so that a busy machine is late and loses none.
    with world(diagnostics__period=0.5, qos__depth=200) as it, camera(it, PROFILE):
        wait_until(lambda: it.node.counts("").received > 120, 60.0, "four seconds of images")
        it.statuses.clear()
        status = wait_until(lambda: camera_statuses(it))[0]
        assert "arrive" not in status.message
        delivered = {item.key: item.value for item in status.values}
        assert float(delivered["stamp_hz"]) == pytest.approx(30.0, rel=0.15)
        intake = next(iter(it.node._ports.values())).intake
        assert intake.summary(now_s=time.monotonic()).delivered > 0.8
