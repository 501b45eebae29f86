"""A small drawing surface in unit coordinates, and the colours things are painted in."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

Colour = tuple[float, float, float]
Points = Sequence[tuple[float, float]] | NDArray[np.float64]

# Centre of each colour word in RGB, 0 to 255; painted colours scatter around it.
PALETTE: dict[str, Colour] = {
    "red": (200, 35, 38),
    "orange": (238, 126, 22),
    "yellow": (240, 215, 45),
    "green": (48, 150, 62),
    "blue": (42, 82, 200),
    "purple": (132, 52, 165),
    "white": (236, 236, 233),
    "black": (32, 32, 35),
}
_SHIFT = 4


def paint_of(colour: str, rng: np.random.Generator) -> Colour:
    """Return a shade of the colour word, RGB 0 to 255."""
    base = np.array(PALETTE[colour])
    if colour == "black":
        shade = base * rng.uniform(0.5, 1.5) + rng.normal(0, 3, 3)
    elif colour == "white":
        shade = base * rng.uniform(0.88, 1.05) + rng.normal(0, 4, 3)
    else:
        shade = base * rng.uniform(0.78, 1.12) + rng.normal(0, 9, 3)
    red, green, blue = np.clip(shade, 0, 255)
    return float(red), float(green), float(blue)


def scaled(colour: Colour, factor: float) -> Colour:
    """Return the colour made darker (below 1) or lighter (above 1)."""
    red, green, blue = (min(255.0, max(0.0, channel * factor)) for channel in colour)
    return red, green, blue


def contrasting(colour: Colour) -> Colour:
    """Return near white for dark paint and near black for light paint."""
    luma = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]
    return (235.0, 235.0, 230.0) if luma < 140 else (45.0, 45.0, 48.0)


def ellipse_points(
    x: float, y: float, radius_x: float, radius_y: float, num_points: int = 32
) -> NDArray[np.float64]:
    """Return (num_points, 2) points on an ellipse, unit coordinates."""
    angle = np.linspace(0, 2 * np.pi, num_points, endpoint=False)
    return np.stack([x + radius_x * np.cos(angle), y + radius_y * np.sin(angle)], axis=1)


class Canvas:
    """One object being painted: colour and coverage on a patch of pixels.

    Drawing coordinates run from 0 to 1 over the object's extent, origin top left; ``margin_px``
    pixels around it catch the antialiased edge.

    Attributes:
        rgb: (H, W, 3) float32, 0 to 255.
        alpha: (H, W) float32, 0 to 1.
    """

    def __init__(self, width_px: float, height_px: float, margin_px: int = 2) -> None:
        self.width_px = width_px
        self.height_px = height_px
        self.margin_px = margin_px
        shape = int(np.ceil(height_px)) + 2 * margin_px, int(np.ceil(width_px)) + 2 * margin_px
        self.rgb: NDArray[np.float32] = np.zeros((*shape, 3), np.float32)
        self.alpha: NDArray[np.float32] = np.zeros(shape, np.float32)

    def coverage(self, points: Points) -> NDArray[np.float32]:
        """Return (H, W) in [0, 1]: how much of each pixel the polygon covers."""
        scale = np.array([self.width_px, self.height_px])
        # Pixel k of the raster covers [k, k + 1), while cv2 puts its centre at k.
        pixels = np.asarray(points, np.float64) * scale + self.margin_px - 0.5
        fixed = np.round(pixels * (1 << _SHIFT)).astype(np.int32)
        raster = np.zeros(self.alpha.shape, np.uint8)
        cv2.fillPoly(raster, [fixed], 255, cv2.LINE_AA, _SHIFT)
        cover: NDArray[np.float32] = raster.astype(np.float32) / np.float32(255)
        return cover

    def polygon(self, points: Points, colour: Colour) -> None:
        """Paint a filled polygon."""
        self._blend(self.coverage(points), colour)

    def ellipse(self, x: float, y: float, radius_x: float, radius_y: float, colour: Colour) -> None:
        """Paint a filled ellipse."""
        self.polygon(ellipse_points(x, y, radius_x, radius_y), colour)

    def rectangle(
        self, left: float, top: float, right: float, bottom: float, colour: Colour
    ) -> None:
        """Paint a filled upright rectangle."""
        self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], colour)

    def decorate(self, points: Points, colour: Colour) -> None:
        """Paint a polygon only where something is already painted."""
        cover = self.coverage(points) * self.alpha
        self.rgb += (np.array(colour, np.float32) - self.rgb) * cover[..., None]

    def shade_round(self, darkest: float, light_x: float) -> None:
        """Darken towards the sides as on an upright cylinder lit from ``light_x``."""
        across = (np.arange(self.rgb.shape[1]) + 0.5 - self.margin_px) / self.width_px
        falloff = np.clip(np.abs(across - light_x), 0, 1) ** 2
        self.rgb *= (1.06 - (1.06 - darkest) * falloff)[None, :, None].astype(np.float32)

    def shade_ball(self, darkest: float, light_x: float, light_y: float) -> None:
        """Darken away from a light spot as on a sphere."""
        across = (np.arange(self.rgb.shape[1]) + 0.5 - self.margin_px) / self.width_px
        down = (np.arange(self.rgb.shape[0]) + 0.5 - self.margin_px) / self.height_px
        distance = (across[None, :] - light_x) ** 2 + (down[:, None] - light_y) ** 2
        factor = 1.12 - (1.12 - darkest) * np.clip(distance / 0.5, 0, 1)
        self.rgb *= factor[..., None].astype(np.float32)

    def _blend(self, cover: NDArray[np.float32], colour: Colour) -> None:
        self.rgb += (np.array(colour, np.float32) - self.rgb) * cover[..., None]
        # Where nothing was painted yet the edge keeps the full colour; alpha does the mixing.
        fresh = (self.alpha == 0) & (cover > 0)
        self.rgb[fresh] = colour
        np.maximum(self.alpha, cover, out=self.alpha)
