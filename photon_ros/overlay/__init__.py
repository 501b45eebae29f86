"""Detections drawn onto a picture: boxes, points, masks and labels with their scores."""

from photon_ros.overlay.drawing import draw, line_width_px
from photon_ros.overlay.labels import label_color

__all__ = ["draw", "label_color", "line_width_px"]
