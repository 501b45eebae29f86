"""perception.launch.py in the real launch system; skipped where that is not installed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")
pytest.importorskip("launch_ros", reason="the ROS launch system is not installed")

import cv2
import numpy as np
import rclpy
from launch import LaunchContext
from launch.actions import ExecuteProcess
from launch.utilities import perform_substitutions
from lifecycle_msgs.msg import State
from lifecycle_msgs.srv import GetState
from rcl_interfaces.srv import GetParameters
from rclpy.node import Node
from ros_world import RELIABLE, plain_image, wait_until
from sensor_msgs.msg import Image

from photon_ros.msg import PhotonDetectionArray
from photon_ros.replay.bag_writer import BagOptions, write_bag
from photon_ros.ros import launching

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]

ROOT = Path(__file__).parents[2]
LAUNCH_FILE = ROOT / "launch" / "perception.launch.py"
REPLAY_FILE = ROOT / "launch" / "replay.launch.py"
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


def launch_module(path: Path = LAUNCH_FILE) -> ModuleType:
    spec = importlib.util.spec_from_file_location("launch_file", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launched(*arguments: str, path: Path = LAUNCH_FILE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def test_arguments_are_declared_with_a_description() -> None:
    description = launch_module().generate_launch_description()
    declared = {item.name: item for item in description.get_launch_arguments()}
    assert set(declared) == {
        "namespace", "image_topic", "camera_info_topic", "cameras_file", "image_transport",
        "params_file", "model_path", "device", "skills", "prompts", "use_sim_time", "autostart",
        "overlay", "rviz", "respawn", "log_level", "bag",
    }  # fmt: skip
    assert all(item.description for item in declared.values())
    replay = launch_module(REPLAY_FILE)
    described = replay.generate_launch_description().get_launch_arguments()
    assert {item.name for item in described} == set(replay.ARGUMENTS)
    # What the replay hands on is what the other file takes.
    assert set(launching.NODE_ARGUMENTS) <= set(declared)
    (bag,) = (item for item in described if item.name == "bag")
    assert bag.default_value is None, "a replay needs a bag"


def test_an_empty_argument_keeps_the_value_of_the_file() -> None:
    module = launch_module()
    empty = {name: default for name, (default, _) in module.ARGUMENTS.items()}
    assert module._overrides(empty) == {}
    assert module._overrides({**empty, "autostart": "false"}) == {"autostart": False}
    assert module._overrides({**empty, "use_sim_time": "true"}) == {"use_sim_time": True}
    given = module._overrides({**empty, "prompts": "red ball, person", "skills": "detect"})
    assert given["prompts.detect"] == ["red ball", "person"]
    assert given["skills"] == ["detect"]
    assert "prompts.point" not in given
    assert module._overrides({**empty, "overlay": "False"})["overlay.enable"] is False
    with pytest.raises(ValueError, match="use_sim_time must be true or false, got 'maybe'"):
        module._overrides({**empty, "use_sim_time": "maybe"})


@pytest.mark.parametrize(
    ("text", "argument", "wanted"),
    [
        ("{/**: {ros__parameters: {use_sim_time: true}}}", "", True),
        ("{/**: {ros__parameters: {use_sim_time: true}}}", "false", False),
        ("{/robot/photon: {ros__parameters: {use_sim_time: true}}}", "", True),
        ("{/other/photon: {ros__parameters: {use_sim_time: true}}}", "", False),
        ("{/**: {ros__parameters: {autostart: false}}}", "", False),
        ("{/**: {ros__parameters: {autostart: false}}}", "true", True),
        ("", "", False),
    ],
)
def test_a_bag_and_rviz_take_the_time_that_the_node_takes(
    text: str, argument: str, wanted: bool, tmp_path: Path
) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    given = {"params_file": str(path), "use_sim_time": argument, "namespace": "robot"}
    assert launch_module()._is_simulated(given) is wanted


def test_a_file_that_says_autostart_false_leaves_the_node_unconfigured(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("/**: {ros__parameters: {autostart: false, use_sim_time: true}}\n")
    node = Node("launch_client")
    states = node.create_client(GetState, "/photon/get_state")
    parameters = node.create_client(GetParameters, "/photon/get_parameters")
    child = launched(f"params_file:={path}")
    try:
        assert states.wait_for_service(60.0)
        time.sleep(3.0)  # enough for an automatic start to have begun
        asked = states.call_async(GetState.Request())
        rclpy.spin_until_future_complete(node, asked, timeout_sec=20.0)
        assert asked.result().current_state.id == State.PRIMARY_STATE_UNCONFIGURED
        told = parameters.call_async(GetParameters.Request(names=["use_sim_time", "autostart"]))
        rclpy.spin_until_future_complete(node, told, timeout_sec=20.0)
        assert [value.bool_value for value in told.result().values] == [True, False]
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30.0)
        node.destroy_node()


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

        wait_until(answered, 60.0, "an answer")
        assert list(arrays[0].prompts) == ["person", "red ball"]
        child.send_signal(signal.SIGINT)
        output, _ = child.communicate(timeout=60.0)
        assert "process has finished cleanly" in output
        assert "Traceback" not in output
    finally:
        child.kill()
        node.destroy_node()


@pytest.mark.parametrize(
    ("image_topic", "camera_info_topic", "wanted"),
    [
        ("image", "", "camera_info"),
        ("/cam/image_raw", "", "/cam/camera_info"),
        ("cam/image_raw", "", "cam/camera_info"),
        ("/cam/image_raw/compressed", "", "/cam/camera_info"),
        ("/cam/image_raw", "/calibration", "/calibration"),
    ],
)
def test_camera_info_is_beside_the_image_unless_it_is_named(
    image_topic: str, camera_info_topic: str, wanted: str
) -> None:
    given = {"image_topic": image_topic, "camera_info_topic": camera_info_topic}
    assert launch_module()._remappings(given, {}) == [
        ("image", image_topic),
        ("camera_info", wanted),
    ]


def test_a_cameras_file_names_cameras_and_remaps_their_topics() -> None:
    module = launch_module()
    cameras = module._cameras(str(ROOT / "config" / "cameras.yaml"))
    assert cameras["front"] == {"image": "/front/image_raw", "camera_info": "/front/camera_info"}
    assert list(cameras) == ["front", "rear"]


def test_a_cameras_calibration_is_beside_its_image_unless_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cameras.yaml"
    path.write_text("a: {image: /a/image_raw}\nb: {image: /b/image, camera_info: /c}\n")
    cameras = launch_module()._cameras(str(path))
    assert launch_module()._remappings({}, cameras) == [
        ("a/image", "/a/image_raw"),
        ("a/camera_info", "/a/camera_info"),
        ("b/image", "/b/image"),
        ("b/camera_info", "/c"),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must map camera names"),
        ("[front]", "must map camera names"),
        ("front cam: {image: /a}", "'front cam' is not a valid camera name"),
        ("front: {camera_info: /a}", "front needs image"),
        ("front: {image: /a, depth: /b}", "and nothing else"),
        ("front: {image: 5}", "the topics of front must be strings"),
    ],
)
def test_a_wrong_cameras_file_is_refused_with_the_reason(
    text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "cameras.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        launch_module()._cameras(str(path))


def test_two_cameras_of_a_file_are_answered_each_on_its_topic(tmp_path: Path) -> None:
    path = tmp_path / "cameras.yaml"
    path.write_text("left: {image: /l/image_raw}\nright: {image: /r/image_raw}\n")
    node = Node("launch_client")
    arrays: dict[str, list[PhotonDetectionArray]] = {"left": [], "right": []}
    for name, kept in arrays.items():
        node.create_subscription(
            PhotonDetectionArray, f"/photon/{name}/detections", kept.append, RELIABLE
        )
    publishers = [node.create_publisher(Image, f"/{side}/image_raw", RELIABLE) for side in "lr"]
    child = launched(f"cameras_file:={path}")
    try:
        wait_until(lambda: all(p.get_subscription_count() for p in publishers), 60.0, "the node")

        def answered() -> bool:
            for publisher in publishers:
                publisher.publish(plain_image(40))
            rclpy.spin_once(node, timeout_sec=0.1)
            return all(arrays.values())

        wait_until(answered, 60.0, "both answers")
        assert {name: kept[0].camera for name, kept in arrays.items()} == {
            "left": "left",
            "right": "right",
        }
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=60.0)
        node.destroy_node()


def test_a_replay_writes_the_overlays_of_a_bag_and_ends_with_it(tmp_path: Path) -> None:
    pixels = np.random.default_rng(4).integers(0, 255, (8, 96, 128, 3), np.uint8)
    write_bag(tmp_path / "bag", iter(pixels), Fraction(4), BagOptions(topic="/cam/image_raw"))
    out = tmp_path / "pictures"
    child = launched(
        f"bag:={tmp_path / 'bag'}",
        "image_topic:=/cam/image_raw",
        "image_transport:=compressed",
        f"out:={out}",
        path=REPLAY_FILE,
    )
    output, _ = child.communicate(timeout=90.0)
    assert "Traceback" not in output, output
    assert output.count("published 8 messages") == 1, "it was played once"
    pictures = sorted(out.glob("*.jpg"))
    assert len(pictures) >= 5, output  # the first may come before the writer is matched
    assert cv2.imread(str(pictures[-1])).shape == (96, 128, 3)


def test_a_bag_is_played_into_the_namespace_with_its_own_time(tmp_path: Path) -> None:
    pixels = np.random.default_rng(4).integers(0, 255, (30, 48, 64, 3), np.uint8)
    write_bag(tmp_path / "bag", iter(pixels), Fraction(5), BagOptions(topic="/cam/image_raw"))
    arrays: list[PhotonDetectionArray] = []
    node = Node("launch_client")
    node.create_subscription(
        PhotonDetectionArray, "/robot/photon/detections", arrays.append, RELIABLE
    )
    child = launched(
        "namespace:=robot",
        "image_topic:=cam/image_raw",
        "image_transport:=compressed",
        f"bag:={tmp_path / 'bag'}",
        "use_sim_time:=true",
    )
    try:

        def has_recorded_time() -> bool:
            rclpy.spin_once(node, timeout_sec=0.1)
            assert child.poll() is None, child.communicate()[0]
            return any(0.0 <= array.latency.transport_ms < 5000.0 for array in arrays)

        wait_until(has_recorded_time, 90.0, "an answer that was received at its recorded time")
    finally:
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30.0)
        node.destroy_node()


@pytest.mark.parametrize(
    ("namespace", "topic", "recorded", "published"),
    [
        ("", "image", "/image", "/image"),
        ("", "/cam/image_raw", "/cam/image_raw", "/cam/image_raw"),
        ("robot", "cam/image_raw", "/cam/image_raw", "/robot/cam/image_raw"),
        ("/robot/", "/cam/image_raw", "/cam/image_raw", "/cam/image_raw"),
    ],
)
def test_a_bag_goes_where_the_node_listens(
    namespace: str, topic: str, recorded: str, published: str
) -> None:
    given = {"namespace": namespace, "image_topic": topic, "bag": "b", "image_transport": ""}
    words = command(launching.bag_player(given, has_clock=True))
    assert words[words.index("--topic") + 1] == recorded
    assert words[words.index("--remap") + 1] == published
    assert words[-1] == "--clock"
    assert "--clock" not in command(launching.bag_player(given))
    for transport_topic in (topic, f"{topic}/compressed"):
        named = {**given, "image_transport": "compressed", "image_topic": transport_topic}
        words = command(launching.bag_player(named))
        assert words[words.index("--topic") + 1] == f"{recorded}/compressed"


def command(action: ExecuteProcess) -> list[str]:
    """What an action runs."""
    context = LaunchContext()
    return [perform_substitutions(context, word) for word in action.cmd]


def test_a_failed_start_says_why() -> None:
    child = launched("model_path:=/nowhere/at/all")
    output, _ = child.communicate(timeout=60.0)
    assert "/nowhere/at/all" in output
    assert "exit code 2" in output
