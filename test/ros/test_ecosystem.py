"""vision_msgs and cv_bridge: used where they are, and said to be missing where they are not."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from ros_world import image_message
from sensor_msgs.msg import Image
from std_msgs.msg import Header

from photon_ros.core.errors import ImageError
from photon_ros.msg import PhotonDetection, PhotonDetectionArray
from photon_ros.pixels import ENCODINGS
from photon_ros.ros.arrival import BadFrame
from photon_ros.ros.conversions import decode_message
from photon_ros.ros.cv_bridge_fallback import converter, installed_cv_bridge
from photon_ros.ros.params import NodeConfig
from photon_ros.ros.vision import detection_2d_array, vision_messages


def decoded(message: Image, convert_other: Any = None, **changes: Any) -> np.ndarray:
    config = NodeConfig().changed(changes)
    return decode_message(
        message,
        camera="",
        sequence=0,
        receive_stamp_ns=0,
        config=config,
        convert_other=convert_other,
    ).frame.image


class Bridge:
    """Converts rgb16, as cv_bridge does: the upper byte of each sample."""

    def imgmsg_to_cv2(self, message: Image, desired_encoding: str) -> np.ndarray:
        if (message.encoding, desired_encoding) != ("rgb16", "rgb8"):
            raise RuntimeError(f"[{message.encoding}] is not a color format")
        shape = (message.height, message.width, 3)
        wide = np.ndarray(shape, "<u2", bytes(message.data), strides=(message.step, 6, 2))
        return (wide >> 8).astype(np.uint8)


BRIDGE = SimpleNamespace(CvBridge=Bridge)


def rgb16() -> tuple[Image, np.ndarray]:
    narrow = np.random.default_rng(2).integers(0, 255, (4, 5, 3), np.uint8)
    message = image_message(np.zeros((4, 10, 3), np.uint8))
    message.width, message.encoding, message.step = 5, "rgb16", 30
    message.data = list((narrow.astype("<u2") << 8).tobytes())
    return message, narrow


def test_an_encoding_of_cv_bridge_goes_through_it() -> None:
    message, wanted = rgb16()
    assert np.array_equal(decoded(message, converter(BRIDGE)), wanted)


def test_encodings_of_our_own_never_go_through_it() -> None:
    pixels = np.full((4, 5, 3), 7, np.uint8)

    def never(message: Image) -> np.ndarray:
        raise AssertionError(message.encoding)

    assert np.array_equal(decoded(image_message(pixels), never), pixels)


def test_without_cv_bridge_the_frame_is_bad_and_says_so() -> None:
    assert converter(None) is None
    with pytest.raises(BadFrame, match=r"'rgb16' is not one of .*cv_bridge.* is not installed"):
        decoded(rgb16()[0])


def test_what_cv_bridge_cannot_do_is_a_bad_frame_with_its_reason() -> None:
    message, _ = rgb16()
    message.encoding = "rgb99"
    with pytest.raises(BadFrame, match=r"cv_bridge cannot convert 'rgb99'.*not a color format"):
        decoded(message, converter(BRIDGE))
    message, _ = rgb16()
    message.step = 10_000  # more bytes than there are
    with pytest.raises(BadFrame, match="cv_bridge cannot convert 'rgb16'"):
        decoded(message, converter(BRIDGE))


def test_pixels_of_another_shape_are_refused() -> None:
    class Liar:
        def imgmsg_to_cv2(self, message: Image, desired_encoding: str) -> np.ndarray:
            return np.zeros((1, 1), np.uint8)

    with pytest.raises(ImageError, match=r"made uint8 of shape \(1, 1\)"):
        converter(SimpleNamespace(CvBridge=Liar))(rgb16()[0])


def test_a_size_above_the_limit_never_reaches_cv_bridge() -> None:
    def never(message: Image) -> np.ndarray:
        raise AssertionError(message.encoding)

    with pytest.raises(BadFrame, match="too large"):
        decoded(rgb16()[0], never, max_pixels=19)


@pytest.mark.skipif(installed_cv_bridge() is None, reason="cv_bridge is not installed")
@pytest.mark.parametrize(
    "encoding", [name for name in ENCODINGS if name in ("rgb8", "bgr8", "rgba8", "bgra8", "mono8")]
)
def test_our_conversion_equals_that_of_cv_bridge(encoding: str) -> None:
    samples = {"mono8": 1, "rgb8": 3, "bgr8": 3}.get(encoding, 4)
    message = Image(width=6, height=4, encoding=encoding, step=6 * samples)
    message.data = np.random.default_rng(1).integers(0, 255, 24 * samples, np.uint8).tobytes()
    theirs = converter(installed_cv_bridge())
    assert theirs is not None
    assert np.array_equal(decoded(message), theirs(message))


# vision_msgs: the fields of its Detection2DArray in Humble and later, for where it is missing.


@dataclass
class Vector:
    x: float = 0.0
    y: float = 0.0


@dataclass
class Hypothesis:
    class_id: str = ""
    score: float = 0.0


@dataclass
class ObjectHypothesisWithPose:
    hypothesis: Hypothesis = field(default_factory=Hypothesis)


@dataclass
class Pose2D:
    position: Vector = field(default_factory=Vector)
    theta: float = 0.0


@dataclass
class BoundingBox2D:
    center: Pose2D = field(default_factory=Pose2D)
    size_x: float = 0.0
    size_y: float = 0.0


@dataclass
class Detection2D:
    header: Header
    results: list[ObjectHypothesisWithPose] = field(default_factory=list)
    bbox: BoundingBox2D = field(default_factory=BoundingBox2D)


@dataclass
class Detection2DArray:
    header: Header
    detections: list[Detection2D] = field(default_factory=list)


SPELLED_OUT = SimpleNamespace(
    Detection2DArray=Detection2DArray,
    Detection2D=Detection2D,
    ObjectHypothesisWithPose=ObjectHypothesisWithPose,
)


@pytest.mark.parametrize(
    "vision",
    [
        pytest.param(SPELLED_OUT, id="spelled out"),
        pytest.param(
            vision_messages(),
            id="installed",
            marks=pytest.mark.skipif(vision_messages() is None, reason="no vision_msgs here"),
        ),
    ],
)
def test_detections_as_vision_msgs(vision: Any) -> None:
    array = PhotonDetectionArray(header=Header(frame_id="cam"))
    array.header.stamp.nanosec = 9
    array.detections = [
        PhotonDetection(label="red ball", score=0.75, x=10.5, y=20.5, width=4.0, height=6.0),
        PhotonDetection(label="door", score=0.5, x=1.0, y=2.0),
    ]
    message = detection_2d_array(array, vision)
    assert message.header == array.header
    ball, door = message.detections
    assert ball.header == array.header
    assert ball.results[0].hypothesis.class_id == "red ball"
    assert ball.results[0].hypothesis.score == 0.75
    assert (ball.bbox.center.position.x, ball.bbox.center.position.y) == (10.5, 20.5)
    assert (ball.bbox.size_x, ball.bbox.size_y) == (4.0, 6.0)
    assert (door.bbox.size_x, door.bbox.size_y) == (0.0, 0.0)


def test_missing_vision_msgs_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    assert vision_messages() is None
