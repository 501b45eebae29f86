"""DecodeSlot: every buffer one step needs, allocated once.

The host side is written by the tick and read by copies that may still be queued, and the
landing side is written by a copy that may still be queued: so a slot is busy from launch to
the end of its commit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import Device, Event
from photon_ros.engine.interfaces import Constraint, FrameCrops, ModelSpec, SampledToken
from photon_ros.engine.sequence import Sequence
from photon_ros.engine.step_inputs import ForwardInputs, Int64

MAX_PROMPT_VALUES = 64  # coordinates and sizes that one prompt may give as values


class Landed:
    """Columns of ``landed``, in the order of a SampledToken's fields."""

    ID, COORD, WIDTH, HEIGHT, PROB, BIN_PROB = range(6)


class Control:
    """Columns of ``controls``: forced id or -1, spatial or not, id to fold to or -1, noise."""

    FORCED, SPATIAL, FOLD, SEED, POSITION = range(5)


class Twin:
    """A buffer on the host, also as a numpy array, and one like it on the device."""

    def __init__(self, device: Device, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.host: Tensor = device.host_buffer(shape, dtype)
        self.array = self.host.numpy()
        self.device: Tensor = device.device_buffer(shape, dtype)

    def to_device(self, count: int) -> None:
        """Copy the first ``count`` entries; runs on the compute stream."""
        self.device[:count].copy_(self.host[:count], non_blocking=True)

    def to_host(self, count: int) -> None:
        """Copy the first ``count`` entries back; runs on the copy stream."""
        self.host[:count].copy_(self.device[:count], non_blocking=True)


_Layout = tuple[list[Int64], int, ForwardInputs]
"""Host views of the packed fields, their number of int64 together, and the device views."""


class DecodeSlot:
    """Staging, results and the event of one step at a time.

    Attributes:
        inputs: (capacity,) int64, the packed ForwardInputs.
        controls: (max_rows, 5) int64, see :class:`Control`.
        sampling: (max_rows, 2) float32, temperature and top_p.
        mask: (max_rows, vocab) bool, True = disallowed.
        crops: (max_prefixes_per_step, max_crops + 1, crop, crop, 3) uint8.
        frame_lora: (max_prefixes_per_step,) int64, adapter slot of each frame.
        value_index: (max_values,) int64, flat (row, token) places of the coordinates that
            prompts give as values, then of their sizes.
        values: (max_values, 2) float32, x in column 0, or width and height.
        hidden: (max_rows, dim) model dtype, device; last hidden state of each row.
        landed: (max_rows, 6) float64, in which ids are exact; what was sampled, see
            :class:`Landed`; on the host only until the end of the commit.
        copied_event: after this step's copies; set by finalize_sampling.
    """

    copied_event: Event

    def __init__(self, slot_id: int, device: Device, spec: ModelSpec, config: EngineConfig) -> None:
        self.slot_id = slot_id
        rows, frames = config.max_rows, config.max_prefixes_per_step
        pages = -(-spec.max_context // config.page_size)
        capacity = rows * (4 + 4 * spec.max_context + 2 * pages) + config.max_prefixes
        side, max_values = spec.crop_size_px, rows * MAX_PROMPT_VALUES
        self.inputs = Twin(device, (capacity,), torch.int64)
        self.controls = Twin(device, (rows, 5), torch.int64)
        self.sampling = Twin(device, (rows, 2), torch.float32)
        self.mask = Twin(device, (rows, spec.vocab_size), torch.bool)
        self.crops = Twin(device, (frames, spec.max_crops + 1, side, side, 3), torch.uint8)
        self.frame_lora = Twin(device, (frames,), torch.int64)
        self.value_index = Twin(device, (max_values,), torch.int64)
        self.values = Twin(device, (max_values, 2), torch.float32)
        self.hidden = device.device_buffer((rows, spec.dim), spec.dtype)
        self.landed = Twin(device, (rows, 6), torch.float64)
        self._layouts: dict[tuple[tuple[int, ...], ...], _Layout] = {}
        # What each mask row was last written from: unchanged rows are not written again.
        self._masked_by: list[Constraint | None] = [None] * rows

    def stage_inputs(self, fields: list[Int64]) -> tuple[int, ForwardInputs]:
        """Pack the fields of ForwardInputs, in its order, into the host staging.

        Returns the number of int64 to copy and the device views they will land in.
        """
        shapes = tuple([field.shape for field in fields])
        layout = self._layouts.get(shapes)
        if layout is None:
            layout = self._layout_of(shapes)
            if shapes[3][1] == 1:  # decode steps come in few shapes, prompts in many
                self._layouts[shapes] = layout
        hosts, num_inputs, inputs = layout
        for host, field in zip(hosts, fields, strict=True):
            host[...] = field
        return num_inputs, inputs

    def _layout_of(self, shapes: tuple[tuple[int, ...], ...]) -> _Layout:
        hosts, views, end = [], [], 0
        for shape in shapes:
            begin, end = end, end + math.prod(shape)
            hosts.append(self.inputs.array[begin:end].reshape(shape))
            views.append(self.inputs.device[begin:end].view(shape))
        return hosts, end, ForwardInputs(*views)

    def stage_crops(self, frames: Seq[FrameCrops]) -> None:
        """Write frames to the host staging."""
        for index, frame in enumerate(frames):
            self.crops.array[index, : len(frame.pixels)] = frame.pixels

    def copy_crops(self, counts: Seq[int]) -> list[Tensor]:
        """Copy so many crops of each frame to the device; return them there."""
        views = [self.crops.device[index, :count] for index, count in enumerate(counts)]
        for index, view in enumerate(views):
            view.copy_(self.crops.host[index, : len(view)], non_blocking=True)
        return views

    def stage_values(self, sequences: Seq[Sequence], num_tokens: int) -> tuple[int, int]:
        """Write the values that prompts of ``num_tokens`` tokens a row give to the host staging.

        Returns how many coordinates there are, and how many sizes.
        """
        given = [
            (len(value), row * num_tokens + index, value)
            for row, sequence in enumerate(sequences)
            for index, value in sequence.prompt_values
        ]
        given.sort(key=lambda item: item[0])  # coordinates first
        for at, (length, place, value) in enumerate(given):
            self.value_index.array[at] = place
            self.values.array[at, :length] = value
        num_coords = sum(length == 1 for length, _, _ in given)
        return num_coords, len(given) - num_coords

    def stage_mask(self, constraints: Seq[Constraint]) -> None:
        """Write the SamplingMask rows of these constraints to the host staging."""
        mask = self.mask.array
        for row, constraint in enumerate(constraints):
            if self._masked_by[row] is constraint:
                continue
            self._masked_by[row] = constraint
            is_open = constraint.allowed is None
            mask[row] = not is_open
            listed = constraint.forbidden if constraint.allowed is None else constraint.allowed
            mask[row, list(listed)] = is_open

    def landed_tokens(self, num_rows: int) -> list[SampledToken]:
        """Return what landed on the host; only valid after ``copied_event``."""
        rows = self.landed.array[:num_rows].tolist()
        return [
            SampledToken(int(token_id), int(coord), (int(width), int(height)), prob, bin_prob)
            for token_id, coord, width, height, prob, bin_prob in rows
        ]
