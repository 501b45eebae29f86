"""Many questions on one image in one row: token arrays, targets and the block mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from photon_ros.models.nano import vocabulary
from training.architecture import CONFIG
from training.cutting import Sample
from training.questions import ANY, Question

NONE = -100
NUM_COORD_BINS = CONFIG.region.num_coord_bins
NUM_SIZE_BINS = CONFIG.region.num_size_bins
PREFIX_LEN = CONFIG.prefix_len
# The model is less sure of a corner than of a centre, so what it is fed is further off.
CORNER_JITTER = 3.0
# Cells of an object, of sixteen, that make a patch one to look at.
_MIN_CELLS = 3
_WORDS = vocabulary.word_ids()
_SIDE = CONFIG.vision.grid_side


def coord_bin(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the real-valued bin of coordinates in [0, 1]."""
    return np.clip(value * NUM_COORD_BINS, 0, NUM_COORD_BINS - 1).astype(np.float32)


def size_bin(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the real-valued bin of widths or heights in (0, 1]."""
    octaves: NDArray[np.float32] = np.log2(np.maximum(value, 2.0**-10)) + 10
    return np.clip(octaves / 10 * (NUM_SIZE_BINS - 1), 0, NUM_SIZE_BINS - 1).astype(np.float32)


def size_of_bin(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the widths or heights that bins stand for."""
    return np.exp2(10 * value / (NUM_SIZE_BINS - 1) - 10).astype(np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class Packed:
    """The questions of a batch of scenes; F scenes, S positions after the image.

    Attributes:
        ids: (F, S) int64 token ids; COORD_ID and SIZE_ID where a value is fed.
        coords: (F, S) float32 the coordinate fed.
        sizes: (F, S, 2) float32 the (width, height) fed.
        positions: (F, S) int64.
        question: (F, S) int64 which question a position belongs to; -1 is padding.
        next_id: (F, S) int64 COORD_ID or EOS_ID where an object may begin, else NONE.
        coord_target: (F, S) float32 bin to answer, or NONE.
        draws: (F, S) bool: a corner of an outline is answered here, or begins or does not.
        size_target: (F, S, 2) float32 bins to answer, or NONE.
        looks_at: (F, S, P) bool: the patches of the object being answered; all False if none.
    """

    ids: Tensor
    coords: Tensor
    sizes: Tensor
    positions: Tensor
    question: Tensor
    next_id: Tensor
    coord_target: Tensor
    draws: Tensor
    size_target: Tensor
    looks_at: Tensor

    def allowed(self) -> Tensor:
        """Return (F, 1, S, PREFIX_LEN + S) bool: the keys each position may look at."""
        num, length = self.ids.shape
        same = self.question[:, :, None] == self.question[:, None, :]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        prefix = torch.ones(num, length, PREFIX_LEN, dtype=torch.bool)
        return torch.cat((prefix, same & causal), dim=2)[:, None]


def patches_of(sample: Sample) -> NDArray[np.bool_]:
    """Return (num_objects, P): the patches that show an object, or hold its centre."""
    shown = sample.cells_shown() >= _MIN_CELLS
    shown[np.arange(len(shown)), sample.centre_patches()] = True
    return shown


def pack(
    samples: list[Sample],
    questions: list[list[Question]],
    rng: np.random.Generator,
    jitter_bins: float = 1.0,
) -> Packed:
    """Lay the questions of each scene in one row.

    Args:
        samples: the scenes.
        questions: per scene what is asked.
        rng: source of the jitter.
        jitter_bins: spread of the error put on values fed back, so that the model learns to
            go on from a value that is a little off, as it must when it answers by itself.
    """
    length = max(sum(question.num_tokens for question in asked) for asked in questions)
    shape = (len(samples), length)
    arrays: dict[str, NDArray[Any]] = {
        "ids": np.zeros(shape, np.int64),
        "coords": np.zeros(shape, np.float32),
        "sizes": np.full((*shape, 2), 0.5, np.float32),
        "positions": np.zeros(shape, np.int64),
        "question": np.full(shape, -1, np.int64),
        "next_id": np.full(shape, NONE, np.int64),
        "coord_target": np.full(shape, NONE, np.float32),
        "draws": np.zeros(shape, np.bool_),
        "size_target": np.full((*shape, 2), NONE, np.float32),
        "looks_at": np.zeros((*shape, _SIDE * _SIDE), np.bool_),
    }
    for number, (sample, asked) in enumerate(zip(samples, questions, strict=True)):
        row = {name: array[number] for name, array in arrays.items()}
        patches, start = patches_of(sample), 0
        for index, question in enumerate(asked):
            end = start + question.num_tokens
            row["question"][start:end] = index
            row["positions"][start:end] = PREFIX_LEN + np.arange(end - start)
            _write_question(row, start, question, sample, patches, rng, jitter_bins)
            start = end
    return Packed(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def prompt_ids(question: Question) -> list[int]:
    """Return skill, coordinates of the point if there is one, colour, class, separator."""
    kind = vocabulary.ANY_CLASS if question.kind == ANY else vocabulary.CLASSES[question.kind]
    colour = vocabulary.COLOURS[question.colour] if question.colour != ANY else None
    return [
        vocabulary.SKILL_IDS[question.skill],
        *([vocabulary.COORD_ID] * len(question.point or ())),
        _WORDS[colour or vocabulary.ANY_COLOUR],
        _WORDS[kind],
        vocabulary.SEPARATOR_ID,
    ]


def _write_question(
    row: dict[str, NDArray[Any]],
    start: int,
    question: Question,
    sample: Sample,
    patches: NDArray[np.bool_],
    rng: np.random.Generator,
    jitter_bins: float,
) -> None:
    at = start + question.num_prompt_tokens
    row["ids"][start:at] = prompt_ids(question)
    if question.point is not None:
        row["coords"][start + 1 : start + 3] = question.point
    for thing in question.answer:
        begin, box = at, sample.boxes[thing]
        row["next_id"][at - 1] = vocabulary.COORD_ID
        at = _write_coords(row, at, coord_bin((box[:2] + box[2:]) / 2), rng, jitter_bins)
        if question.skill != "point":
            size = size_bin(box[2:] - box[:2])
            row["size_target"][at - 1] = size
            row["ids"][at] = vocabulary.SIZE_ID
            fed = np.rint(size + rng.normal(0, jitter_bins, 2)).astype(np.float32)
            row["sizes"][at] = size_of_bin(np.clip(fed, 0, NUM_SIZE_BINS - 1))
            at += 1
        if question.skill == "segment":
            first, bins = at, coord_bin(sample.corners[thing].reshape(-1))
            at = _write_coords(row, at, bins, rng, jitter_bins * CORNER_JITTER)
            row["next_id"][first - 1 : at - 1 : 2] = vocabulary.COORD_ID
            row["draws"][first - 1 : at] = True
        row["looks_at"][begin - 1 : at - 1] = patches[thing]
    row["next_id"][at - 1] = vocabulary.EOS_ID


def _write_coords(
    row: dict[str, NDArray[Any]],
    at: int,
    bins: NDArray[np.float32],
    rng: np.random.Generator,
    jitter_bins: float,
) -> int:
    """Write coordinates to answer, fed back a little off; return the place after them."""
    end = at + len(bins)
    fed = np.clip(np.rint(bins + rng.normal(0, jitter_bins, len(bins))), 0, NUM_COORD_BINS - 1)
    row["coord_target"][at - 1 : end - 1] = bins
    row["ids"][at:end] = vocabulary.COORD_ID
    row["coords"][at:end] = fed / NUM_COORD_BINS
    return end
