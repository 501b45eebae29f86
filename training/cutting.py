"""From a scene to what the model sees: the global crop, the tiles, and the truth in its units."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from photon_ros.models.nano.vocabulary import CLASSES, COLOURS
from training.architecture import CONFIG
from training.outline import NUM_CORNERS, corners_of, mirrored_corners
from training.scene import Scene

CROP_PX = CONFIG.vision.crop_size
# Side of the grid on which the dense head learns: four cells along each patch.
CELLS_PER_PATCH = 4
CELL_SIDE = CELLS_PER_PATCH * CONFIG.vision.grid_side
NO_COLOUR = len(COLOURS)


@dataclass(frozen=True, eq=False, slots=True)
class Sample:
    """One scene as the trainer uses it.

    Attributes:
        whole: (crop, crop, 3) uint8, the global crop.
        mosaic: (H, W, 3) uint8, the resized picture the tiles are cut from; None when the
            scene is looked at as a whole only.
        tiling: (rows, columns); (1, 1) without tiles.
        kinds: (num_objects,) int64 index into CLASSES.
        colours: (num_objects,) int64 index into COLOURS, NO_COLOUR when unknown.
        boxes: (num_objects, 4) float32 (x_min, y_min, x_max, y_max) in [0, 1].
        cells: (CELL_SIDE, CELL_SIDE) uint8, 1 + object seen at the cell's centre, or 0.
        is_real: True for a frame of a film, where only people are labelled.
        corners: (num_objects, NUM_CORNERS, 2) float32 outlines of the whole objects, hidden
            parts too, in units of their boxes.
    """

    whole: NDArray[np.uint8]
    mosaic: NDArray[np.uint8] | None
    tiling: tuple[int, int]
    kinds: NDArray[np.int64]
    colours: NDArray[np.int64]
    boxes: NDArray[np.float32]
    cells: NDArray[np.uint8]
    is_real: bool
    corners: NDArray[np.float32]

    def cells_shown(self) -> NDArray[np.int64]:
        """Return (num_objects, P): cells of each patch, of CELLS_PER_PATCH**2, that show each."""
        side, num = CELL_SIDE // CELLS_PER_PATCH, len(self.kinds)
        grid = self.cells.reshape(side, CELLS_PER_PATCH, side, CELLS_PER_PATCH)
        ids = np.arange(1, num + 1)[:, None, None, None, None]
        return np.asarray((grid[None] == ids).sum((2, 4)).reshape(num, side * side), np.int64)

    def centre_patches(self) -> NDArray[np.int64]:
        """Return (num_objects,): the patch that holds the centre of each object's box."""
        side = CELL_SIDE // CELLS_PER_PATCH
        middle = (self.boxes[:, :2] + self.boxes[:, 2:]) / 2
        column, row = np.clip((middle * side).astype(np.int64), 0, side - 1).T
        return np.asarray(row * side + column, np.int64)

    def owners(self, min_cells: int) -> NDArray[np.int64]:
        """Return (P,): 1 + the object that a patch shows most of, in at least so many cells.

        0 where there is none.
        """
        counts = self.cells_shown()
        if len(counts) == 0:
            return np.zeros(counts.shape[1], np.int64)
        return np.where(counts.max(0) >= min_cells, counts.argmax(0) + 1, 0)

    def crops(self) -> NDArray[np.uint8]:
        """Return (num_crops, crop, crop, 3): the global crop, then the tiles row by row."""
        if self.mosaic is None:
            alone: NDArray[np.uint8] = self.whole[None].copy()
            return alone
        window, rows, columns = CONFIG.vision.window_px, *self.tiling
        tiles = [
            self.mosaic[i * window : i * window + CROP_PX, j * window : j * window + CROP_PX]
            for i in range(rows)
            for j in range(columns)
        ]
        return np.stack([self.whole, *tiles])

    def mirrored(self) -> Sample:
        """Return the sample seen in a mirror, objects again left to right."""
        boxes = self.boxes.copy()
        boxes[:, 0], boxes[:, 2] = 1 - self.boxes[:, 2], 1 - self.boxes[:, 0]
        order = np.lexsort((boxes[:, 1], boxes[:, 0] + boxes[:, 2]))
        rank = np.zeros(len(order) + 1, np.uint8)
        rank[order + 1] = np.arange(1, len(order) + 1)
        return Sample(
            np.ascontiguousarray(self.whole[:, ::-1]),
            None if self.mosaic is None else np.ascontiguousarray(self.mosaic[:, ::-1]),
            self.tiling,
            self.kinds[order],
            self.colours[order],
            boxes[order],
            rank[self.cells[:, ::-1]],
            self.is_real,
            mirrored_corners(self.corners[order]),
        )


def resize(image: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Resize with Lanczos as the model's preprocessing does."""
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.LANCZOS))


def boxes_of(scene: Scene) -> NDArray[np.float32]:
    """Return (num_objects, 4) float32 (x_min, y_min, x_max, y_max) in [0, 1]."""
    height, width = scene.ids.shape
    size = np.array([width, height, width, height], np.float32)
    pixels = np.array([thing.box for thing in scene.objects], np.float32).reshape(-1, 4)
    return np.asarray(pixels / size, np.float32)


def outlines_of(scene: Scene) -> NDArray[np.float32]:
    """Return (num_objects, NUM_CORNERS, 2) float32 corners in units of the boxes."""
    rings = [corners_of(thing.mask) for thing in scene.objects]
    return np.array(rings, np.float32).reshape(-1, NUM_CORNERS, 2)


def cut(scene: Scene, tiling: tuple[int, int], is_real: bool) -> Sample:
    """Return the scene as the model sees it; tiling (1, 1) means the global crop alone."""
    mosaic = None
    if tiling != (1, 1):
        margin, window = 2 * CONFIG.vision.margin_px, CONFIG.vision.window_px
        mosaic = resize(scene.image, tiling[1] * window + margin, tiling[0] * window + margin)
    colours = [COLOURS.index(o.colour) if o.colour else NO_COLOUR for o in scene.objects]
    cells = cv2.resize(scene.ids, (CELL_SIDE, CELL_SIDE), interpolation=cv2.INTER_NEAREST_EXACT)
    return Sample(
        whole=resize(scene.image, CROP_PX, CROP_PX),
        mosaic=mosaic,
        tiling=tiling,
        kinds=np.array([CLASSES.index(o.kind) for o in scene.objects], np.int64),
        colours=np.array(colours, np.int64),
        boxes=boxes_of(scene),
        cells=np.asarray(cells, np.uint8),
        is_real=is_real,
        corners=outlines_of(scene),
    )
