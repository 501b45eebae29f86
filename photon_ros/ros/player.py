"""Player: publishes the recorded messages of one topic at their recorded pace.

    python -m photon_ros.ros.player BAG --topic TOPIC [--remap TOPIC] [--rate R]
        [--wait-for-subscribers N] [--wait-timeout S] [--qos reliable|best_effort]
        [--clock] [--report FILE.json]

The serialised bytes are published as they were recorded, so headers and stamps are the bag's;
messages of a ROS 1 bag are converted first. It waits for the subscribers before the first
message and until they acknowledged the last one. With --clock the recorded time is published on
/clock while it plays, for nodes with use_sim_time. The report is {"topic", "message_type", "rate",
"num_subscribers", "published": [{"stamp_ns", "publish_ns", "bag_time_ns"}], "late_ms_max"};
``publish_ns`` is the ROS time of publishing. SIGINT or SIGTERM ends it early with code 0; the
report then holds what was published. Exit code 2: the bag or the topic cannot be played, or the
subscribers did not come.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rosbags.highlevel import AnyReader
from rosbags.interfaces import Connection
from rosbags.typesys import Stores, get_typestore
from rosgraph_msgs.msg import Clock

from photon_ros.bag_files import storage_files
from photon_ros.core.errors import BagError
from photon_ros.ros.conversions import message_type, time_message
from photon_ros.ros.intake import cdr_stamp_ns
from photon_ros.ros.pace import Pace
from photon_ros.ros.process import exit_now, ros_process

_TRANSPORTS = {
    "sensor_msgs/msg/Image": "raw",
    "sensor_msgs/msg/CompressedImage": "compressed",
}
_RELIABILITIES = {
    "reliable": ReliabilityPolicy.RELIABLE,
    "best_effort": ReliabilityPolicy.BEST_EFFORT,
}
ACK_TIMEOUT_S = 5.0
# The other side of a match stands a moment later; what is published before reaches it late.
SETTLE_S = 0.5


@dataclass(slots=True)
class Report:
    """What was published; grows while playing."""

    topic: str
    message_type: str
    rate: float
    num_subscribers: int = 0
    published: list[dict[str, int]] = field(default_factory=list)
    late_ms_max: float = 0.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """One message of the bag: recording time, header stamp and CDR bytes."""

    bag_time_ns: int
    header_stamp_ns: int
    cdr: bytes


class Recording:
    """The image messages of one topic of a bag, in recorded order.

    Raises:
        BagError: the bag cannot be read, or has no image messages on ``topic``.
    """

    def __init__(self, bag: Path, topic: str) -> None:
        files = storage_files(bag)
        self._ros2_types = get_typestore(Stores.ROS2_HUMBLE)
        try:
            self._reader = AnyReader(files, default_typestore=self._ros2_types)
            self._reader.open()
        except Exception as error:  # the reader raises whatever its storage library raises
            raise BagError(f"{bag} cannot be read: {error}") from error
        self._connections = [item for item in self._reader.connections if item.topic == topic]
        if not self._connections:
            topics = ", ".join(sorted(self._reader.topics)) or "none"
            self.close()
            raise BagError(f"{bag} has no topic {topic}; its topics: {topics}")
        self.message_type = self._connections[0].msgtype
        if self.message_type not in _TRANSPORTS:
            self.close()
            allowed = " or ".join(_TRANSPORTS)
            raise BagError(f"{topic} has {self.message_type}, and images are {allowed}")

    def messages(self) -> Iterator[Recorded]:
        """Yield the messages; raise BagError where the recording is broken."""
        try:
            for connection, bag_time_ns, raw in self._reader.messages(self._connections):
                cdr = self._cdr(connection, raw)
                yield Recorded(bag_time_ns, _stamp_of(cdr), cdr)
        except BagError:
            raise
        except Exception as error:  # as above
            raise BagError(f"the recording is broken: {error}") from error

    def _cdr(self, connection: Connection, raw: bytes | memoryview) -> bytes:
        if self._reader.is2:
            return bytes(raw)
        return bytes(self._ros2_types.ros1_to_cdr(raw, connection.msgtype))

    def close(self) -> None:
        """Close the files."""
        self._reader.close()


def _stamp_of(cdr: bytes) -> int:
    """Return the header's stamp in ns."""
    stamp_ns = cdr_stamp_ns(cdr)
    if stamp_ns is None:
        raise BagError(f"a message of {len(cdr)} bytes has no header")
    return stamp_ns


def play(
    node: Node,
    publisher: Any,
    recording: Recording,
    report: Report,
    stop: Event,
    publish_clock: Callable[[int], None] | None = None,
) -> None:
    """Publish everything at the recorded pace, until ``stop``."""
    pace: Pace | None = None
    for item in recording.messages():
        if pace is None:
            pace = Pace(time.monotonic(), item.bag_time_ns, report.rate, publish_clock)
        late_s = pace.wait(item.bag_time_ns, stop)
        if late_s is None:
            return
        report.late_ms_max = max(report.late_ms_max, late_s * 1e3)
        publish_ns = node.get_clock().now().nanoseconds
        publisher.publish(item.cdr)
        report.published.append(
            {
                "stamp_ns": item.header_stamp_ns,
                "publish_ns": publish_ns,
                "bag_time_ns": item.bag_time_ns,
            }
        )


def _clock(node: Node) -> Callable[[int], None]:
    """Return what publishes a time in ns on /clock."""
    publisher = node.create_publisher(Clock, "/clock", 1)
    return lambda time_ns: publisher.publish(Clock(clock=time_message(time_ns)))


def _wait_for_subscribers(publisher: Any, num_wanted: int, timeout_s: float, stop: Event) -> int:
    """Return how many subscribers matched within the time, ``num_wanted`` or fewer."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        count = int(publisher.get_subscription_count())
        if count >= num_wanted or time.monotonic() > deadline_s or stop.wait(0.02):
            return count


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="photon_ros.ros.player", description="Publish a bag's images at their recorded pace."
    )
    parser.add_argument("bag", type=Path, metavar="BAG")
    parser.add_argument("--topic", required=True, help="topic in the bag")
    parser.add_argument("--remap", metavar="TOPIC", help="topic to publish on instead")
    parser.add_argument("--rate", type=_positive, default=1.0, help="1 is the recorded pace")
    parser.add_argument("--wait-for-subscribers", type=int, default=1, metavar="N")
    parser.add_argument("--wait-timeout", type=_positive, default=30.0, metavar="S")
    parser.add_argument("--qos", choices=sorted(_RELIABILITIES), default="reliable")
    parser.add_argument("--clock", action="store_true", help="publish the time on /clock")
    parser.add_argument("--report", type=Path, metavar="FILE.json")
    return parser


def _play_bag(options: argparse.Namespace, recording: Recording) -> int:
    report = Report(options.remap or options.topic, recording.message_type, options.rate)
    with ros_process(None) as stop:
        node = Node("photon_player")
        # Deep, so that a subscriber which is slow for a moment still gets every message.
        qos = QoSProfile(
            history=HistoryPolicy.KEEP_LAST, depth=100, reliability=_RELIABILITIES[options.qos]
        )
        kind = message_type(_TRANSPORTS[recording.message_type])
        publisher = node.create_publisher(kind, report.topic, qos)
        publish_clock = _clock(node) if options.clock else None
        num_wanted = options.wait_for_subscribers
        report.num_subscribers = _wait_for_subscribers(
            publisher, num_wanted, options.wait_timeout, stop
        )
        if report.num_subscribers < num_wanted and not stop.is_set():
            print(
                f"player: {report.num_subscribers} of {num_wanted} subscribers of {report.topic} "
                f"came within {options.wait_timeout:g} s",
                file=sys.stderr,
            )
            return 2
        stop.wait(SETTLE_S)
        try:
            play(node, publisher, recording, report, stop, publish_clock)
        finally:
            publisher.wait_for_all_acked(Duration(seconds=ACK_TIMEOUT_S))
            if options.report is not None:
                options.report.write_text(json.dumps(asdict(report)), encoding="utf-8")
            node.destroy_node()
    print(f"published {len(report.published)} messages on {report.topic}", flush=True)
    return 0


def run(arguments: Sequence[str]) -> int:
    """Play as the command line says; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        recording = Recording(options.bag, options.topic)
        try:
            return _play_bag(options, recording)
        finally:
            recording.close()
    except BagError as error:
        print(f"player: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    exit_now(run(sys.argv[1:]))
