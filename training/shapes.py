"""How each class of object is painted: flat signs and shaded bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.canvas import Canvas, Colour, contrasting, ellipse_points, scaled

Painter = Callable[[Canvas, Colour, np.random.Generator], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """A class of object.

    Attributes:
        paint: paints it over the whole unit square of a canvas.
        aspect: least and greatest width as a share of the height.
        stands: True for a body that throws a contact shadow on the floor.
    """

    paint: Painter
    aspect: tuple[float, float]
    stands: bool


def _fit(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stretch points to fill the unit square, so that the canvas extent is the object's."""
    low, high = points.min(axis=0), points.max(axis=0)
    fitted: NDArray[np.float64] = (points - low) / (high - low)
    return fitted


def _turned(points: NDArray[np.float64], degrees: float) -> NDArray[np.float64]:
    angle = np.radians(degrees)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return _fit(points @ turn.T)


def _flat(
    canvas: Canvas, outline: NDArray[np.float64], colour: Colour, rng: np.random.Generator
) -> None:
    """Paint a flat sign: plain, with a rim, or striped."""
    canvas.polygon(outline, colour)
    style = rng.random()
    if style < 0.2:
        middle = outline.mean(axis=0)
        canvas.polygon(outline, scaled(colour, 0.6))
        canvas.decorate((outline - middle) * 0.8 + middle, colour)
    elif style < 0.35:
        stripe = contrasting(colour)
        for left in np.arange(rng.uniform(0, 0.3), 1.2, 0.4).tolist():
            corners = [(left, -0.1), (left + 0.1, -0.1), (left - 0.2, 1.1), (left - 0.3, 1.1)]
            canvas.decorate(corners, stripe)


def _circle(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    _flat(canvas, ellipse_points(0.5, 0.5, 0.5, 0.5, 40), colour, rng)


def _square(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    corners = np.array([(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)])
    _flat(canvas, _turned(corners, rng.choice([0, 0, rng.uniform(-30, 30)])), colour, rng)


def _triangle(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    angle = np.radians([-90, 30, 150])
    corners = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    _flat(canvas, _turned(corners, rng.choice([0, 180, rng.uniform(-60, 60)])), colour, rng)


def _star(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    angle = np.radians(-90 + 36 * np.arange(10))
    radius = np.where(np.arange(10) % 2 == 0, 1.0, rng.uniform(0.38, 0.46))
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    canvas.polygon(_turned(points, rng.uniform(-36, 36)), colour)


def _ball(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    canvas.ellipse(0.5, 0.5, 0.5, 0.5, colour)
    if rng.random() < 0.3:
        band = rng.uniform(0.42, 0.58)
        canvas.decorate(ellipse_points(0.5, band, 0.5, 0.07), contrasting(colour))
    light_x, light_y = rng.uniform(0.25, 0.7), rng.uniform(0.2, 0.38)
    canvas.shade_ball(rng.uniform(0.3, 0.5), light_x, light_y)
    canvas.decorate(ellipse_points(light_x, light_y, 0.08, 0.07), (250, 250, 250))


def _box(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    depth_x, depth_y = rng.uniform(0.18, 0.34), rng.uniform(0.16, 0.3)
    top, side = scaled(colour, 1.25), scaled(colour, rng.uniform(0.5, 0.68))
    if sum(colour) > 640:  # white cannot become lighter: darken the front instead
        top, colour = colour, scaled(colour, 0.86)
    front = np.array([(0, depth_y), (1 - depth_x, depth_y), (1 - depth_x, 1), (0, 1)])
    lid = np.array([(0, depth_y), (depth_x, 0), (1, 0), (1 - depth_x, depth_y)])
    flank = np.array([(1 - depth_x, depth_y), (1, 0), (1, 1 - depth_y), (1 - depth_x, 1)])
    if rng.random() < 0.5:
        for face in (front, lid, flank):
            face[:, 0] = 1 - face[:, 0]
    canvas.polygon(front, colour)
    canvas.polygon(lid, top)
    canvas.polygon(flank, side)
    if rng.random() < 0.4:
        low, high = front.min(axis=0), front.max(axis=0)
        label = low + (high - low) * np.array([(0.25, 0.4), (0.75, 0.4), (0.75, 0.7), (0.25, 0.7)])
        canvas.decorate(label, contrasting(colour))


def _cone(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    base_top = rng.uniform(0.86, 0.92)
    tip, foot = rng.uniform(0.05, 0.09), rng.uniform(0.32, 0.4)
    base = scaled(colour, 0.8) if rng.random() < 0.7 else (50.0, 50.0, 52.0)
    canvas.polygon([(0.06, base_top), (0.94, base_top), (1, 1), (0, 1)], base)
    body = [(0.5 - tip, 0), (0.5 + tip, 0), (0.5 + foot, 0.94), (0.5 - foot, 0.94)]
    canvas.polygon(body, colour)
    band_colour = (240.0, 240.0, 240.0) if sum(colour) < 620 else (235.0, 120.0, 30.0)
    for top, height in ((0.28, 0.14), (0.58, 0.14))[: int(rng.integers(1, 3))]:
        half = [tip + (foot - tip) * y / 0.94 for y in (top, top + height)]
        canvas.decorate(
            [
                (0.5 - half[0], top),
                (0.5 + half[0], top),
                (0.5 + half[1], top + height),
                (0.5 - half[1], top + height),
            ],
            band_colour,
        )
    canvas.shade_round(rng.uniform(0.0, 0.3), rng.uniform(0.3, 0.6))


def _bottle(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    neck, shoulder = rng.uniform(0.14, 0.2), rng.uniform(0.28, 0.38)
    canvas.polygon(
        [
            (0.5 - neck, 0.05),
            (0.5 + neck, 0.05),
            (0.5 + neck, shoulder - 0.1),
            (1, shoulder + 0.06),
            (1, 0.97),
            (0.93, 1),
            (0.07, 1),
            (0, 0.97),
            (0, shoulder + 0.06),
            (0.5 - neck, shoulder - 0.1),
        ],
        colour,
    )
    canvas.rectangle(0.5 - neck - 0.04, 0, 0.5 + neck + 0.04, 0.09, scaled(colour, 0.55))
    if rng.random() < 0.7:
        top = rng.uniform(0.5, 0.6)
        label = [(0, top), (1, top), (1, top + 0.22), (0, top + 0.22)]
        canvas.decorate(label, contrasting(colour))
    canvas.shade_round(rng.uniform(0.1, 0.4), rng.uniform(0.25, 0.45))


def _person(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    tone = rng.uniform(0.35, 1.0)
    skin, hair = (235 * tone, 190 * tone, 160 * tone), scaled((90, 65, 45), rng.uniform(0.3, 1.2))
    legs = scaled((70, 75, 95), rng.uniform(0.35, 1.5))
    hip, stride = rng.uniform(0.5, 0.56), rng.uniform(0.1, 0.32)
    for side, foot in ((-1, 0.5 - stride), (1, 0.5 + stride)):
        inner, outer = 0.5 + 0.02 * side, 0.5 + 0.24 * side
        canvas.polygon(
            [(inner, hip), (outer, hip), (foot + 0.1 * side, 0.97), (foot - 0.06 * side, 0.97)],
            scaled(legs, 1.0 if side < 0 else 0.82),
        )
        canvas.ellipse(foot + 0.06 * side, 0.975, 0.12, 0.025, (40, 38, 38))
    swing = rng.uniform(0.0, 0.12)
    for side in (-1, 1):
        hand = 0.5 + (0.3 + swing) * side
        arm = [(0.5 + 0.2 * side, 0.19), (0.5 + 0.36 * side, 0.22), (hand + 0.08 * side, 0.5)]
        canvas.polygon([*arm, (hand - 0.06 * side, 0.52)], scaled(colour, 0.78))
        canvas.ellipse(hand, 0.53, 0.07, 0.025, skin)
    torso = [
        (0.26, 0.18),
        (0.74, 0.18),
        (0.76, 0.4),
        (0.73, hip + 0.03),
        (0.27, hip + 0.03),
        (0.24, 0.4),
    ]
    canvas.polygon(torso, colour)
    canvas.rectangle(0.43, 0.12, 0.57, 0.2, skin)
    canvas.ellipse(0.5, 0.08, 0.17, 0.08, skin)
    canvas.decorate(ellipse_points(0.5, 0.04, 0.19, 0.05), hair)
    canvas.shade_round(rng.uniform(0.5, 0.8), rng.uniform(0.3, 0.7))


def _door(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    canvas.rectangle(0, 0, 1, 1, scaled(colour, 0.55) if rng.random() < 0.6 else (150, 145, 138))
    canvas.rectangle(0.09, 0.045, 0.91, 1, colour)
    panel = scaled(colour, 0.78) if sum(colour) > 150 else scaled(colour, 1.6)
    if rng.random() < 0.3:
        canvas.rectangle(0.28, 0.12, 0.72, 0.42, (150, 185, 205))
    else:
        canvas.rectangle(0.22, 0.12, 0.78, 0.46, panel)
    canvas.rectangle(0.22, 0.58, 0.78, 0.9, panel)
    knob = 0.16 if rng.random() < 0.5 else 0.84
    canvas.ellipse(knob, 0.53, 0.045, 0.022, (225, 200, 110))


def _barrel(canvas: Canvas, colour: Colour, rng: np.random.Generator) -> None:
    lid, bulge = rng.uniform(0.07, 0.12), rng.uniform(0.0, 0.06)
    sides = np.linspace(lid, 1 - lid, 9)
    inset = bulge * (2 * (sides - 0.5)) ** 2
    left = np.stack([inset, sides], axis=1)
    right = np.stack([1 - inset, sides], axis=1)[::-1]
    canvas.ellipse(0.5, 1 - lid, 0.5 - inset[-1], lid, colour)
    canvas.polygon(np.concatenate([left, right]), colour)
    for hoop in (0.3, 0.62):
        canvas.decorate(
            [(0, hoop), (1, hoop), (1, hoop + 0.06), (0, hoop + 0.06)], scaled(colour, 0.45)
        )
    canvas.shade_round(rng.uniform(0.1, 0.35), rng.uniform(0.3, 0.6))
    canvas.ellipse(
        0.5, lid, 0.5 - inset[0], lid, scaled(colour, 1.15 if sum(colour) < 640 else 0.8)
    )
    canvas.decorate(ellipse_points(0.5, lid, 0.4, lid * 0.72), scaled(colour, 0.82))


SHAPES: dict[str, Shape] = {
    "circle": Shape(_circle, (0.9, 1.1), stands=False),
    "square": Shape(_square, (0.9, 1.1), stands=False),
    "triangle": Shape(_triangle, (0.9, 1.15), stands=False),
    "star": Shape(_star, (0.9, 1.1), stands=False),
    "ball": Shape(_ball, (0.96, 1.04), stands=True),
    "box": Shape(_box, (0.9, 1.5), stands=True),
    "cone": Shape(_cone, (0.6, 0.85), stands=True),
    "bottle": Shape(_bottle, (0.28, 0.42), stands=True),
    "person": Shape(_person, (0.3, 0.45), stands=True),
    "door": Shape(_door, (0.42, 0.56), stands=False),
    "barrel": Shape(_barrel, (0.6, 0.85), stands=True),
}
