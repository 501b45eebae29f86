"""Encodings that this package does not convert itself, through cv_bridge where there is one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from photon_ros.core.errors import ImageError

Convert = Callable[[Any], NDArray[np.uint8]]
"""From a sensor_msgs/Image to its (height, width, 3) uint8 RGB pixels; raises ImageError."""


@cache
def installed_cv_bridge() -> Any:
    """Return the module cv_bridge; None where it is missing or does not load.

    A cv_bridge that was built for another NumPy raises whatever it likes.
    """
    try:
        return importlib.import_module("cv_bridge")
    except Exception:
        return None


def converter(cv_bridge: Any) -> Convert | None:
    """Return the conversion of a cv_bridge module; None without one."""
    if cv_bridge is None:
        return None
    bridge = cv_bridge.CvBridge()

    def convert(message: Any) -> NDArray[np.uint8]:
        try:
            pixels = np.asarray(bridge.imgmsg_to_cv2(message, "rgb8"))
        except Exception as error:
            raise ImageError(f"cv_bridge cannot convert {message.encoding!r}: {error}") from error
        if pixels.dtype != np.uint8 or pixels.shape != (message.height, message.width, 3):
            raise ImageError(
                f"cv_bridge made {pixels.dtype} of shape {pixels.shape} of {message.encoding!r}"
            )
        return np.ascontiguousarray(pixels)

    return convert
