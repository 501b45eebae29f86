"""Pixels to the plane z = 1 m, against the camera models written out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sensor_msgs")

from hypothesis import given
from hypothesis import strategies as st
from sensor_msgs.msg import CameraInfo, RegionOfInterest

from photon_ros.ros.projection import ProjectionError, plane_points

WIDTH, HEIGHT = 640, 480
PINHOLE_D = [-0.28, 0.09, 0.0008, -0.0013, -0.01]
RATIONAL_D = [0.1, -0.2, 0.001, 0.002, 0.05, 0.15, -0.18, 0.03]
FISHEYE_D = [0.03, -0.01, 0.004, -0.001]

inside = st.tuples(st.floats(-0.6, 0.6), st.floats(-0.45, 0.45))


def info_of(model: str, d: list[float], **changes: Any) -> CameraInfo:
    info = CameraInfo(width=WIDTH, height=HEIGHT, distortion_model=model)
    info.k = [500.0, 0.0, 321.5, 0.0, 510.0, 238.25, 0.0, 0.0, 1.0]
    info.d = d
    info.p = [480.0, 0.0, 320.0, -24.0, 0.0, 480.0, 240.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    for name, value in changes.items():
        setattr(info, name, value)
    return info


def pinhole(x: float, y: float, d: list[float]) -> tuple[float, float]:
    """https://docs.opencv.org, calib3d: plumb_bob, and rational_polynomial with eight numbers."""
    k1, k2, p1, p2, k3 = d[:5]
    k4, k5, k6 = d[5:8] if len(d) >= 8 else (0.0, 0.0, 0.0)
    r2 = x * x + y * y
    radial = (1 + k1 * r2 + k2 * r2**2 + k3 * r2**3) / (1 + k4 * r2 + k5 * r2**2 + k6 * r2**3)
    return (
        x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
        y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
    )


def fisheye(x: float, y: float, d: list[float]) -> tuple[float, float]:
    """https://docs.opencv.org, fisheye: the angle to the axis is bent, not its tangent."""
    r = math.hypot(x, y)
    if r == 0.0:
        return x, y
    t = math.atan(r)
    bent = t * (1 + d[0] * t**2 + d[1] * t**4 + d[2] * t**6 + d[3] * t**8)
    return x * bent / r, y * bent / r


def pixel(x: float, y: float, info: CameraInfo) -> tuple[float, float]:
    """Where a point at z = 1 is seen, from the image's corner; centres are at + 0.5."""
    bend = fisheye if info.distortion_model == "equidistant" else pinhole
    bent_x, bent_y = bend(x, y, list(info.d))
    return info.k[0] * bent_x + info.k[2] + 0.5, info.k[4] * bent_y + info.k[5] + 0.5


def planes(info: CameraInfo, *pixels: tuple[float, float], **changes: Any) -> np.ndarray:
    size = {"width_px": WIDTH, "height_px": HEIGHT, "is_rectified": False, **changes}
    return plane_points(np.array(pixels), info, **size)


@pytest.mark.parametrize(
    ("model", "d"),
    [
        ("plumb_bob", PINHOLE_D),
        ("plumb_bob", [0.0] * 5),
        ("rational_polynomial", RATIONAL_D),
        ("equidistant", FISHEYE_D),
    ],
)
@given(places=st.lists(inside, min_size=1, max_size=5))
def test_points_are_found_where_the_camera_model_sees_them(
    model: str, d: list[float], places: list[tuple[float, float]]
) -> None:
    info = info_of(model, d)
    found = planes(info, *(pixel(x, y, info) for x, y in places))
    assert np.allclose(found, places, atol=2e-3)


def test_no_distortion_needs_no_model() -> None:
    info = info_of("", [])
    assert np.allclose(planes(info, (322.0, 238.75)), [[0.0, 0.0]], atol=1e-12)


def test_a_binned_region_is_a_part_of_the_sensor() -> None:
    full = info_of("plumb_bob", PINHOLE_D)
    region = RegionOfInterest(x_offset=100, y_offset=60, width=400, height=300)
    part = info_of("plumb_bob", PINHOLE_D, roi=region, binning_x=2, binning_y=3)
    x, y = pixel(0.1, -0.05, full)
    seen = ((x - 100) / 2, (y - 60) / 3)
    found = planes(part, seen, width_px=200, height_px=100)
    assert np.allclose(found, [[0.1, -0.05]], atol=1e-4)


def test_a_rectified_image_goes_by_p_with_its_baseline() -> None:
    info = info_of("plumb_bob", PINHOLE_D)
    x, y = 0.2, -0.1
    seen = (480.0 * x + 320.0 - 24.0 + 0.5, 480.0 * y + 240.0 + 0.5)
    assert np.allclose(planes(info, seen, is_rectified=True), [[x, y]])


@pytest.mark.parametrize(
    ("changes", "size", "reason"),
    [
        ({"k": [0.0] * 9}, (WIDTH, HEIGHT), "not calibrated: focal lengths 0 and 0"),
        ({"k": [float("nan")] * 9}, (WIDTH, HEIGHT), "not calibrated"),
        ({}, (WIDTH, HEIGHT - 1), "of an image of 640x480, and the image has 640x479"),
        ({"distortion_model": "moebius"}, (WIDTH, HEIGHT), "'moebius' is not one of plumb_bob"),
        ({"binning_x": 2}, (WIDTH, HEIGHT), "of an image of 320x480"),
    ],
)
def test_a_calibration_that_does_not_fit_is_refused(
    changes: dict[str, Any], size: tuple[int, int], reason: str
) -> None:
    info = info_of("plumb_bob", PINHOLE_D, **changes)
    with pytest.raises(ProjectionError) as caught:
        planes(info, (1.0, 1.0), width_px=size[0], height_px=size[1])
    assert reason in str(caught.value)


def test_no_points_are_no_points() -> None:
    assert planes(info_of("plumb_bob", PINHOLE_D), *[]).shape == (0, 2)
