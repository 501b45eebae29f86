"""Answers as markers for rviz: outlines on the plane z = 1 m before the camera. Pure.

A picture has no depth, so an object is drawn where its ray meets that plane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from geometry_msgs.msg import Point
from numpy.typing import NDArray
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import ColorRGBA, Header
from visualization_msgs.msg import Marker, MarkerArray

from photon_ros.core.frame import Frame
from photon_ros.core.result import Detection, DetectionKind
from photon_ros.overlay import label_color
from photon_ros.ros.answer import Answer
from photon_ros.ros.pictures import detections_of
from photon_ros.ros.projection import plane_points

PLANE_Z_M = 1.0
LINE_WIDTH_M = 0.004
DOT_SIZE_M = 0.02
TEXT_HEIGHT_M = 0.03

Points = NDArray[np.float64]


def marker_array(
    frame: Frame,
    answers: Sequence[Answer],
    header: Header,
    info: CameraInfo,
    *,
    is_rectified: bool,
) -> MarkerArray:
    """Return outlines, dots and labels of a frame's objects, in place of those before.

    Raises:
        ProjectionError: ``info`` does not say where this image's pixels look.
    """

    def project(pixels: Points) -> Points:
        return plane_points(
            pixels,
            info,
            width_px=frame.width_px,
            height_px=frame.height_px,
            is_rectified=is_rectified,
        )

    project(np.zeros((0, 2)))  # an answer without objects says what is wrong with the camera, too
    markers = [Marker(header=header, action=Marker.DELETEALL)]
    for answer in answers:
        for detection in detections_of([answer]):
            shape = _outline_px(detection, frame)
            outlines = [project(ring) for ring in shape]
            for marker in _markers_of(detection, outlines):
                marker.header = header
                marker.ns = answer.skill
                marker.id = len(markers)
                markers.append(marker)
    return MarkerArray(markers=markers)


def _outline_px(detection: Detection, frame: Frame) -> list[Points]:
    """Return rings of pixels: the point, the box's corners, or the outline."""
    size = np.array([frame.width_px, frame.height_px], np.float64)
    if detection.kind is DetectionKind.POINT:
        rings: list[Sequence[tuple[float, float]]] = [[(detection.x, detection.y)]]
    elif detection.kind is DetectionKind.MASK and detection.polygon:
        rings = list(detection.polygon)
    else:
        x_min, y_min, x_max, y_max = detection.corners()
        rings = [[(x_min, y_min), (x_max, y_min), (x_max, y_max), (x_min, y_max)]]
    return [np.asarray(ring, np.float64) * size for ring in rings]


def _markers_of(detection: Detection, outlines: list[Points]) -> Iterator[Marker]:
    red, green, blue = (channel / 255.0 for channel in label_color(detection.label))
    color = ColorRGBA(r=red, g=green, b=blue, a=1.0)
    for outline in outlines:
        marker = Marker(color=color)
        marker.pose.orientation.w = 1.0
        if detection.kind is DetectionKind.POINT:
            marker.type = Marker.SPHERE
            marker.scale.x = marker.scale.y = marker.scale.z = DOT_SIZE_M
            marker.pose.position = _point(outline[0])
        else:
            marker.type = Marker.LINE_STRIP
            marker.scale.x = LINE_WIDTH_M
            marker.points = [_point(corner) for corner in (*outline, outline[0])]
        yield marker
    if outlines:
        label = Marker(type=Marker.TEXT_VIEW_FACING, color=color)
        label.text = f"{detection.label} {detection.score:.2f}"
        label.scale.z = TEXT_HEIGHT_M
        label.pose.orientation.w = 1.0
        label.pose.position = _point(np.concatenate(outlines).min(axis=0))
        yield label


def _point(plane_xy: Points) -> Point:
    return Point(x=float(plane_xy[0]), y=float(plane_xy[1]), z=PLANE_Z_M)
