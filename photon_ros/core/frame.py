"""Frame: one camera image with its stamp, free of ROS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from photon_ros.core.errors import ImageError


@dataclass(frozen=True, eq=False, slots=True)
class Frame:
    """One image of one camera.

    Compared and hashed by identity: two requests share the encoded image exactly when they
    hold the same Frame object.

    Attributes:
        image: (height, width, 3) uint8, RGB.
        stamp_ns: capture time in nanoseconds of the camera's clock; 0 when unknown.
        frame_id: coordinate frame of the camera.
        camera: name of the camera within this process.
        sequence: running number of the frame within its camera.
    """

    image: NDArray[np.uint8]
    stamp_ns: int = 0
    frame_id: str = ""
    camera: str = ""
    sequence: int = 0

    def __post_init__(self) -> None:
        image = self.image
        if not isinstance(image, np.ndarray):
            raise ImageError(f"image must be a numpy array, got {type(image).__name__}")
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ImageError(
                f"image must be uint8 of shape (height, width, 3), "
                f"got {image.dtype} of shape {image.shape}"
            )
        if image.shape[0] < 1 or image.shape[1] < 1:
            raise ImageError(f"image has no pixels: shape {image.shape}")

    @property
    def height_px(self) -> int:
        """Height in pixels."""
        return int(self.image.shape[0])

    @property
    def width_px(self) -> int:
        """Width in pixels."""
        return int(self.image.shape[1])
