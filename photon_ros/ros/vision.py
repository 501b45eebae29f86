"""Answers as vision_msgs, for consumers that know no other; None where that is not installed."""

from __future__ import annotations

import importlib
from typing import Any

from photon_ros.msg import PhotonDetectionArray


def vision_messages() -> Any:
    """Return the module vision_msgs.msg, or None."""
    try:
        return importlib.import_module("vision_msgs.msg")
    except ImportError:
        return None


def detection_2d_array(array: PhotonDetectionArray, vision: Any) -> Any:
    """Return an answer as a vision_msgs Detection2DArray.

    A point is a box without extent, and the label is the class_id: the text that was asked for.

    Args:
        vision: what :func:`vision_messages` returned.
    """
    message = vision.Detection2DArray(header=array.header)
    for found in array.detections:
        detection = vision.Detection2D(header=array.header)
        hypothesis = vision.ObjectHypothesisWithPose()
        hypothesis.hypothesis.class_id = found.label
        hypothesis.hypothesis.score = float(found.score)
        detection.results.append(hypothesis)
        detection.bbox.center.position.x = float(found.x)
        detection.bbox.center.position.y = float(found.y)
        detection.bbox.size_x = float(found.width)
        detection.bbox.size_y = float(found.height)
        message.detections.append(detection)
    return message
