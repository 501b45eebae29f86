"""Measure the node from outside: a camera in, the answers out, each in a process of its own.

    python test/ros/measure_latency.py --size 768x576 --hz 10 --seconds 120 [--video FILE]
        [--ros-args -p max_crops:=0 ...]

The camera publishes best effort at its rate, stamped as it publishes; latency is from that stamp
to the answer's arrival here. What follows ``--ros-args`` goes to the node. Everything runs in the
ROS domain of the environment: choose one that nobody uses.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image

from photon_ros.msg import PerceptionStats, PhotonDetectionArray
from photon_ros.ros.compat import PROFILE_VARIABLE
from photon_ros.ros.conversions import stamp_ns, time_message

ROOT = Path(__file__).parents[2]
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
RELIABLE = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
NUM_PICTURES = 30
SPAN_S = 20
STAGES = ("transport", "queue", "decode_image", "preprocess", "prefill", "decode", "publish")


def pictures(size: tuple[int, int], video: Path | None) -> list[Image]:
    """Messages to publish in turn: frames of a film, or noise."""
    width, height = size
    film = None if video is None else cv2.VideoCapture(str(video))
    chance = np.random.default_rng(0)
    messages = []
    for _ in range(NUM_PICTURES):
        if film is None:
            pixels = chance.integers(0, 255, (height, width, 3), np.uint8)
        else:
            is_read, frame = film.read()
            if not is_read:
                raise SystemExit(f"{video} has fewer than {NUM_PICTURES} frames")
            pixels = cv2.cvtColor(cv2.resize(frame, size), cv2.COLOR_BGR2RGB)
        message = Image(width=width, height=height, encoding="rgb8", step=3 * width)
        message.data.frombytes(np.ascontiguousarray(pixels).tobytes())
        messages.append(message)
    return messages


@dataclass
class Seen:
    """What came back: for each answer the stamp of its frame, its latency, and its own record."""

    stamps_s: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    arrays: list[PhotonDetectionArray] = field(default_factory=list)
    stats: list[PerceptionStats] = field(default_factory=list)

    def add(self, array: PhotonDetectionArray) -> None:
        stamp_s = stamp_ns(array.header.stamp) / 1e9
        self.stamps_s.append(stamp_s)
        self.latencies_ms.append((time.time() - stamp_s) * 1e3)
        self.arrays.append(array)


@contextlib.contextmanager
def node_process(arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The node, ended as ctrl-C does."""
    child = subprocess.Popen(
        [sys.executable, "-m", "photon_ros.ros.node", "--ros-args", *arguments], cwd=ROOT
    )
    try:
        yield child
    finally:
        began_s = time.monotonic()
        child.send_signal(signal.SIGINT)
        child.wait()
        print(f"the node ended after {time.monotonic() - began_s:.2f} s, code {child.returncode}")


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def publish(
    client: Node, publisher: object, messages: list[Image], hz: float, length_s: float
) -> int:
    """Publish at the rate, whatever the answers do; return how many."""
    began_s = time.time()
    num_published = 0
    while True:
        due_s = began_s + num_published / hz
        while (left_s := due_s - time.time()) > 0:
            rclpy.spin_once(client, timeout_sec=min(0.005, left_s))
        if due_s - began_s >= length_s:
            return num_published
        message = messages[num_published % len(messages)]
        message.header.stamp = time_message(time.time_ns())
        publisher.publish(serialize_message(message))  # type: ignore[attr-defined]
        num_published += 1


def report(seen: Seen, num_published: int, node_cpu_s: float) -> None:
    """Print the figures."""
    stats = seen.stats[-1]
    print(
        f"published {num_published}, received {stats.received} "
        f"({stats.received / num_published:.1%}), completed {stats.completed}, "
        f"failed {stats.failed}, overwritten {stats.dropped_overwritten}, "
        f"stale {stats.dropped_stale}, bad {stats.dropped_bad}"
    )
    latencies_ms, stamps_s = np.array(seen.latencies_ms), np.array(seen.stamps_s)
    p50, p95, p99, worst = np.percentile(latencies_ms, [50, 95, 99, 100])
    print(f"stamp to answer: p50 {p50:.0f}, p95 {p95:.0f}, p99 {p99:.0f}, max {worst:.0f} ms")
    spans = (stamps_s - stamps_s[0]) // SPAN_S
    ages = [f"{np.median(latencies_ms[spans == span]):.0f}" for span in np.unique(spans)]
    print(f"p50 per {SPAN_S} s: {', '.join(ages)} ms")
    slowest = [a for a, ms in zip(seen.arrays, latencies_ms, strict=True) if ms >= p95]
    for name, arrays in (("all", seen.arrays), ("the slowest 5 %", slowest)):
        print(f"median stages of {name}: {_stages(arrays)}")
    print(f"node CPU per answered frame {node_cpu_s * 1e3 / max(1, len(seen.arrays)):.0f} ms")
    print("load average", *(f"{load:.2f}" for load in os.getloadavg()))


def _stages(arrays: Sequence[PhotonDetectionArray]) -> str:
    medians = {
        name: np.nanmedian([getattr(array.latency, f"{name}_ms") for array in arrays])
        for name in STAGES
    }
    parts = [f"{name} {ms:.1f}" for name, ms in medians.items()]
    parts.append(f"detections {np.median([len(array.detections) for array in arrays]):.0f}")
    return ", ".join(parts)


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="768x576", metavar="WxH")
    parser.add_argument("--hz", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--video", type=Path)
    words = sys.argv[1:]
    split = words.index("--ros-args") if "--ros-args" in words else len(words)
    options = parser.parse_args(words[:split])
    width, height = (int(side) for side in options.size.split("x"))
    os.environ.setdefault(PROFILE_VARIABLE, str(ROOT / "config" / "fastdds.xml"))
    rclpy.init()
    client, seen = Node("measure_latency"), Seen()
    publisher = client.create_publisher(Image, "/image", BEST_EFFORT)
    client.create_subscription(PhotonDetectionArray, "/photon/detections", seen.add, RELIABLE)
    client.create_subscription(PerceptionStats, "/photon/stats", seen.stats.append, RELIABLE)
    messages = pictures((width, height), options.video)
    with node_process(words[split + 1 :]) as child:
        while not (seen.stats and publisher.get_subscription_count()):
            rclpy.spin_once(client, timeout_sec=0.1)
            if child.poll() is not None:
                raise SystemExit(child.returncode)
        began_cpu_s = cpu_s(child.pid)
        num_published = publish(client, publisher, messages, options.hz, options.seconds)
        node_cpu_s = cpu_s(child.pid) - began_cpu_s
        end_s = time.monotonic() + 3.0  # the last answers, and an account of them
        while time.monotonic() < end_s:
            rclpy.spin_once(client, timeout_sec=0.1)
    report(seen, num_published, node_cpu_s)
    client.destroy_node()
    rclpy.try_shutdown()


if __name__ == "__main__":
    main()
