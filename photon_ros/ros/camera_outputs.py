"""CameraOutputs: the topics on which one camera's answers go out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from visualization_msgs.msg import MarkerArray

from photon_ros.msg import PerceptionStats, PhotonDetectionArray
from photon_ros.ros.answer import FrameJob
from photon_ros.ros.markers import marker_array
from photon_ros.ros.params import NodeConfig
from photon_ros.ros.pictures import jpeg_message, mask_message, overlay_of, rgb_message
from photon_ros.ros.topics import compressed_topic
from photon_ros.ros.vision import detection_2d_array, vision_messages

# Answers are small and reliable: a reader that stalls for a second or two loses none.
_ANSWER_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=100, reliability=ReliabilityPolicy.RELIABLE
)
# Pictures are large: rviz and rqt ask for reliable ones by default, and a reliable publisher
# serves those who ask for best effort, too.
_PICTURE_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST, depth=2, reliability=ReliabilityPolicy.RELIABLE
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A message that was made beside the executor, and where it goes."""

    publisher: Any
    message: Any


@dataclass(frozen=True, slots=True)
class CameraModel:
    """What is known of how the camera's pixels look into the world.

    Attributes:
        info: the latest camera_info; None before the first.
        is_rectified: the images are rectified ones.
    """

    info: CameraInfo | None
    is_rectified: bool


class CameraOutputs:
    """The publishers of one camera.

    Args:
        camera: its name; "" for the only camera, whose topics then have no prefix.
    """

    def __init__(self, node: Node, camera: str) -> None:
        self._node = node
        prefix = f"~/{camera}" if camera else "~"
        self._publishers: list[Any] = []
        self._detections = self._publisher(PhotonDetectionArray, f"{prefix}/detections")
        self._stats = self._publisher(PerceptionStats, f"{prefix}/stats")
        self._vision = vision_messages()
        self._detections_2d = None
        if self._vision is not None:
            kind = self._vision.Detection2DArray
            self._detections_2d = self._publisher(kind, f"{prefix}/detections_2d")
        self._overlay = self._publisher(Image, f"{prefix}/overlay", _PICTURE_QOS)
        self._overlay_jpeg = self._publisher(
            CompressedImage, compressed_topic(node, f"{prefix}/overlay"), _PICTURE_QOS
        )
        self._mask = self._publisher(Image, f"{prefix}/mask", _PICTURE_QOS)
        self._markers = self._publisher(MarkerArray, f"{prefix}/markers", _PICTURE_QOS)

    def _publisher(self, kind: Any, topic: str, qos: QoSProfile = _ANSWER_QOS) -> Any:
        publisher = self._node.create_publisher(kind, topic, qos)
        self._publishers.append(publisher)
        return publisher

    def publish_answer(self, array: PhotonDetectionArray) -> None:
        """Publish one skill's answer, in both forms."""
        self._detections.publish(array)
        if self._detections_2d is not None and _is_wanted(self._detections_2d):
            self._detections_2d.publish(detection_2d_array(array, self._vision))

    def publish_stats(self, stats: PerceptionStats) -> None:
        """Publish the account."""
        self._stats.publish(stats)

    @property
    def are_markers_wanted(self) -> bool:
        """True while somebody subscribes the markers."""
        return _is_wanted(self._markers)

    def drawing(
        self, job: FrameJob, config: NodeConfig, camera_model: CameraModel
    ) -> Callable[[], Sequence[Drawn]] | None:
        """Return what draws the pictures that somebody subscribes; None when nobody does.

        Args:
            job: a frame whose last answer is there.
        """
        steps: list[Callable[[], Sequence[Drawn]]] = []
        overlays = [item for item in (self._overlay, self._overlay_jpeg) if _is_wanted(item)]
        if overlays and config.overlay_enable:
            steps.append(lambda: self._draw_overlay(job, config, overlays))
        if _is_wanted(self._mask) and any(answer.skill == "segment" for answer in job.answers):
            steps.append(lambda: self._draw_mask(job))
        if self.are_markers_wanted and camera_model.info is not None:
            steps.append(lambda: self._draw_markers(job, camera_model))
        if not steps:
            return None
        return lambda: [drawn for step in steps for drawn in step()]

    def _draw_overlay(
        self, job: FrameJob, config: NodeConfig, wanted: Sequence[Any]
    ) -> list[Drawn]:
        frame, header = job.decoded.frame, job.decoded.header
        pixels = overlay_of(frame, job.answers, scale=config.overlay_scale)
        drawn = []
        if self._overlay in wanted:
            drawn.append(Drawn(self._overlay, rgb_message(pixels, header)))
        if self._overlay_jpeg in wanted:
            jpeg = jpeg_message(pixels, header, quality=config.overlay_jpeg_quality)
            drawn.append(Drawn(self._overlay_jpeg, jpeg))
        return drawn

    def _draw_mask(self, job: FrameJob) -> list[Drawn]:
        (answer,) = (answer for answer in job.answers if answer.skill == "segment")
        return [Drawn(self._mask, mask_message(job.decoded.frame, answer, job.decoded.header))]

    def _draw_markers(self, job: FrameJob, camera_model: CameraModel) -> list[Drawn]:
        assert camera_model.info is not None
        markers = marker_array(
            job.decoded.frame,
            job.answers,
            job.decoded.header,
            camera_model.info,
            is_rectified=camera_model.is_rectified,
        )
        return [Drawn(self._markers, markers)]

    def flush(self, timeout_s: float) -> None:
        """Wait until the readers have the answers published so far, at most ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        for publisher in (self._detections, self._stats):
            left_s = max(0.0, deadline_s - time.monotonic())
            publisher.wait_for_all_acked(Duration(seconds=left_s))

    def destroy(self) -> None:
        """Remove every publisher."""
        for publisher in self._publishers:
            self._node.destroy_publisher(publisher)


def _is_wanted(publisher: Any) -> bool:
    return bool(publisher.get_subscription_count())
