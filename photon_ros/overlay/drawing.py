"""Detections drawn onto a picture: boxes, points, masks and labels with their scores.

Drawing never fails on odd geometry: what lies outside the picture is clipped, what has no
finite place is left out, a label that fits nowhere is shortened or left out. The input image
is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from photon_ros.core.errors import ImageError
from photon_ros.core.mask import mask_of
from photon_ros.core.result import Detection, DetectionKind
from photon_ros.overlay.labels import Color, draw_labels, label_color

Pixels = NDArray[np.uint8]
Box = tuple[float, float, float, float]
"""(x_min, y_min, x_max, y_max), normalised to the image."""

_TRUTH_COLOR: Final[Color] = (255, 255, 255)
_HALO_COLOR: Final[Color] = (16, 16, 16)
_MASK_ALPHA: Final = 0.40
_SUBPIXEL_BITS: Final = 4


def line_width_px(image: Pixels) -> int:
    """Return the stroke width that suits the size of ``image``."""
    return max(1, round(0.003 * math.sqrt(image.shape[0] * image.shape[1])))


def draw(image: Pixels, detections: Sequence[Detection], *, truth: Sequence[Box] = ()) -> Pixels:
    """Return a copy of ``image`` with the detections, and true boxes dashed in white.

    Args:
        image: (height, width, 3) uint8 RGB.
        detections: drawn masks first, then large boxes before small ones, points last, so that
            nothing small is hidden; a label stands beside its object where there is room.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ImageError(f"cannot draw on {image.dtype} of shape {image.shape}")
    canvas = np.array(image, order="C")
    width_px = line_width_px(canvas)
    shown = [detection for detection in detections if _is_visible(detection)]
    for detection in shown:
        if detection.kind is DetectionKind.MASK:
            _fill_mask(canvas, detection)
    for box in truth:
        _dashed_box(canvas, box, width_px)
    shown.sort(key=lambda d: (d.kind is DetectionKind.POINT, -d.width * d.height))
    for detection in shown:
        _outline(canvas, detection, width_px)
    boxes = [_box_px(canvas, detection.corners(), width_px) for detection in shown]
    draw_labels(canvas, shown, boxes, width_px)
    return canvas


def _is_visible(detection: Detection) -> bool:
    corners = detection.corners()
    if detection.kind is DetectionKind.POINT:
        corners = (detection.x, detection.y, detection.x, detection.y)
    if not all(math.isfinite(value) for value in corners):
        return False
    return corners[2] >= 0 and corners[3] >= 0 and corners[0] <= 1 and corners[1] <= 1


def _outline(canvas: Pixels, detection: Detection, width_px: int) -> None:
    color = label_color(detection.label)
    if detection.kind is DetectionKind.POINT:
        _dot(canvas, detection, color, width_px)
    elif detection.kind is DetectionKind.MASK and detection.polygon:
        rings = _rings_px(canvas, detection)
        for ink, extra in ((_HALO_COLOR, 2), (color, 0)):
            cv2.polylines(canvas, rings, True, ink, width_px + extra, cv2.LINE_AA, _SUBPIXEL_BITS)
    else:
        rect = _box_px(canvas, detection.corners(), width_px)
        for ink, extra in ((_HALO_COLOR, 2), (color, 0)):
            _rectangle(canvas, rect, ink, width_px + extra)


def _rectangle(canvas: Pixels, rect: Box, ink: Color, width_px: int) -> None:
    start, end = _fixed(rect[0], rect[1]), _fixed(rect[2], rect[3])
    cv2.rectangle(canvas, start, end, ink, width_px, cv2.LINE_AA, _SUBPIXEL_BITS)


def _dot(canvas: Pixels, detection: Detection, color: Color, width_px: int) -> None:
    height, width = canvas.shape[:2]
    centre = _fixed(detection.x * width - 0.5, detection.y * height - 0.5)
    for ink, radius_px in ((_HALO_COLOR, 4.0), (_TRUTH_COLOR, 3.4), (color, 2.4)):
        radius = round(radius_px * max(1.0, width_px) * 2**_SUBPIXEL_BITS * 0.6)
        cv2.circle(canvas, centre, radius, ink, cv2.FILLED, cv2.LINE_AA, _SUBPIXEL_BITS)


def _fill_mask(canvas: Pixels, detection: Detection) -> None:
    height, width = canvas.shape[:2]
    inside = mask_of(detection.polygon, width_px=width, height_px=height, samples=1)
    rows = np.flatnonzero(inside.any(axis=1))
    if not len(rows):
        return
    band = slice(rows[0], rows[-1] + 1)
    color = np.array(label_color(detection.label), np.uint8)
    tint = np.broadcast_to(color, canvas[band].shape).copy()
    cv2.addWeighted(tint, _MASK_ALPHA, canvas[band], 1 - _MASK_ALPHA, 0, dst=tint)
    np.copyto(canvas[band], tint, where=inside[band][:, :, None])


def _rings_px(canvas: Pixels, detection: Detection) -> list[NDArray[np.int32]]:
    size = np.array([canvas.shape[1], canvas.shape[0]], np.float64)
    rings = []
    for ring in detection.polygon:
        points = np.asarray(ring, np.float64).reshape(-1, 2)
        # Far outside is as good as just outside, and keeps fixed point numbers within range.
        points = np.clip(points[np.isfinite(points).all(axis=1)], -1.0, 2.0)
        if len(points) >= 3:
            rings.append(np.rint((points * size - 0.5) * 2**_SUBPIXEL_BITS).astype(np.int32))
    return rings


def _dashed_box(canvas: Pixels, box: Box, width_px: int) -> None:
    if not all(math.isfinite(value) for value in box):
        return
    x_min, y_min, x_max, y_max = _box_px(canvas, box, width_px)
    corners = [(x_min, y_min), (x_max, y_min), (x_max, y_max), (x_min, y_max)]
    for ink, extra in ((_HALO_COLOR, 2), (_TRUTH_COLOR, 0)):
        for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
            _dashed_line(canvas, start, end, ink, width_px, extra)


def _dashed_line(
    canvas: Pixels,
    start: tuple[float, float],
    end: tuple[float, float],
    ink: Color,
    width_px: int,
    extra_px: int,
) -> None:
    length = math.dist(start, end)
    num_dashes = max(1, round(length / (6.0 * width_px)))
    for dash in range(num_dashes):
        # Half a dash at each end, so that the corners are always drawn.
        first, last = max(0.0, (dash - 0.25) / num_dashes), (dash + 0.25) / num_dashes
        _segment(canvas, start, end, first, last, ink, width_px + extra_px)
    _segment(canvas, start, end, 1 - 0.25 / num_dashes, 1.0, ink, width_px + extra_px)


def _segment(
    canvas: Pixels,
    start: tuple[float, float],
    end: tuple[float, float],
    first: float,
    last: float,
    ink: Color,
    width_px: int,
) -> None:
    (x0, y0), (x1, y1) = start, end
    here = _fixed(x0 + (x1 - x0) * first, y0 + (y1 - y0) * first)
    there = _fixed(x0 + (x1 - x0) * last, y0 + (y1 - y0) * last)
    cv2.line(canvas, here, there, ink, width_px, cv2.LINE_AA, _SUBPIXEL_BITS)


def _box_px(canvas: Pixels, box: Box, width_px: int) -> Box:
    """Return the corners in whole pixels, pulled in so that the stroke stays in the picture.

    OpenCV counts pixel centres as whole numbers; normalised 0 is the picture's very edge. Whole
    pixels keep the strokes crisp: between two rows a thin one would be half its halo.
    """
    height, width = canvas.shape[:2]
    inset = (width_px - 1) / 2
    x_min, x_max = (_clamp(x * width - 0.5, inset, width - 1 - inset) for x in (box[0], box[2]))
    y_min, y_max = (_clamp(y * height - 0.5, inset, height - 1 - inset) for y in (box[1], box[3]))
    return x_min, y_min, x_max, y_max


def _clamp(value: float, least: float, most: float) -> float:
    return max(0.0, round(min(max(value, least), most)))


def _fixed(x: float, y: float) -> tuple[int, int]:
    return round(x * 2**_SUBPIXEL_BITS), round(y * 2**_SUBPIXEL_BITS)
