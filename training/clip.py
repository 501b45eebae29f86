"""People from a film of a fixed camera: what differs from the median picture is a person.

Made for OpenCV's sample ``vtest.avi`` (PETS 2009, S2.L1, view 1; University of Reading). Only
frames 100 to 700, counted from 1, are read: the first ones carry public labels to measure on,
and what comes after 700 stays unseen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from photon_ros.core.errors import InputError
from training.scene import Box, Composer, Scene, Sprite

FIRST_FRAME, LAST_FRAME = 100, 700
_THRESHOLD = 26
_PAD_PX = 5
_CROSS = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))


@dataclass(frozen=True, slots=True)
class Cutout:
    """One person as found in one frame.

    Attributes:
        frame: index into the frames that were read.
        box: extent of the mask, pixels of the clip.
        sprite: the person with a soft mask, ``_PAD_PX`` pixels of margin around the box.
        clean: False for what may be several people, or a part of one: never used as truth.
    """

    frame: int
    box: Box
    sprite: Sprite
    clean: bool


@dataclass(frozen=True, slots=True)
class Clip:
    """What training takes from the clip.

    Attributes:
        background: (H, W, 3) float32 RGB, the median over the frames.
        frames: every ``stride``-th frame, each (H, W, 3) uint8 RGB.
        found: per frame what differs from the background.
    """

    background: NDArray[np.float32]
    frames: tuple[NDArray[np.uint8], ...]
    found: tuple[tuple[Cutout, ...], ...]

    def people(self) -> list[Cutout]:
        """Return every cut-out that surely is one whole person."""
        return [cutout for frame in self.found for cutout in frame if cutout.clean]


def read_frames(path: Path, first: int, last: int, stride: int) -> list[NDArray[np.uint8]]:
    """Return frames ``first`` to ``last`` (counted from 1, inclusive) of a film as RGB.

    Raises:
        InputError: the file cannot be read, or ends before ``last``.
    """
    capture = cv2.VideoCapture(str(path))
    if not capture.isOpened():
        raise InputError(f"{path} is not a film that OpenCV can read")
    frames: list[NDArray[np.uint8]] = []
    for number in range(1, last + 1):
        wanted = number >= first and (number - first) % stride == 0
        if not capture.grab():
            raise InputError(f"{path} has {number - 1} frames; {last} are needed")
        if wanted:
            frames.append(cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB).astype(np.uint8))
    capture.release()
    return frames


def load_clip(path: Path, stride: int = 2) -> Clip:
    """Read the training part of the clip and cut the people out.

    Args:
        path: the film.
        stride: take every so manieth frame; neighbours are nearly the same.
    """
    frames = read_frames(path, FIRST_FRAME, LAST_FRAME, stride)
    sampled = np.stack(frames[:: max(1, len(frames) // 60)])
    background = np.median(sampled, axis=0).astype(np.float32)
    masks = [_difference(frame, background) for frame in frames]
    sizes = _SizeByFoot.fitted(masks)
    found = tuple(
        tuple(_cut(frame, mask, index, sizes))
        for index, (frame, mask) in enumerate(zip(frames, masks, strict=True))
    )
    return Clip(background, tuple(frames), found)


def _difference(frame: NDArray[np.uint8], background: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return (H, W) uint8, 255 where the frame differs from the background."""
    smooth = cv2.GaussianBlur(frame.astype(np.float32) - background, (0, 0), 1.0)
    changed = (np.abs(smooth).max(axis=2) > _THRESHOLD).astype(np.uint8) * np.uint8(255)
    # A kernel of odd size: with an even one, opening moves everything by a pixel.
    changed = cv2.morphologyEx(changed, cv2.MORPH_OPEN, _CROSS)
    # People are taller than wide, and the lamp post cuts them: close mostly upwards.
    closed = cv2.morphologyEx(changed, cv2.MORPH_CLOSE, np.ones((13, 7), np.uint8))
    # The blur above and the film's compression carry the difference a pixel too far.
    return cv2.erode(closed, np.ones((3, 3), np.uint8)).astype(np.uint8)


def _components(mask: NDArray[np.uint8]) -> list[tuple[int, int, int, int, int, int]]:
    """Return (label, x, y, width, height, area) of each connected part of at least 60 px."""
    count, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    rows = [(i, *(int(value) for value in stats[i])) for i in range(1, count)]
    return [(i, x, y, w, h, area) for i, x, y, w, h, area in rows if area >= 60]


@dataclass(frozen=True, slots=True)
class _SizeByFoot:
    """Height of a person as a line over the row of the feet, from the clip itself."""

    slope: float
    offset: float

    @classmethod
    def fitted(cls, masks: list[NDArray[np.uint8]]) -> _SizeByFoot:
        pairs = [
            (y + height, height)
            for mask in masks
            for _, _, y, width, height, area in _components(mask)
            if 40 <= height <= 150
            and 0.28 <= width / height <= 0.55
            and area > 0.45 * width * height
        ]
        if len(pairs) < 20:
            raise InputError(
                f"only {len(pairs)} people could be made out in the clip; 20 are needed"
            )
        foot, height = np.array(pairs, np.float64).T
        for _ in range(3):  # drop outliers, fit again
            slope, offset = np.polyfit(foot, height, 1)
            near = np.abs(slope * foot + offset - height) < 0.2 * height
            foot, height = foot[near], height[near]
        return cls(float(slope), float(offset))

    def at(self, foot: float) -> float:
        return self.slope * foot + self.offset


def _cut(
    frame: NDArray[np.uint8], mask: NDArray[np.uint8], index: int, sizes: _SizeByFoot
) -> list[Cutout]:
    _, labels = cv2.connectedComponents(mask, connectivity=8)
    cutouts = []
    frame_h, frame_w = mask.shape
    for label, x, y, width, height, area in _components(mask):
        expected = sizes.at(y + height)
        inside = x > 1 and y > 1 and x + width < frame_w - 1 and y + height < frame_h - 1
        clean = (
            inside
            and 0.82 < height / expected < 1.2
            and 0.2 < width / height < 0.5
            and area > 0.42 * width * height
        )
        rows = slice(max(0, y - _PAD_PX), y + height + _PAD_PX)
        columns = slice(max(0, x - _PAD_PX), x + width + _PAD_PX)
        alpha = cv2.GaussianBlur((labels[rows, columns] == label).astype(np.float32), (0, 0), 0.8)
        rgb = frame[rows, columns].astype(np.float32)
        sprite = Sprite("person", "", rgb, np.asarray(alpha, np.float32), stands=False)
        box = float(x), float(y), float(x + width), float(y + height)
        cutouts.append(Cutout(index, box, sprite, clean))
    return cutouts


# What stands in front of people in this clip: the sign and the lamp post, whose foot is at the
# last row. (x_min, y_min, x_max, y_max) in pixels.
_OCCLUDERS = ((414, 203, 446, 244), (428, 95, 438, 392))
_OCCLUDER_FOOT_PX = 392
# The traffic cones that are really there: painted over where "cone" must not be seen.
_CONES = ((34, 170, 51, 194), (161, 183, 182, 209), (290, 183, 311, 211), (437, 175, 458, 203))


def empty_background(clip: Clip) -> NDArray[np.uint8]:
    """Return the median picture, (H, W, 3) uint8 RGB, with its traffic cones painted over."""
    hole = np.zeros(clip.background.shape[:2], np.uint8)
    for x_min, y_min, x_max, y_max in _CONES:
        hole[y_min:y_max, x_min:x_max] = 255
    painted = cv2.inpaint(clip.background.astype(np.uint8), hole, 5, cv2.INPAINT_TELEA)
    return painted.astype(np.uint8)


def _without(frame: NDArray[np.float32], clip: Clip, cutouts: list[Cutout]) -> None:
    """Put the background back where the cut-outs are."""
    for cutout in cutouts:
        rows, columns = _place(cutout, frame.shape)
        grown = cv2.dilate(cutout.sprite.alpha, np.ones((9, 9), np.uint8))
        alpha = np.asarray(grown, np.float32)
        target = frame[rows, columns]
        target += (clip.background[rows, columns] - target) * alpha[..., None]


def _place(cutout: Cutout, shape: tuple[int, ...]) -> tuple[slice, slice]:
    top = max(0, int(cutout.box[1]) - _PAD_PX)
    left = max(0, int(cutout.box[0]) - _PAD_PX)
    height, width = cutout.sprite.alpha.shape
    return slice(top, min(shape[0], top + height)), slice(left, min(shape[1], left + width))


def real_frame(clip: Clip, index: int, rng: np.random.Generator) -> Scene:
    """Return a frame as filmed, everything that is not surely one person painted out."""
    picture = clip.frames[index].astype(np.float32)
    found = clip.found[index]
    _without(picture, clip, [cutout for cutout in found if not cutout.clean])
    composer = Composer(picture)
    for cutout in found:
        if cutout.clean:
            composer.paste(
                cutout.sprite, int(cutout.box[0]) - _PAD_PX, int(cutout.box[1]) - _PAD_PX
            )
    return composer.finish(rng)


# People in a group hide each other more than things in a room do.
_MIN_VISIBLE = 0.35
# How often somebody has company, and each of them more of it; most friends of one.
_COMPANY = 0.65
_MAX_FRIENDS = 3
# How far apart the people of a group walk, pixels: from half hidden to side by side.
_APART_PX = (12.0, 36.0)
# How often somebody stands at the lamp post. Nobody who does is ever cut out clean, so places
# taken from cut-outs alone would leave it empty.
_AT_POST = 0.25
# Left edges there, pixels: from beside the post on one side to beside it on the other.
_POST_PX = (384.0, 446.0)


def _cast(people: list[Cutout], rng: np.random.Generator) -> list[tuple[float, float, Cutout]]:
    """Return (foot, left edge, who) of one to nine people, some of them in company."""
    cast: list[tuple[float, float, Cutout]] = []
    for _ in range(int(rng.integers(1, 10))):
        who = people[int(rng.integers(len(people)))]
        x, foot = who.box[0] + rng.normal(0, 14), who.box[3] + rng.normal(0, 5)
        if foot < _OCCLUDER_FOOT_PX and rng.random() < _AT_POST:
            x = rng.uniform(*_POST_PX)
        cast.append((foot, x, who))
        friends = [p for p in people if abs(p.box[3] - foot) < 25 and p.frame != who.frame]
        for _ in range(_MAX_FRIENDS):
            if not friends or rng.random() >= _COMPANY:
                break
            friend = friends[int(rng.integers(len(friends)))]
            x += rng.choice([-1, 1]) * rng.uniform(*_APART_PX)
            cast.append((foot + rng.normal(0, 7), x, friend))
    return cast


def staged_frame(clip: Clip, rng: np.random.Generator) -> Scene:
    """Return an emptied frame with people from other frames in it, groups too.

    A group is somebody put beside somebody else; who stands further back goes in first.
    """
    index = int(rng.integers(len(clip.frames)))
    picture = clip.frames[index].astype(np.float32)
    _without(picture, clip, list(clip.found[index]))
    composer = Composer(picture, _MIN_VISIBLE)
    for foot, x, who in sorted(_cast(clip.people(), rng), key=lambda entry: entry[0]):
        sprite = who.sprite
        if rng.random() < 0.5:
            flipped = sprite.rgb[:, ::-1], sprite.alpha[:, ::-1]
            sprite = Sprite(sprite.kind, sprite.colour, *flipped, stands=False)
        top = round(foot - (who.box[3] - who.box[1])) - _PAD_PX
        composer.paste(sprite, round(x) - _PAD_PX, top)
    composer.cover(clip.background, _OCCLUDERS, _OCCLUDER_FOOT_PX)
    return composer.finish(rng)


# Frames as filmed, of all: people who stand alone are soon learned.
_FILMED = 0.25


def clip_scene(clip: Clip, rng: np.random.Generator, least_window: float) -> Scene:
    """Return a window of a real or a staged frame.

    Args:
        clip: the film.
        rng: source of every random choice.
        least_window: smallest window, as a share of the frame's sides; 1 takes the whole.
    """
    if rng.random() < _FILMED:
        scene = real_frame(clip, int(rng.integers(len(clip.frames))), rng)
    else:
        scene = staged_frame(clip, rng)
    height, width = scene.ids.shape
    share = rng.uniform(least_window, 1.0)
    window_w = round(width * min(1.0, share * rng.uniform(0.9, 1.1)))
    window_h = round(height * share)
    left = int(rng.integers(0, width - window_w + 1))
    top = int(rng.integers(0, height - window_h + 1))
    return scene.window(left, top, left + window_w, top + window_h)
