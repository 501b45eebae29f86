"""CameraPort: one camera's topics, mailbox and account."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CameraInfo

from photon_ros.ros.answer import Answer, AnswerStatus
from photon_ros.ros.arrival import Arrival, transport_ms
from photon_ros.ros.camera_outputs import CameraModel, CameraOutputs, Drawn
from photon_ros.ros.compat import event_callbacks
from photon_ros.ros.conversions import array_from_answer, message_type, stats_message
from photon_ros.ros.intake import Intake, cdr_stamp_ns
from photon_ros.ros.latency import LatencyWindow
from photon_ros.ros.mailbox import Mailbox
from photon_ros.ros.params import NodeConfig
from photon_ros.ros.publishers import PublisherReading, read_publishers
from photon_ros.ros.topics import compressed_topic

# Reasons carry sizes: a camera that sends garbage could make up any number of them.
MAX_BAD_REASONS = 20

_RELIABILITIES = {
    "best_effort": ReliabilityPolicy.BEST_EFFORT,
    "reliable": ReliabilityPolicy.RELIABLE,
}


class CameraPort:
    """Publishers from configure on, subscriptions while active and enabled.

    Args:
        camera: its name; "" for the only camera, whose topics then have no prefix.
    """

    def __init__(self, node: Node, camera: str) -> None:
        self._node = node
        self.camera = camera
        self.outputs = CameraOutputs(node, camera)
        self._subscription: Any = None
        self._info_subscription: Any = None
        self._qos = QoSProfile(depth=1)
        self.image_transport = "raw"
        self._info: CameraInfo | bytes | None = None
        self._is_rectified = False
        self.mailbox: Mailbox[Arrival] = Mailbox()
        self._bad_lock = threading.Lock()
        self.encoding = self.resolution = ""
        self.latest: Arrival | None = None
        self.topic = ""
        self._begin_account()

    def _begin_account(self) -> None:
        now_s = time.monotonic()
        self.window = LatencyWindow(now_s=now_s)
        self.intake = Intake(now_s=now_s)
        self.image_age_ms = math.nan
        self._bad_reasons: Counter[str] = Counter()
        self.bad_s = -math.inf  # steady time of the latest bad frame

    def reset_account(self) -> None:
        """Begin every count and window anew; what waits or is in flight stays accounted for."""
        self.mailbox.reset_counts()
        with self._bad_lock:
            self._begin_account()

    # Input

    @property
    def is_subscribed(self) -> bool:
        """True while the input is open."""
        return self._subscription is not None

    def subscribe(self, config: NodeConfig, on_message: Callable[[bytes], None]) -> None:
        """Open the input.

        The callback gets serialised messages: most of a fast camera's frames are replaced by a
        newer one before anybody looks into them.
        """
        if self._subscription is not None:
            return
        self.image_transport = config.image_transport
        self._qos = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=config.qos_depth,
            reliability=_RELIABILITIES[config.qos_reliability],
        )
        self._subscription = self._node.create_subscription(
            message_type(config.image_transport),
            self._input_topic(config.image_transport),
            on_message,
            self._qos,
            raw=True,
            event_callbacks=event_callbacks(self._on_incompatible_qos),
        )
        self.topic = str(self._subscription.topic_name)
        info_topic = f"{self.camera}/camera_info" if self.camera else "camera_info"
        self._info_subscription = self._node.create_subscription(
            CameraInfo, info_topic, self._on_camera_info, qos_profile_sensor_data, raw=True
        )
        # image_proc's name for what it rectified, with or without a transport behind it.
        self._is_rectified = "/image_rect" in self.topic

    def _input_topic(self, image_transport: str) -> str:
        name = f"{self.camera}/image" if self.camera else "image"
        resolved = str(self._node.resolve_topic_name(name))
        # Some name the transport's topic, as `ros2 topic list` shows it, and not the image's.
        if image_transport == "compressed" and not resolved.endswith("/compressed"):
            return compressed_topic(self._node, name)
        return resolved

    def _on_incompatible_qos(self, event: Any) -> None:
        del event  # its count never falls, and the graph tells who is there
        self._node.get_logger().error(
            f"a publisher of {self.topic} offers a QoS that this node does not accept, so nothing "
            "arrives from it; a best effort publisher needs qos.reliability best_effort"
        )

    def _on_camera_info(self, serialised: bytes) -> None:
        self._info = serialised  # taken apart when a marker needs it

    @property
    def camera_model(self) -> CameraModel:
        """The latest calibration."""
        info = self._info
        if isinstance(info, bytes):
            info = self._info = deserialize_message(info, CameraInfo)
        return CameraModel(info, self._is_rectified)

    @property
    def missing_info_topic(self) -> str:
        """Where a calibration is waited for by somebody who subscribes the markers; else ""."""
        is_missed = self._info is None and self.outputs.are_markers_wanted
        return str(self._info_subscription.topic_name) if is_missed and self.is_subscribed else ""

    def publishers(self) -> PublisherReading:
        """Return who publishes the input now."""
        if not self.topic:
            return PublisherReading()
        kind = message_type(self.image_transport)
        return read_publishers(self._node, self.topic, kind, self._qos)

    @property
    def other_transport(self) -> str:
        """The image_transport that is not chosen."""
        return "compressed" if self.image_transport == "raw" else "raw"

    def other_topic(self) -> str:
        """Return where the camera's images of the other transport are, if somebody is there."""
        topic = self.topic.removesuffix("/compressed")
        beside = f"{topic}/compressed" if self.other_transport == "compressed" else topic
        return beside if self._node.count_publishers(beside) else ""

    def ahead_s(self) -> float:
        """Return how far in the future the newest frame was stamped; 0 when it was not."""
        latest = self.latest
        stamp_ns = None if latest is None else cdr_stamp_ns(latest.serialised)
        if latest is None or stamp_ns is None or latest.receive_stamp_ns == 0:
            return 0.0
        return max(0.0, (stamp_ns - latest.receive_stamp_ns) / 1e9)

    def unsubscribe(self) -> None:
        """Close the input."""
        for subscription in (self._subscription, self._info_subscription):
            if subscription is not None:
                self._node.destroy_subscription(subscription)
        self._subscription = self._info_subscription = None

    # Account

    def note_format(self, encoding: str, width_px: int, height_px: int) -> None:
        """Remember what the latest frame was; called from the feeder's thread."""
        self.encoding, self.resolution = encoding, f"{width_px}x{height_px}"

    def note_bad(self, reason: str) -> None:
        """Count a bad frame by its reason; called from the feeder's thread."""
        with self._bad_lock:
            self.bad_s = time.monotonic()
            is_known = reason in self._bad_reasons
            is_kept = is_known or len(self._bad_reasons) < MAX_BAD_REASONS
            self._bad_reasons[reason if is_kept else "other"] += 1

    def bad_reasons(self, max_reasons: int) -> list[tuple[str, int]]:
        """Return the most frequent reasons of bad frames with their counts."""
        with self._bad_lock:
            return self._bad_reasons.most_common(max_reasons)

    # Output

    def publish_answer(
        self, answer: Answer, config: NodeConfig
    ) -> Callable[[], Sequence[Drawn]] | None:
        """Publish one skill's answer; settle the frame with its last one.

        Returns:
            What draws the frame's pictures, if this was the last answer and somebody looks.
        """
        now_s = time.monotonic()
        status = AnswerStatus.ERROR
        is_last = False
        try:
            self.outputs.publish_answer(array_from_answer(answer, now_s=now_s))
            status = answer.status
            if status is not AnswerStatus.OK:
                self._node.get_logger().warning(
                    f"{answer.skill}: {answer.error}", throttle_duration_sec=5.0
                )
        finally:
            worst = answer.job.published(status)
            if worst is not None:
                is_last = True
                self.mailbox.finish(completed=worst is AnswerStatus.OK)
                self._note_published(answer, now_s)
        return self.outputs.drawing(answer.job, config, self.camera_model) if is_last else None

    def _note_published(self, answer: Answer, now_s: float) -> None:
        self.window.add((now_s - answer.job.receive_s) * 1e3, now_s=now_s)
        self.image_age_ms = transport_ms(
            answer.job.decoded.frame.stamp_ns, self._node.get_clock().now().nanoseconds
        )

    def publish_stats(self) -> None:
        """Publish the account as it is now."""
        summary = self.window.summary(now_s=time.monotonic())
        stamp = self._node.get_clock().now().to_msg()
        self.outputs.publish_stats(
            stats_message(self.camera, self.mailbox.counts(), summary, stamp=stamp)
        )

    def destroy(self) -> None:
        """Remove every endpoint."""
        self.unsubscribe()
        self.outputs.destroy()
