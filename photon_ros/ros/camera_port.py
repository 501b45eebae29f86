"""CameraPort: one camera's topics, mailbox and account."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy

from photon_ros.msg import PerceptionStats, PhotonDetectionArray
from photon_ros.ros.answer import Answer, AnswerStatus
from photon_ros.ros.arrival import Arrival
from photon_ros.ros.compat import event_callbacks
from photon_ros.ros.conversions import array_from_answer, message_type, stats_message
from photon_ros.ros.latency import LatencyWindow
from photon_ros.ros.mailbox import Mailbox
from photon_ros.ros.params import NodeConfig

# Reasons carry sizes: a camera that sends garbage could make up any number of them.
MAX_BAD_REASONS = 20

# Answers are small and reliable: a reader that stalls for a second or two loses none.
_OUTPUT_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=100, reliability=ReliabilityPolicy.RELIABLE
)
_RELIABILITIES = {
    "best_effort": ReliabilityPolicy.BEST_EFFORT,
    "reliable": ReliabilityPolicy.RELIABLE,
}


class CameraPort:
    """Publishers from configure on, a subscription while active.

    Args:
        camera: its name; "" for the only camera, whose topics then have no prefix.
    """

    def __init__(self, node: Node, camera: str) -> None:
        self._node = node
        self.camera = camera
        prefix = f"~/{camera}" if camera else "~"
        self._detections = node.create_publisher(
            PhotonDetectionArray, f"{prefix}/detections", _OUTPUT_QOS
        )
        self._stats = node.create_publisher(PerceptionStats, f"{prefix}/stats", _OUTPUT_QOS)
        self._subscription: Any = None
        self.mailbox: Mailbox[Arrival] = Mailbox()
        self.window = LatencyWindow(now_s=time.monotonic())
        self._bad_reasons: Counter[str] = Counter()
        self._bad_lock = threading.Lock()
        self.num_qos_mismatches = 0
        self.last_arrival_s: float | None = None

    def subscribe(self, config: NodeConfig, on_message: Callable[[bytes], None]) -> str:
        """Open the input; return the name of the topic.

        The callback gets serialised messages: most of a fast camera's frames are replaced by a
        newer one before anybody looks into them.
        """
        topic = self._input_topic(config.image_transport)
        qos = QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=config.qos_depth,
            reliability=_RELIABILITIES[config.qos_reliability],
        )
        self._subscription = self._node.create_subscription(
            message_type(config.image_transport),
            topic,
            on_message,
            qos,
            raw=True,
            event_callbacks=event_callbacks(self._on_incompatible_qos),
        )
        return str(self._subscription.topic_name)

    def _input_topic(self, image_transport: str) -> str:
        name = f"{self.camera}/image" if self.camera else "image"
        image_topic: str = self._node.resolve_topic_name(name)
        if image_transport == "raw":
            return image_topic
        compressed = f"{name}/compressed"
        resolved: str = self._node.resolve_topic_name(compressed)
        if resolved != self._node.resolve_topic_name(compressed, only_expand=True):
            return resolved
        # Remapping image moves image/compressed along, as image_transport has it.
        return f"{image_topic}/compressed"

    def _on_incompatible_qos(self, event: Any) -> None:
        self.num_qos_mismatches += 1
        self._node.get_logger().error(
            f"{event.total_count} publisher(s) of {self._subscription.topic_name} offer a QoS that "
            "this node does not accept, so nothing arrives from them; a best effort publisher "
            "needs qos.reliability best_effort"
        )

    def note_bad(self, reason: str) -> None:
        """Count a bad frame by its reason; called from the feeder's thread."""
        with self._bad_lock:
            is_known = reason in self._bad_reasons
            is_kept = is_known or len(self._bad_reasons) < MAX_BAD_REASONS
            self._bad_reasons[reason if is_kept else "other"] += 1

    def bad_reasons(self, max_reasons: int) -> list[tuple[str, int]]:
        """Return the most frequent reasons of bad frames with their counts."""
        with self._bad_lock:
            return self._bad_reasons.most_common(max_reasons)

    def unsubscribe(self) -> None:
        """Close the input."""
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None

    def publish_answer(self, answer: Answer) -> None:
        """Publish one skill's answer; settle the frame with its last one."""
        now_s = time.monotonic()
        status = AnswerStatus.ERROR
        try:
            array = array_from_answer(answer, now_s=now_s)
            self._detections.publish(array)
            status = answer.status
            if status is not AnswerStatus.OK:
                self._node.get_logger().warning(
                    f"{answer.skill}: {answer.error}", throttle_duration_sec=5.0
                )
        finally:
            worst = answer.job.published(status)
            if worst is not None:
                self.mailbox.finish(completed=worst is AnswerStatus.OK)
                self.window.add((now_s - answer.job.receive_s) * 1e3, now_s=now_s)

    def publish_stats(self) -> None:
        """Publish the account as it is now."""
        summary = self.window.summary(now_s=time.monotonic())
        stamp = self._node.get_clock().now().to_msg()
        self._stats.publish(stats_message(self.camera, self.mailbox.counts(), summary, stamp=stamp))

    def flush(self, timeout_s: float) -> None:
        """Wait until the readers have what was published, at most ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        for publisher in (self._detections, self._stats):
            left_s = max(0.0, deadline_s - time.monotonic())
            publisher.wait_for_all_acked(Duration(seconds=left_s))

    def destroy(self) -> None:
        """Remove every endpoint."""
        self.unsubscribe()
        self._node.destroy_publisher(self._detections)
        self._node.destroy_publisher(self._stats)
