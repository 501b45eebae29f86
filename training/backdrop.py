"""What is behind the objects: walls and floors, corridors, textures and unlabelled clutter."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from training.canvas import Colour

Picture = NDArray[np.float32]


def _muted(rng: np.random.Generator, low: float = 40, high: float = 215) -> Colour:
    """Return a greyish colour, so that the backdrop competes with objects but rarely in hue."""
    grey = rng.uniform(low, high)
    tint = rng.normal(0, rng.choice([5, 14, 30]), 3)
    red, green, blue = np.clip(grey + tint, 5, 250)
    return float(red), float(green), float(blue)


def _gradient(width: int, height: int, rng: np.random.Generator) -> Picture:
    first, second = np.array(_muted(rng), np.float32), np.array(_muted(rng), np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    across = np.linspace(0, 1, width)[None, :] * np.cos(angle)
    down = np.linspace(0, 1, height)[:, None] * np.sin(angle)
    ramp = across + down
    ramp = (ramp - ramp.min()) / max(1e-6, float(np.ptp(ramp)))
    picture: Picture = (first + (second - first) * ramp[..., None]).astype(np.float32)
    return picture


def _fill(picture: Picture, corners: list[tuple[float, float]], colour: Colour) -> None:
    """Fill a polygon given in shares of the picture."""
    height, width = picture.shape[:2]
    points = np.array(corners) * (width, height) * 16
    cv2.fillPoly(picture, [points.astype(np.int32)], colour, cv2.LINE_8, 4)


def _room(width: int, height: int, rng: np.random.Generator) -> Picture:
    picture = _gradient(width, height, rng)
    horizon = rng.uniform(0.25, 0.7)
    floor = _muted(rng)
    _fill(picture, [(0, horizon), (1, horizon), (1, 1), (0, 1)], floor)
    if rng.random() < 0.5:  # tiles or boards running to the horizon
        line = tuple(channel * rng.uniform(0.75, 0.92) for channel in floor)
        vanish = rng.uniform(0.2, 0.8)
        for foot in np.linspace(-1, 2, int(rng.integers(5, 14))):
            start = (int(vanish * width + (foot - vanish) * width * 0.15), int(horizon * height))
            cv2.line(picture, start, (int(foot * width), height), line, 1, cv2.LINE_AA)
    if rng.random() < 0.4:
        skirting = _muted(rng, 60, 240)
        _fill(
            picture,
            [(0, horizon - 0.03), (1, horizon - 0.03), (1, horizon), (0, horizon)],
            skirting,
        )
    return picture


def _corridor(width: int, height: int, rng: np.random.Generator) -> Picture:
    picture = np.empty((height, width, 3), np.float32)
    picture[:] = _muted(rng, 90, 220)
    left, right = rng.uniform(0.3, 0.45), rng.uniform(0.55, 0.7)
    top, bottom = rng.uniform(0.25, 0.4), rng.uniform(0.5, 0.68)
    _fill(picture, [(0, 0), (left, top), (left, bottom), (0, 1)], _muted(rng))
    _fill(picture, [(1, 0), (right, top), (right, bottom), (1, 1)], _muted(rng))
    _fill(picture, [(0, 1), (left, bottom), (right, bottom), (1, 1)], _muted(rng))
    _fill(picture, [(0, 0), (left, top), (right, top), (1, 0)], _muted(rng, 150, 240))
    return picture


def texture(width: int, height: int, rng: np.random.Generator) -> Picture:
    """Return (height, width, 1) smooth noise of mean 0 and peak near 1, at several scales."""
    total = np.zeros((height, width), np.float32)
    for cells, weight in ((4, 0.5), (12, 0.3), (40, 0.2)):
        coarse = rng.uniform(-1, 1, (cells, cells)).astype(np.float32)
        total += weight * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return total[..., None]


def _clutter(picture: Picture, rng: np.random.Generator) -> None:
    """Draw unlabelled things: posts, panels, cables, patches of mixed shape."""
    height, width = picture.shape[:2]
    for _ in range(int(rng.poisson(2.5))):
        colour = _muted(rng, 20, 235)
        x, y = rng.uniform(0, 1, 2)
        kind = rng.random()
        if kind < 0.3:  # a post or a pipe
            half = rng.uniform(0.004, 0.02)
            _fill(picture, [(x - half, 0), (x + half, 0), (x + half, y), (x - half, y)], colour)
        elif kind < 0.6:  # a long panel, longer than any box or door is
            size_x, size_y = rng.uniform(0.25, 0.6), rng.uniform(0.02, 0.1)
            corners = [(x, y), (x + size_x, y), (x + size_x, y + size_y), (x, y + size_y)]
            _fill(picture, corners, colour)
        elif kind < 0.8:  # a cable
            ends = rng.uniform(-0.2, 1.2, (2, 2)) * (width, height)
            first, second = ends.astype(int).tolist()
            cv2.line(picture, first, second, colour, int(rng.integers(1, 4)), cv2.LINE_AA)
        else:  # a crumpled patch
            angle = np.sort(rng.uniform(0, 2 * np.pi, 7))
            radius = rng.uniform(0.01, 0.07, 7)
            corners = [
                (x + r * np.cos(a), y + r * np.sin(a)) for a, r in zip(angle, radius, strict=True)
            ]
            _fill(picture, corners, colour)


def render_backdrop(width: int, height: int, rng: np.random.Generator) -> Picture:
    """Return a (height, width, 3) float32 RGB backdrop, 0 to 255, without any known object."""
    make = (_gradient, _room, _room, _corridor)[int(rng.integers(4))]
    picture = make(width, height, rng)
    if rng.random() < 0.8:
        _clutter(picture, rng)
    if rng.random() < 0.7:
        picture += texture(width, height, rng) * np.float32(rng.uniform(4, 28))
    return picture
