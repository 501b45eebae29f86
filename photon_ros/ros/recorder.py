"""Recorder: writes every detections and stats message of a node as one JSON line.

    python -m photon_ros.ros.recorder --detections TOPIC --stats TOPIC --out FILE.jsonl

Each line is {"topic": ..., "receive_ns": ..., "kind": "detections" | "stats", "message": {...}},
fields as in the message definitions, NaN as null. Lines are flushed as they are written. When
both topics are subscribed the line "ready" is printed; SIGINT or SIGTERM ends it with code 0.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy

from photon_ros.msg import PerceptionStats, PhotonDetectionArray
from photon_ros.ros.process import exit_now, ros_process, spin

_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=500, reliability=ReliabilityPolicy.RELIABLE
)


def message_to_dict(message: Any) -> Any:
    """Return a message as JSON can write it: fields by name, arrays as lists, NaN as None."""
    if hasattr(message, "get_fields_and_field_types"):
        return {
            name: message_to_dict(getattr(message, name))
            for name in message.get_fields_and_field_types()
        }
    if isinstance(message, float):
        return message if math.isfinite(message) else None
    if isinstance(message, (str, bool, int)):
        return message
    return [message_to_dict(item) for item in message]


class Recorder(Node):
    """Subscribes the two topics and writes what comes."""

    def __init__(self, detections: str, stats: str, out: TextIO) -> None:
        super().__init__("photon_recorder")
        self._out = out
        self._subscribe("detections", PhotonDetectionArray, detections)
        self._subscribe("stats", PerceptionStats, stats)

    def _subscribe(self, kind: str, message_type: type[Any], topic: str) -> None:
        resolved = self.resolve_topic_name(topic)
        self.create_subscription(
            message_type, topic, lambda message: self._write(kind, resolved, message), _QOS
        )

    def _write(self, kind: str, topic: str, message: Any) -> None:
        line = {
            "topic": topic,
            "receive_ns": self.get_clock().now().nanoseconds,
            "kind": kind,
            "message": message_to_dict(message),
        }
        self._out.write(json.dumps(line, allow_nan=False) + "\n")
        self._out.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="photon_ros.ros.recorder", description="Write a node's output as JSON lines."
    )
    parser.add_argument("--detections", required=True, metavar="TOPIC")
    parser.add_argument("--stats", required=True, metavar="TOPIC")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE")
    return parser


def run(arguments: Sequence[str]) -> int:
    """Record until SIGINT or SIGTERM; return the exit code."""
    options = _parser().parse_args(arguments)
    try:
        out = options.out.open("w", encoding="utf-8")
    except OSError as error:
        print(f"recorder: cannot write {options.out}: {error.strerror}", file=sys.stderr)
        return 2
    with out, ros_process(None) as stop:
        recorder = Recorder(options.detections, options.stats, out)
        print("ready", flush=True)
        spin(recorder, stop.is_set)
        recorder.destroy_node()
    return 0


if __name__ == "__main__":
    exit_now(run(sys.argv[1:]))
