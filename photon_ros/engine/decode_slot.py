"""DecodeSlot: every buffer one step needs, allocated once.

The host side is written by the tick and read by copies that may still be queued, and the
landing side is written by a copy that may still be queued: so a slot is busy from launch to
the end of its commit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import Device, Event
from photon_ros.engine.interfaces import Constraint, FrameCrops, ModelSpec, SampledToken
from photon_ros.engine.sequence import Sequence

# Columns of the landing buffers.
LANDED_ID, LANDED_COORD, LANDED_WIDTH, LANDED_HEIGHT = range(4)
LANDED_PROB, LANDED_BIN_PROB = range(2)
# Columns of the sampling controls.
CONTROL_FORCED, CONTROL_SPATIAL, CONTROL_FOLD, CONTROL_SEED, CONTROL_POSITION = range(5)
NUM_CONTROLS = 5
MAX_PROMPT_VALUES = 64  # coordinates and sizes that one prompt may give as values


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """Device views of what one forward of ``rows`` rows and T tokens reads, all int64.

    Attributes:
        lanes, lora_slots, last_index: (rows,) relay row, adapter slot, and index of each row's
            last real token.
        token_ids, positions, private_positions, write_slots: (rows, T).
        page_table: (rows, num_pages).
        prefix_starts, row_prefix: (F,) and (rows,), in steps of fixed shape only: position slots
            of the prefixes, and which of them a row reads (-1: none).
    """

    lanes: Tensor
    lora_slots: Tensor
    last_index: Tensor
    token_ids: Tensor
    positions: Tensor
    private_positions: Tensor
    write_slots: Tensor
    page_table: Tensor
    prefix_starts: Tensor | None = None
    row_prefix: Tensor | None = None


_Layout = tuple[list[NDArray[np.int64]], int, ForwardInputs]
"""Host views of the packed fields, their number of int64 together, and the device views."""


@dataclass(frozen=True, slots=True)
class PromptValues:
    """Device views of the values that a step's prompts give.

    Attributes:
        copies: (device, host) pairs to copy before use.
        coord_index, size_index: int64 places in the flattened (row, token) order.
        coords, sizes: (N, 1) and (N, 2) float32.
    """

    copies: list[tuple[Tensor, Tensor]]
    coord_index: Tensor
    coords: Tensor
    size_index: Tensor
    sizes: Tensor


class DecodeSlot:
    """Staging, results and the event of one step at a time.

    Attributes:
        inputs_host, inputs: (capacity,) int64, host and device: the packed ForwardInputs.
        controls_host, controls: (max_rows, NUM_CONTROLS) int64, host and device.
        sampling_host, sampling: (max_rows, 2) float32, temperature and top_p.
        mask_host, mask: (max_rows, vocab) bool, True = disallowed.
        crops_host, crops: (max_prefixes_per_step, max_crops + 1, crop, crop, 3) uint8.
        frame_lora_host, frame_lora: (max_prefixes_per_step,) int64, adapter slot of each frame.
        value_index_host, value_index: (max_values,) int64, flat (row, token) places of the
            coordinates a prompt gives as values, then of its sizes.
        values_host, values: (max_values, 2) float32, x in column 0, or width and height.
        hidden: (max_rows, dim) model dtype, device; last hidden state of each row.
        landed, landed_probs: (max_rows, 4) int64 and (max_rows, 2) float32, device.
        landed_host, landed_probs_host: where the copies land; free after commit.
        copied_event: after this step's copies; set by finalize_sampling.
    """

    def __init__(self, slot_id: int, device: Device, spec: ModelSpec, config: EngineConfig) -> None:
        self.slot_id = slot_id
        rows = config.max_rows
        pages = -(-spec.max_context // config.page_size)
        capacity = rows * (4 + 4 * spec.max_context + 2 * pages) + config.max_prefixes
        self.inputs_host = device.host_buffer((capacity,), torch.int64)
        self.inputs = device.device_buffer((capacity,), torch.int64)
        self.controls_host = device.host_buffer((rows, NUM_CONTROLS), torch.int64)
        self.controls = device.device_buffer((rows, NUM_CONTROLS), torch.int64)
        self.sampling_host = device.host_buffer((rows, 2), torch.float32)
        self.sampling = device.device_buffer((rows, 2), torch.float32)
        self.mask_host = device.host_buffer((rows, spec.vocab_size), torch.bool)
        self.mask = device.device_buffer((rows, spec.vocab_size), torch.bool)
        side = spec.crop_size_px
        crops_shape = (config.max_prefixes_per_step, spec.max_crops + 1, side, side, 3)
        self.crops_host = device.host_buffer(crops_shape, torch.uint8)
        self.crops = device.device_buffer(crops_shape, torch.uint8)
        frames = config.max_prefixes_per_step
        self.frame_lora_host = device.host_buffer((frames,), torch.int64)
        self.frame_lora = device.device_buffer((frames,), torch.int64)
        values = rows * MAX_PROMPT_VALUES
        self.value_index_host = device.host_buffer((values,), torch.int64)
        self.value_index = device.device_buffer((values,), torch.int64)
        self.values_host = device.host_buffer((values, 2), torch.float32)
        self.values = device.device_buffer((values, 2), torch.float32)
        self.hidden = device.device_buffer((rows, spec.dim), spec.dtype)
        self.landed = device.device_buffer((rows, 4), torch.int64)
        self.landed_probs = device.device_buffer((rows, 2), torch.float32)
        self.landed_host = device.host_buffer((rows, 4), torch.int64)
        self.landed_probs_host = device.host_buffer((rows, 2), torch.float32)
        self.copied_event: Event | None = None
        self._layouts: dict[tuple[tuple[int, ...], ...], _Layout] = {}
        # What each mask row was last written from: unchanged rows are not written again.
        self._masked_by: list[Constraint | None] = [None] * rows

    def stage_inputs(self, fields: list[NDArray[np.int64]]) -> tuple[int, ForwardInputs]:
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
        host, hosts, views, end = self.inputs_host.numpy(), [], [], 0
        for shape in shapes:
            begin, end = end, end + math.prod(shape)
            hosts.append(host[begin:end].reshape(shape))
            views.append(self.inputs[begin:end].view(shape))
        return hosts, end, ForwardInputs(*views)

    def copy_inputs(self, num_inputs: int) -> None:
        """Copy what :meth:`stage_inputs` packed to the device; runs on the compute stream."""
        self.inputs[:num_inputs].copy_(self.inputs_host[:num_inputs], non_blocking=True)

    def stage_crops(self, frames: list[FrameCrops]) -> tuple[list[Tensor], list[Tensor]]:
        """Write frames to the host staging; return the (host, device) views to copy between."""
        hosts, devices = [], []
        for index, frame in enumerate(frames):
            count = frame.pixels.shape[0]
            host = self.crops_host[index, :count]
            host.numpy()[...] = frame.pixels
            hosts.append(host)
            devices.append(self.crops[index, :count])
        return hosts, devices

    def stage_values(self, sequences: Seq[Sequence], num_tokens: int) -> PromptValues | None:
        """Write the values that prompts of ``num_tokens`` tokens a row give to the host staging.

        Returns the device views they will land in, or None when no prompt gives any.
        """
        places: dict[int, list[tuple[int, tuple[float, ...]]]] = {1: [], 2: []}
        for row, sequence in enumerate(sequences):
            for index, value in sequence.prompt_values:
                places[len(value)].append((row * num_tokens + index, value))
        num_coords, num_sizes = len(places[1]), len(places[2])
        count = num_coords + num_sizes
        if not count:
            return None
        for at, (place, value) in enumerate((*places[1], *places[2])):
            self.value_index_host[at] = place
            self.values_host[at, : len(value)] = torch.tensor(value)
        return PromptValues(
            copies=[
                (self.value_index[:count], self.value_index_host[:count]),
                (self.values[:count], self.values_host[:count]),
            ],
            coord_index=self.value_index[:num_coords],
            coords=self.values[:num_coords, :1],
            size_index=self.value_index[num_coords:count],
            sizes=self.values[num_coords:count],
        )

    def stage_mask(self, constraints: Seq[Constraint]) -> None:
        """Write the SamplingMask rows of these constraints to the host staging."""
        mask = self.mask_host.numpy()
        for row, constraint in enumerate(constraints):
            if self._masked_by[row] is constraint:
                continue
            self._masked_by[row] = constraint
            is_open = constraint.allowed is None
            mask[row] = not is_open
            listed = constraint.forbidden if constraint.allowed is None else constraint.allowed
            mask[row, list(listed)] = is_open

    def copy_landed(self, num_rows: int) -> None:
        """Copy the sampled rows to the host; runs on the copy stream."""
        self.landed_host[:num_rows].copy_(self.landed[:num_rows], non_blocking=True)
        self.landed_probs_host[:num_rows].copy_(self.landed_probs[:num_rows], non_blocking=True)

    def landed_tokens(self, num_rows: int) -> list[SampledToken]:
        """Return what landed on the host; only valid after ``copied_event``."""
        ids = self.landed_host[:num_rows].tolist()
        probs = self.landed_probs_host[:num_rows].tolist()
        return [
            SampledToken(token_id, coord_bin, (width_bin, height_bin), prob, bin_prob)
            for (token_id, coord_bin, width_bin, height_bin), (prob, bin_prob) in zip(
                ids, probs, strict=True
            )
        ]
