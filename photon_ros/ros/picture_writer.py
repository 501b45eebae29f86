"""Picture writer: saves what comes on a compressed image topic, one file a picture.

    python -m photon_ros.ros.picture_writer --topic TOPIC --out DIR

A file is named after its stamp in nanoseconds. SIGINT or SIGTERM ends it with code 0; code 2: the
folder cannot be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage

from photon_ros.ros.conversions import stamp_ns
from photon_ros.ros.process import exit_now, ros_process, spin

_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=100, reliability=ReliabilityPolicy.RELIABLE
)


class PictureWriter(Node):
    """Writes the bytes of each message as they come.

    Attributes:
        error: the reason why a file could not be written; None while all is well.
    """

    def __init__(self, topic: str, out: Path, stop: Event) -> None:
        super().__init__("photon_picture_writer")
        self._out = out
        self._stop = stop
        self.error: OSError | None = None
        self.num_written = 0
        self.create_subscription(CompressedImage, topic, self._write, _QOS)

    def _write(self, message: CompressedImage) -> None:
        suffix = "png" if message.format.endswith("png") else "jpg"
        path = self._out / f"{stamp_ns(message.header.stamp)}.{suffix}"
        try:
            path.write_bytes(message.data)
            self.num_written += 1
        except OSError as error:
            self.error = error
            self._stop.set()


def run(arguments: Sequence[str]) -> int:
    """Write until SIGINT or SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="photon_ros.ros.picture_writer", description="Save the pictures of a topic."
    )
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    error: OSError | None = None
    num_written = 0
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        with ros_process(None) as stop:
            writer = PictureWriter(options.topic, options.out, stop)
            print("ready", flush=True)
            spin(writer, stop.is_set)
            writer.destroy_node()
            error, num_written = writer.error, writer.num_written
    except OSError as problem:
        error = problem
    if error is not None:
        print(f"picture writer: cannot write {options.out}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"wrote {num_written} pictures to {options.out}", flush=True)
    return 0


if __name__ == "__main__":
    exit_now(run(sys.argv[1:]))
