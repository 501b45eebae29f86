"""perception.launch.py in the real launch system; skipped where that is not installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")
pytest.importorskip("launch_ros", reason="the ROS launch system is not installed")

import rclpy
from rclpy.node import Node
from ros_world import RELIABLE, plain_image, wait_until
from sensor_msgs.msg import Image

from photon_ros.msg import PhotonDetectionArray

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]

LAUNCH_FILE = Path(__file__).parents[2] / "launch" / "perception.launch.py"
# Runs the file as `ros2 launch` does, without needing the ros2 command.
RUNNER = """
import sys
from launch import LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch import LaunchDescription
arguments = [tuple(item.split(":=", 1)) for item in sys.argv[2:]]
source = PythonLaunchDescriptionSource(sys.argv[1])
service = LaunchService()
included = IncludeLaunchDescription(source, launch_arguments=arguments)
service.include_launch_description(LaunchDescription([included]))
sys.exit(service.run())
"""


def launch_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("perception_launch", LAUNCH_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launched(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(LAUNCH_FILE), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def test_arguments_are_declared_with_a_description() -> None:
    description = launch_module().generate_launch_description()
    declared = {item.name: item for item in description.get_launch_arguments()}
    assert set(declared) == {
        "namespace", "image_topic", "image_transport", "params_file", "model_path", "device",
        "skills", "prompts", "use_sim_time", "autostart", "respawn", "log_level", "bag",
    }  # fmt: skip
    assert all(item.description for item in declared.values())


def test_an_empty_argument_keeps_the_value_of_the_file() -> None:
    module = launch_module()
    empty = {name: default for name, (default, _) in module.ARGUMENTS.items()}
    assert module._overrides(empty) == {"use_sim_time": False, "autostart": True}
    given = module._overrides({**empty, "prompts": "red ball, person", "skills": "detect"})
    assert given["prompts.detect"] == ["red ball", "person"]
    assert given["skills"] == ["detect"]
    assert "prompts.point" not in given
    with pytest.raises(ValueError, match="use_sim_time must be true or false, got 'maybe'"):
        module._overrides({**empty, "use_sim_time": "maybe"})


def test_detections_flow_in_the_namespace_and_ctrl_c_ends_everything() -> None:
    arrays: list[PhotonDetectionArray] = []
    node = Node("launch_client")
    node.create_subscription(
        PhotonDetectionArray, "/robot/photon/detections", arrays.append, RELIABLE
    )
    publisher = node.create_publisher(Image, "/cam/image_raw", RELIABLE)
    child = launched("namespace:=robot", "image_topic:=/cam/image_raw", "prompts:=person,red ball")
    try:
        wait_until(lambda: publisher.get_subscription_count() == 1, 60.0, "the node")

        def answered() -> bool:
            publisher.publish(plain_image(40))
            rclpy.spin_once(node, timeout_sec=0.1)
            return bool(arrays)

        wait_until(answered, 20.0, "an answer")
        assert list(arrays[0].prompts) == ["person", "red ball"]
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=15.0)
        assert "process has finished cleanly" in output
        assert "Traceback" not in output
    finally:
        child.kill()
        node.destroy_node()


def test_a_failed_start_says_why() -> None:
    child = launched("model_path:=/nowhere/at/all")
    output, _ = child.communicate(timeout=60.0)
    assert "/nowhere/at/all" in output
    assert "exit code 2" in output
