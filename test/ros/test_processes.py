"""Node, player and recorder as processes over real DDS, with the embedded model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import SetParameters
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from ros_world import RELIABLE, image_message, wait_until
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image

from photon_ros.ros.conversions import stamp_ns
from photon_ros.srv import Infer

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]

TOPIC = "/camera/image_raw"
SOURCES = str(Path(__file__).parents[2])


@contextmanager
def process(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A child that runs a module of this package."""
    with child_process("-m", f"photon_ros.ros.{module}", *arguments) as child:
        yield child


@contextmanager
def child_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python that is gone afterwards, whatever happened."""
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        cwd=SOURCES,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@contextmanager
def client() -> Iterator[Node]:
    node = Node("process_client")
    try:
        yield node
    finally:
        node.destroy_node()


def lines(path: Path, kind: str) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    rows = [json.loads(line) for line in whole.splitlines()]
    return [row["message"] for row in rows if row["kind"] == kind]


def frames(count: int) -> list[np.ndarray]:
    chance = np.random.default_rng(7)
    return [chance.integers(0, 255, (48, 64, 3), dtype=np.uint8) for _ in range(count)]


def write_bag(path: Path, count: int, period_ns: int, plugin: StoragePlugin) -> list[bytes]:
    """A bag whose recording times start at a second and whose stamps are 7 ns later."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    written = []
    with Writer(path, version=9, storage_plugin=plugin) as writer:
        connection = writer.add_connection(TOPIC, "sensor_msgs/msg/Image", typestore=store)
        for index, pixels in enumerate(frames(count)):
            time_ns = 1_000_000_000 + index * period_ns
            raw = serialize_message(image_message(pixels, stamp_ns=time_ns + 7, frame_id="cam"))
            writer.write(connection, time_ns, raw)
            written.append(raw)
    return written


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_node_ends_within_two_seconds_with_work_in_flight_and_closes_its_account(
    number: signal.Signals, tmp_path: Path
) -> None:
    record = tmp_path / "record.jsonl"
    topics = ("--detections", "/photon/detections", "--stats", "/photon/stats")
    node_arguments = ("--ros-args", "-r", f"image:={TOPIC}", "-p", "qos.reliability:=reliable")
    with (
        client() as node,
        process("recorder", *topics, "--out", str(record)) as recorder,
        process("node", *node_arguments) as photon,
    ):
        publisher = node.create_publisher(Image, TOPIC, RELIABLE)

        def is_up() -> bool:
            assert photon.poll() is None, photon.communicate()[0]
            return bool(publisher.get_subscription_count() == 1)

        wait_until(is_up, 60.0, "the node")
        wait_until(lambda: lines(record, "stats"), 60.0, "the recorder")
        changing = node.create_client(SetParameters, "/photon/set_parameters")
        assert changing.wait_for_service(60.0)
        image = image_message(np.random.default_rng(1).integers(0, 255, (480, 640, 3), np.uint8))
        give_up_s = time.monotonic() + 60.0
        while lines(record, "stats")[-1]["received"] <= 20:
            assert time.monotonic() < give_up_s, "the node receives next to nothing"
            publisher.publish(image)
            time.sleep(0.005)
        # Parameters are served while the model works and images pour in.
        limit = Parameter("max_objects", value=20).to_parameter_msg()
        changed = changing.call_async(SetParameters.Request(parameters=[limit]))
        asked_s = time.monotonic()
        while not changed.done():
            publisher.publish(image)
            rclpy.spin_once(node, timeout_sec=0.005)
            assert time.monotonic() - asked_s < 10.0, "the parameter service starves"
        assert changed.result().results[0].successful
        photon.send_signal(number)
        began_s = time.monotonic()
        for _ in range(5):  # frames go on coming while it ends
            publisher.publish(image)
        assert photon.wait(timeout=10.0) == 0
        assert time.monotonic() - began_s < 2.0
        recorder.send_signal(number)
        assert recorder.wait(timeout=30.0) == 0
    last = lines(record, "stats")[-1]
    assert last["in_flight"] == last["mailboxed"] == 0
    dropped = sum(value for name, value in last.items() if name.startswith("dropped_"))
    assert last["received"] == last["completed"] + last["failed"] + dropped
    assert last["received"] > 20
    answers = lines(record, "detections")
    assert len(answers) == last["completed"] + last["failed"]
    assert last["completed"] >= 1


def test_node_ends_within_two_seconds_with_questions_open_and_pictures_drawn() -> None:
    node_arguments = ("--ros-args", "-r", f"image:={TOPIC}", "-p", "qos.reliability:=reliable")
    pictures: list[Image] = []
    with client() as node, process("node", *node_arguments) as photon:
        publisher = node.create_publisher(Image, TOPIC, RELIABLE)
        node.create_subscription(Image, "/photon/overlay", pictures.append, RELIABLE)
        asking = node.create_client(Infer, "/photon/infer")

        def is_up() -> bool:
            assert photon.poll() is None, photon.communicate()[0]
            return bool(publisher.get_subscription_count() == 1)

        wait_until(is_up, 60.0, "the node")
        assert asking.wait_for_service(60.0)
        image = image_message(np.random.default_rng(1).integers(0, 255, (480, 640, 3), np.uint8))
        stop_s = time.monotonic() + 60.0
        while not pictures:
            assert time.monotonic() < stop_s, "no overlay"
            publisher.publish(image)
            rclpy.spin_once(node, timeout_sec=0.02)
        request = Infer.Request(image=image, skill="detect", prompt="person")
        open_ones = [asking.call_async(request) for _ in range(4)]
        for _ in range(10):
            publisher.publish(image)
            rclpy.spin_once(node, timeout_sec=0.01)
        photon.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        assert photon.wait(timeout=10.0) == 0
        assert time.monotonic() - began_s < 2.0
        output = photon.communicate(timeout=60)[0]
        assert "Traceback" not in output, output
        del open_ones


def test_a_node_that_was_stopped_is_gone_from_the_graph_at_once() -> None:
    """Not 20 s later, when its lease is over: whoever starts it again would see two of them."""

    def is_seen() -> bool:
        return ("photon", "/leaving") in node.get_node_names_and_namespaces()

    with client() as node, process("node", "--ros-args", "-r", "__ns:=/leaving") as photon:
        wait_until(is_seen, what="the node")
        asking = node.create_client(Infer, "/leaving/photon/infer")
        assert asking.wait_for_service(60.0)
        wait_until(lambda: node.count_publishers("/leaving/photon/detections"))
        photon.send_signal(signal.SIGINT)
        assert photon.wait(timeout=30.0) == 0
        wait_until(lambda: not is_seen(), 10.0, "its absence")
        assert node.count_publishers("/leaving/photon/detections") == 0


BUSY_NODE = """
import time, torch
from photon_ros.ros import node

def load(config, device):
    print("loading", flush=True)
    matrix = torch.eye(1500)
    while True:
        matrix = matrix @ matrix
        time.sleep(0.0)

class BusyNode(node.PerceptionNode):
    def __init__(self):
        super().__init__(load)

node.PerceptionNode = BusyNode
node.main()
"""


@pytest.mark.parametrize("autostart", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_node_that_is_loading_a_model_ends_within_two_seconds(
    number: signal.Signals, autostart: bool
) -> None:
    # A name that no process has had: one that ended just so is in the graph for a while.
    namespace = f"/loading_{int(number)}_{int(autostart)}"
    arguments = ["--ros-args", "-p", f"autostart:={str(autostart).lower()}"]
    arguments += ["-r", f"__ns:={namespace}"]
    with client() as node, child_process("-c", BUSY_NODE, *arguments) as photon:
        if not autostart:
            changing = node.create_client(ChangeState, f"{namespace}/photon/change_state")
            assert changing.wait_for_service(60.0)
            configure = Transition(id=Transition.TRANSITION_CONFIGURE)
            changing.call_async(ChangeState.Request(transition=configure))
        assert photon.stdout is not None
        while "loading" not in (line := photon.stdout.readline()):
            assert line, "it never began to load"
        photon.send_signal(number)
        began_s = time.monotonic()
        assert photon.wait(timeout=10.0) == 128 + number
        assert time.monotonic() - began_s < 3.0, "half as much again for a busy machine"
        output = photon.stdout.read()
        assert "stopped in the middle" in output
        assert "Traceback" not in output


def test_picture_writer_saves_the_bytes_under_their_stamps(tmp_path: Path) -> None:
    out = tmp_path / "pictures"
    with (
        client() as node,
        process("picture_writer", "--topic", "/p", "--out", str(out)) as writer,
    ):
        publisher = node.create_publisher(CompressedImage, "/p", RELIABLE)
        wait_until(lambda: publisher.get_subscription_count() == 1, 60.0, "the writer")
        for number, kind in ((5, "rgb8; jpeg compressed bgr8"), (6, "png")):
            message = CompressedImage(format=kind, data=bytes([number] * 9))
            message.header.stamp.nanosec = number
            publisher.publish(message)
        wait_until(lambda: (out / "6.png").exists(), 60.0, "the second picture")
        writer.send_signal(signal.SIGINT)
        assert "wrote 2 pictures" in writer.communicate(timeout=60)[0]
        assert writer.returncode == 0
    assert (out / "5.jpg").read_bytes() == bytes([5] * 9)


def test_picture_writer_refuses_a_folder_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "pictures"
    with process("picture_writer", "--topic", "/p", "--out", str(out)) as writer:
        output, _ = writer.communicate(timeout=60)
    assert writer.returncode == 2
    assert f"cannot write {out}" in output
    assert "Traceback" not in output


def test_node_that_cannot_load_exits_with_code_2_and_says_why(tmp_path: Path) -> None:
    with process("node", "--ros-args", "-p", f"model.path:={tmp_path}") as photon:
        output, _ = photon.communicate(timeout=60)
        assert photon.returncode == 2
        assert "cannot configure" in output
        assert str(tmp_path) in output
        assert "Traceback" not in output


def test_node_with_an_unknown_word_exits_with_code_2_and_lists_the_known_ones() -> None:
    with process("node", "--ros-args", "-p", "prompts.detect:=[unicorn]") as photon:
        output, _ = photon.communicate(timeout=60)
        assert photon.returncode == 2
        assert "unicorn" in output
        assert "person" in output
        assert "Traceback" not in output


@pytest.mark.parametrize("has_metadata", [True, False])
@pytest.mark.parametrize("plugin", [StoragePlugin.SQLITE3, StoragePlugin.MCAP])
def test_player_publishes_the_recorded_bytes_at_the_recorded_pace(
    plugin: StoragePlugin, has_metadata: bool, tmp_path: Path
) -> None:
    written = write_bag(tmp_path / "bag", count=12, period_ns=50_000_000, plugin=plugin)
    if not has_metadata:  # as a recorder that was killed leaves it
        (tmp_path / "bag" / "metadata.yaml").unlink()
    received: list[bytes] = []
    report = tmp_path / "report.json"
    with client() as node:
        node.create_subscription(Image, TOPIC, received.append, RELIABLE, raw=True)
        arguments = (str(tmp_path / "bag"), "--topic", TOPIC, "--rate", "2")
        with process("player", *arguments, "--report", str(report)) as player:
            while player.poll() is None or len(received) < len(written):
                rclpy.spin_once(node, timeout_sec=0.05)
                assert player.poll() in (None, 0), player.communicate()[0]
    assert received == written
    told = json.loads(report.read_text())
    assert told["topic"] == TOPIC
    assert told["message_type"] == "sensor_msgs/msg/Image"
    assert told["num_subscribers"] == 1
    stamps = [1_000_000_007 + index * 50_000_000 for index in range(12)]
    assert [row["stamp_ns"] for row in told["published"]] == stamps
    took_ns = told["published"][-1]["publish_ns"] - told["published"][0]["publish_ns"]
    # 11 gaps of 50 ms, halved. Whoever is late at the first or the last message changes that.
    assert abs(took_ns - 0.275e9) < 1e6 * told["late_ms_max"] + 50e6
    assert [row["bag_time_ns"] for row in told["published"]] == [stamp - 7 for stamp in stamps]


def test_player_tells_the_recorded_time_on_the_clock(tmp_path: Path) -> None:
    write_bag(tmp_path / "bag", count=6, period_ns=100_000_000, plugin=StoragePlugin.MCAP)
    came: list[tuple[str, int]] = []
    every = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
    with client() as node:
        node.create_subscription(
            Clock, "/clock", lambda m: came.append(("clock", stamp_ns(m.clock))), every
        )
        node.create_subscription(
            Image, TOPIC, lambda m: came.append(("image", stamp_ns(m.header.stamp))), every
        )
        arguments = (str(tmp_path / "bag"), "--topic", TOPIC, "--clock")
        with process("player", *arguments) as player:
            while player.poll() is None or sum(kind == "image" for kind, _ in came) < 6:
                rclpy.spin_once(node, timeout_sec=0.05)
                assert player.poll() in (None, 0), player.communicate()[0]
    times = [time_ns for kind, time_ns in came if kind == "clock"]
    assert times == sorted(times)
    assert times[-1] == 1_500_000_000, "the time of the last message"
    # Told between the messages, too; a busy machine does so less often.
    assert len(times) > 12


def test_player_converts_a_ros1_bag(tmp_path: Path) -> None:
    store = get_typestore(Stores.ROS1_NOETIC)
    types = store.types
    (pixels,) = frames(1)
    header = types["std_msgs/msg/Header"](
        seq=5, stamp=types["builtin_interfaces/msg/Time"](sec=3, nanosec=4), frame_id="old"
    )
    message = types["sensor_msgs/msg/Image"](
        header, 48, 64, "rgb8", is_bigendian=0, step=192, data=pixels.reshape(-1)
    )
    with Ros1Writer(tmp_path / "old.bag") as writer:
        connection = writer.add_connection(TOPIC, "sensor_msgs/msg/Image", typestore=store)
        writer.write(connection, 9, store.serialize_ros1(message, "sensor_msgs/msg/Image"))
    received: list[Image] = []
    with client() as node:
        node.create_subscription(Image, "/elsewhere", received.append, RELIABLE)
        arguments = (str(tmp_path / "old.bag"), "--topic", TOPIC, "--remap", "/elsewhere")
        with process("player", *arguments):
            stop_s = time.monotonic() + 60.0
            while not received and time.monotonic() < stop_s:
                rclpy.spin_once(node, timeout_sec=0.1)
    (image,) = received
    assert (image.header.stamp.sec, image.header.stamp.nanosec) == (3, 4)
    assert (image.header.frame_id, image.encoding, image.step) == ("old", "rgb8", 192)
    assert bytes(image.data) == pixels.tobytes()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nowhere", "--topic", TOPIC), "nowhere does not exist"),
        (("bag", "--topic", "/other"), "has no topic /other; its topics: /camera/image_raw"),
        (("broken", "--topic", TOPIC), "broken cannot be read"),
        (("hollow", "--topic", TOPIC), "hollow is not a bag: no metadata.yaml, .mcap or .db3 file"),
        (
            ("bag", "--topic", TOPIC, "--wait-timeout", "0.3"),
            "0 of 1 subscribers of /camera/image_raw came within 0.3 s",
        ),
    ],
)
def test_player_refuses_with_one_clear_line(
    arguments: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    write_bag(tmp_path / "bag", count=1, period_ns=1, plugin=StoragePlugin.SQLITE3)
    (tmp_path / "hollow").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "metadata.yaml").write_text("nonsense")
    with process("player", str(tmp_path / arguments[0]), *arguments[1:]) as player:
        output, _ = player.communicate(timeout=60)
    assert player.returncode == 2
    assert reason in output
    assert len(output.strip().splitlines()) == 1, output


def test_recorder_refuses_a_file_it_cannot_write(tmp_path: Path) -> None:
    out = tmp_path / "missing" / "record.jsonl"
    with process("recorder", "--detections", "/d", "--stats", "/s", "--out", str(out)) as child:
        output, _ = child.communicate(timeout=60)
    assert child.returncode == 2
    assert f"cannot write {out}" in output
