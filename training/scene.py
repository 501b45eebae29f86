"""Scenes with truth: objects pasted on a backdrop, with boxes and an id of every visible pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from training.backdrop import render_backdrop
from training.canvas import PALETTE, Canvas, paint_of
from training.lighting import photograph
from training.shapes import SHAPES

Box = tuple[float, float, float, float]
# Nothing is placed where it would leave less than this share of another object visible.
MIN_VISIBLE = 0.72


@dataclass(frozen=True, slots=True)
class SceneObject:
    """The truth about one object.

    Attributes:
        kind: class word.
        colour: colour word; "" where no colour can be said, as for people in photographs.
        box: (x_min, y_min, x_max, y_max) of the whole object, hidden parts too, pixels.
        mask: (height, width) bool of the box in whole pixels: what the whole object covers.
    """

    kind: str
    colour: str
    box: Box
    mask: NDArray[np.bool_] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Scene:
    """One picture with its truth.

    Attributes:
        image: (H, W, 3) uint8 RGB.
        objects: ordered left to right by the centre of the box.
        ids: (H, W) uint8, 1 + index in ``objects`` of what is seen there; 0 for the backdrop.
    """

    image: NDArray[np.uint8]
    objects: tuple[SceneObject, ...]
    ids: NDArray[np.uint8]

    def window(self, left: int, top: int, right: int, bottom: int) -> Scene:
        """Return a part of the picture; objects of which little is inside are dropped.

        What is seen of a dropped object stays in the picture, without an id.
        """
        kept, rank = [], np.zeros(len(self.objects) + 1, np.uint8)
        for i, thing in enumerate(self.objects, start=1):
            x_min, y_min, x_max, y_max = thing.box
            inside = max(x_min, left), max(y_min, top), min(x_max, right), min(y_max, bottom)
            width, height = inside[2] - inside[0], inside[3] - inside[1]
            if width <= 0 or height <= 0:
                continue
            if width * height < 0.4 * (x_max - x_min) * (y_max - y_min):
                continue
            box = inside[0] - left, inside[1] - top, inside[2] - left, inside[3] - top
            mask = thing.mask[
                int(inside[1] - y_min) : int(inside[3] - y_min),
                int(inside[0] - x_min) : int(inside[2] - x_min),
            ]
            kept.append((i, SceneObject(thing.kind, thing.colour, box, mask)))
        kept.sort(key=lambda entry: (entry[1].box[0] + entry[1].box[2], entry[1].box[1]))
        for new, (old, _) in enumerate(kept, start=1):
            rank[old] = new
        part = slice(top, bottom), slice(left, right)
        return Scene(self.image[part], tuple(thing for _, thing in kept), rank[self.ids[part]])


@dataclass(frozen=True, slots=True)
class Sprite:
    """A thing to paste: a painted shape, or a person cut out of a photograph.

    Attributes:
        rgb: (h, w, 3) float32, 0 to 255.
        alpha: (h, w) float32, 0 to 1.
        stands: True if it throws a contact shadow.
    """

    kind: str
    colour: str
    rgb: NDArray[np.float32]
    alpha: NDArray[np.float32]
    stands: bool

    def extent(self) -> tuple[int, int, int, int]:
        """Return (x_min, y_min, x_max, y_max) of what is at least half covered, pixels."""
        solid = self.alpha > 0.5
        rows, columns = np.flatnonzero(solid.any(1)), np.flatnonzero(solid.any(0))
        if not len(rows):
            return 0, 0, 0, 0
        return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def paint_sprite(kind: str, colour: str, height_px: float, rng: np.random.Generator) -> Sprite:
    """Paint one object of a class in a colour."""
    shape = SHAPES[kind]
    width_px = height_px * rng.uniform(*shape.aspect)
    canvas = Canvas(width_px, height_px)
    shape.paint(canvas, paint_of(colour, rng), rng)
    return Sprite(kind, colour, canvas.rgb, canvas.alpha, shape.stands)


class Composer:
    """Pastes sprites onto a picture and keeps the truth.

    Args:
        picture: (H, W, 3) float32 RGB, 0 to 255; it is painted on.
        min_visible: least share of every object that must stay visible.
    """

    def __init__(self, picture: NDArray[np.float32], min_visible: float = MIN_VISIBLE) -> None:
        self.picture = picture
        self._min_visible = min_visible
        self.objects: list[SceneObject] = []
        self._ids: NDArray[np.uint8] = np.zeros(picture.shape[:2], np.uint8)
        self._solid_px: list[int] = []

    def paste(self, sprite: Sprite, left: int, top: int, shadow: float = 0.0) -> bool:
        """Paste a sprite; refuse, returning False, if it would hide too much of another.

        A sprite may stick out of the picture as long as most of it stays inside; its box is
        then the part inside.
        """
        height, width = self._ids.shape
        x_min, y_min, x_max, y_max = sprite.extent()
        box = (
            max(0, left + x_min),
            max(0, top + y_min),
            min(width, left + x_max),
            min(height, top + y_max),
        )
        whole = (x_max - x_min) * (y_max - y_min)
        if whole == 0 or (box[2] - box[0]) * (box[3] - box[1]) < 0.6 * whole:
            return False
        if box[2] <= box[0] or box[3] <= box[1]:
            return False
        rows = slice(max(0, top), min(height, top + sprite.alpha.shape[0]))
        columns = slice(max(0, left), min(width, left + sprite.alpha.shape[1]))
        inner = (
            slice(rows.start - top, rows.stop - top),
            slice(columns.start - left, columns.stop - left),
        )
        alpha = sprite.alpha[inner]
        solid = alpha > 0.5
        if not self._leaves_others_visible(self._ids[rows, columns], solid):
            return False
        if shadow > 0 and sprite.stands:
            self._cast_shadow(box, shadow)
        target = self.picture[rows, columns]
        target += (sprite.rgb[inner] - target) * alpha[..., None]
        whole_box = float(box[0]), float(box[1]), float(box[2]), float(box[3])
        mask = solid[
            box[1] - rows.start : box[3] - rows.start,
            box[0] - columns.start : box[2] - columns.start,
        ]
        self.objects.append(SceneObject(sprite.kind, sprite.colour, whole_box, mask))
        self._ids[rows, columns][solid] = len(self.objects)
        self._solid_px.append(int(solid.sum()))
        return True

    def _leaves_others_visible(self, ids: NDArray[np.uint8], solid: NDArray[np.bool_]) -> bool:
        hidden = np.bincount(ids[solid], minlength=len(self.objects) + 1)
        for i, solid_px in enumerate(self._solid_px, start=1):
            if hidden[i] and int((self._ids == i).sum()) - hidden[i] < self._min_visible * solid_px:
                return False
        return True

    def _cast_shadow(self, box: tuple[int, int, int, int], strength: float) -> None:
        x_min, _, x_max, y_max = box
        width = x_max - x_min
        reach = max(2, int(0.14 * width))
        y0, y1 = max(0, y_max - reach), min(self.picture.shape[0], y_max + reach)
        x0, x1 = max(0, x_min - width // 4), min(self.picture.shape[1], x_max + width // 4)
        if y1 <= y0 or x1 <= x0:
            return
        across = (np.arange(x0, x1) - (x_min + x_max) / 2) / (0.65 * max(1, width))
        down = (np.arange(y0, y1) - (y_max - 0.02 * width)) / reach
        dark = np.clip(1 - across[None, :] ** 2 - down[:, None] ** 2, 0, 1) * strength
        self.picture[y0:y1, x0:x1] *= (1 - dark[..., None]).astype(np.float32)

    def cover(
        self,
        front: NDArray[np.float32],
        boxes: Sequence[tuple[int, int, int, int]],
        foot_px: int,
    ) -> None:
        """Put the parts of ``front`` in ``boxes`` before every object that stands behind them.

        Args:
            front: (H, W, 3) float32 RGB picture of what covers.
            boxes: (x_min, y_min, x_max, y_max) of what covers, pixels.
            foot_px: row on which it stands; objects whose box ends above it are behind.
        """
        behind = [0, *(thing.box[3] < foot_px for thing in self.objects)]
        is_behind = np.array(behind, np.bool_)
        for x_min, y_min, x_max, y_max in boxes:
            part = slice(y_min, y_max), slice(x_min, x_max)
            hidden = is_behind[self._ids[part]]
            self.picture[part][hidden] = front[part][hidden]
            self._ids[part][hidden] = 0

    def _left_to_right(self) -> list[int]:
        boxes = [thing.box for thing in self.objects]
        return sorted(range(len(boxes)), key=lambda i: (boxes[i][0] + boxes[i][2], boxes[i][1]))

    def solid_px(self) -> list[int]:
        """Return the pixels that each object would show if nothing hid it, left to right."""
        return [self._solid_px[i] for i in self._left_to_right()]

    def finish(self, rng: np.random.Generator) -> Scene:
        """Photograph the picture and return it with its truth, ordered left to right."""
        order = self._left_to_right()
        rank = np.zeros(len(order) + 1, np.uint8)
        rank[np.array(order, int) + 1] = np.arange(1, len(order) + 1)
        objects = tuple(self.objects[i] for i in order)
        return Scene(photograph(self.picture, rng), objects, rank[self._ids])


def render_scene(
    width_px: int,
    height_px: int,
    rng: np.random.Generator,
    *,
    num_objects: int | None = None,
    heights: tuple[float, float] = (0.07, 0.48),
    people: Sequence[Sprite] = (),
    backdrop: NDArray[np.float32] | None = None,
) -> Scene:
    """Render one scene of up to eight objects.

    Args:
        width_px, height_px: size of the picture.
        rng: source of every random choice; the same state gives the same scene.
        num_objects: how many objects to try to place; random when None.
        heights: least and greatest height of an object, as a share of the picture's.
        people: cut-outs of real people, pasted here and there; may be empty.
        backdrop: (height_px, width_px, 3) float32 RGB to paint on instead of a rendered one.
    """
    picture = render_backdrop(width_px, height_px, rng) if backdrop is None else backdrop.copy()
    composer = Composer(picture)
    wanted = int(rng.integers(0, 9)) if num_objects is None else num_objects
    shadow = float(rng.uniform(0.2, 0.6)) if rng.random() < 0.7 else 0.0
    # A scene keeps to a few kinds and colours, so that lookalikes stand side by side.
    kinds = rng.permutation(list(SHAPES))[: int(rng.integers(2, len(SHAPES) + 1))]
    colours = rng.permutation(list(PALETTE))[: int(rng.integers(2, len(PALETTE) + 1))]
    low, high = np.log(heights[0]), np.log(heights[1])
    for _ in range(3 * wanted):
        if len(composer.objects) >= wanted:
            break
        share = float(np.exp(rng.uniform(low, high)))
        if people and rng.random() < 0.25:
            sprite = resized(people[int(rng.integers(len(people)))], share * height_px, rng)
        else:
            kind, colour = str(rng.choice(kinds)), str(rng.choice(colours))
            tall = 1.25 if kind in ("person", "door", "bottle") else 1.0
            height = min(share * tall, 0.8) * height_px
            sprite = paint_sprite(kind, colour, height, rng)
        sprite_h, sprite_w = sprite.alpha.shape
        left = int(rng.integers(-sprite_w // 8, max(1, width_px - sprite_w + sprite_w // 8)))
        top = int(rng.integers(-sprite_h // 8, max(1, height_px - sprite_h + sprite_h // 8)))
        composer.paste(sprite, left, top, shadow)
    return composer.finish(rng)


def resized(sprite: Sprite, height_px: float, rng: np.random.Generator) -> Sprite:
    """Return a sprite scaled to a height, mirrored half of the time."""
    scale = max(height_px, 6.0) / sprite.alpha.shape[0]
    size = max(3, round(sprite.alpha.shape[1] * scale)), max(6, round(max(height_px, 6.0)))
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    rgb = cv2.resize(sprite.rgb, size, interpolation=how).astype(np.float32)
    alpha = cv2.resize(sprite.alpha, size, interpolation=how).astype(np.float32)
    if rng.random() < 0.5:
        rgb, alpha = rgb[:, ::-1], alpha[:, ::-1]
    return Sprite(sprite.kind, sprite.colour, rgb, alpha, sprite.stands)
