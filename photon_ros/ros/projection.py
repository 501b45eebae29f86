"""From pixels to rays through a CameraInfo: the pinhole models of sensor_msgs. Pure.

https://docs.ros.org/en/api/sensor_msgs: K = [fx 0 cx; 0 fy cy; 0 0 1] and D describe the raw
image, P = [fx' 0 cx' Tx; 0 fy' cy' Ty; 0 0 1 0] the rectified one. They are those of the full
sensor, of which the image is a region (roi), binned afterwards.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CameraInfo

from photon_ros.core.errors import InputError

PINHOLE_MODELS = ("plumb_bob", "rational_polynomial")
FISHEYE_MODELS = ("equidistant", "fisheye")

Points = NDArray[np.float64]


class ProjectionError(InputError):
    """A CameraInfo that does not say where a pixel looks; the message says why."""


def plane_points(
    pixels: Points, info: CameraInfo, *, width_px: int, height_px: int, is_rectified: bool
) -> Points:
    """Return where the pixels' rays meet the plane z = 1 m of the camera's optical frame.

    Args:
        pixels: (num_points, 2), x and y from the image's top left corner, so that the middle
            of the first pixel is (0.5, 0.5).
        width_px, height_px: size of the image; it has to be the one that ``info`` describes.
        is_rectified: the image has been rectified, so that P holds for it instead of K and D.

    Returns:
        (num_points, 2) float64, x to the right and y down, in metres.

    Raises:
        ProjectionError: not calibrated, another image's size, or an unknown distortion.
    """
    binning = np.array([max(1, info.binning_x), max(1, info.binning_y)], np.float64)
    _check_size(info, binning, width_px, height_px)
    offset = np.array([info.roi.x_offset, info.roi.y_offset], np.float64)
    # Calibrations count pixel centres as whole numbers.
    sensor = np.asarray(pixels, np.float64).reshape(-1, 2) * binning + offset - 0.5
    if is_rectified:
        p = np.asarray(info.p, np.float64).reshape(3, 4)
        _check_focal(p[0, 0], p[1, 1])
        # At z = 1: x' = fx' x + cx' + Tx, where Tx is that of the second camera of a stereo pair.
        rays: Points = (sensor - p[:2, 2] - p[:2, 3]) / np.array([p[0, 0], p[1, 1]])
        return rays
    k = np.asarray(info.k, np.float64).reshape(3, 3)
    _check_focal(k[0, 0], k[1, 1])
    if len(sensor) == 0:
        return sensor
    return _undistorted(sensor, k, np.asarray(info.d, np.float64), info.distortion_model)


def _check_size(info: CameraInfo, binning: Points, width_px: int, height_px: int) -> None:
    region = np.array([info.roi.width or info.width, info.roi.height or info.height])
    described = tuple(int(side) for side in region // binning)
    if described != (width_px, height_px):
        raise ProjectionError(
            f"camera_info is of an image of {described[0]}x{described[1]}, "
            f"and the image has {width_px}x{height_px}"
        )


def _check_focal(fx: float, fy: float) -> None:
    if not (np.isfinite(fx) and np.isfinite(fy) and fx > 0 and fy > 0):
        raise ProjectionError(f"camera_info is not calibrated: focal lengths {fx:g} and {fy:g}")


def _undistorted(sensor: Points, k: Points, d: Points, model: str) -> Points:
    if not d.any():
        straight: Points = (sensor - k[:2, 2]) / np.array([k[0, 0], k[1, 1]])
        return straight
    columns = sensor.reshape(-1, 1, 2)
    if model in FISHEYE_MODELS:
        rays = cv2.fisheye.undistortPoints(columns, k, d[:4])
    elif model in PINHOLE_MODELS:
        rays = cv2.undistortPoints(columns, k, d)
    else:
        allowed = ", ".join((*PINHOLE_MODELS, *FISHEYE_MODELS))
        raise ProjectionError(f"distortion model {model!r} is not one of {allowed}")
    return np.asarray(rays, np.float64).reshape(-1, 2)
