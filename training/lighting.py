"""What a camera does to a scene: uneven light, gain, tint, blur and noise."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray


def photograph(picture: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the picture as a camera would have taken it.

    Args:
        picture: (H, W, 3) float32 RGB, 0 to 255; changed in place.
        rng: source of every random choice.

    Returns:
        (H, W, 3) uint8 RGB.
    """
    height, width = picture.shape[:2]
    if rng.random() < 0.6:
        near, far = rng.uniform(0.6, 1.15, 2)
        if rng.random() < 0.5:
            picture *= np.linspace(near, far, width, dtype=np.float32)[None, :, None]
        else:
            picture *= np.linspace(near, far, height, dtype=np.float32)[:, None, None]
    gain = rng.uniform(0.7, 1.18)
    tint = np.clip(rng.normal(1, 0.035, 3), 0.92, 1.08)
    picture *= (gain * tint).astype(np.float32)
    if rng.random() < 0.5:
        sigma = rng.uniform(0.3, 1.1) * width / 384
        picture = cv2.GaussianBlur(picture, (0, 0), sigma).astype(np.float32)
    if rng.random() < 0.7:
        noise = np.empty(picture.shape, np.float32)
        cv2.setRNGSeed(int(rng.integers(2**31)))
        spread = float(rng.uniform(1, 7))
        cv2.randn(noise, np.zeros(3), np.full(3, spread))
        picture = picture + noise
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)
