"""Forward: queue the forward pass of one step on the compute stream.

A prefill encodes its new frames first, then runs the prompts of all its rows at once; being on
one stream, the frames' pages are readable by every later operation from then on. A decode reads
each row's input embedding from the relay, where the step before leaves it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from photon_ros.engine.attention import CapturedRowsAttend, PrefixAttend, RowsAttend
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.decode_slot import DecodeSlot
from photon_ros.engine.device import Device
from photon_ros.engine.graphs import Graphs
from photon_ros.engine.interfaces import Attend, Model
from photon_ros.engine.kv_cache import KVCache
from photon_ros.engine.lora import LoraBank
from photon_ros.engine.sequence import Sequence
from photon_ros.engine.step import Step
from photon_ros.engine.step_inputs import StepRows


class Forward:
    """The forward pass of prefill and decode steps over one cache.

    ``relay`` is (max_rows + 1, D) on the device; row ``lane`` carries the next input embedding
    of the sequence that owns the lane, the last row is the padding's.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        cache: KVCache,
        relay: Tensor,
        graphs: Graphs,
        bank: LoraBank,
        config: EngineConfig,
    ) -> None:
        self._model = model
        self._device = device
        self._cache = cache
        self._relay = relay
        self._graphs = graphs
        self._bank = bank
        self._limits = {
            "max_rows": config.max_rows,
            "max_pages": -(-model.spec.max_context // config.page_size),
            "max_prefixes": config.max_prefixes,
        }
        self._rows: StepRows | None = None

    def submit(self, step: Step) -> None:
        """Stage a step's metadata in its slot, set its ``inputs`` and queue its forward.

        The last hidden state of each row lands in ``slot.hidden``.
        """
        step_rows = self._rows_of(step.sequences)
        if step.kind == "prefill":
            self._submit_prefill(step, step_rows)
        else:
            self._submit_decode(step, step_rows)

    def _rows_of(self, sequences: list[Sequence]) -> StepRows:
        """Return what is constant of these rows, computed anew only when they are others."""
        if self._rows is None or self._rows.sequences != sequences:
            self._rows = StepRows(sequences, self._cache.page_size, self._cache.prefix_len)
        return self._rows

    def _submit_prefill(self, step: Step, step_rows: StepRows) -> None:
        slot = step.slot
        num_inputs, inputs = slot.stage_inputs(step_rows.prefill_fields())
        step.inputs = inputs
        for place, adapter in step.new_adapters:
            load = partial(self._bank.load, place.number, adapter)
            self._device.compute.submit(load, "load adapter")
        if step.new_prefixes:
            self._submit_prefixes(step)
        rows, num_tokens = inputs.token_ids.shape
        num_values = slot.stage_values(step.sequences, num_tokens)

        def prefill() -> None:
            slot.inputs.to_device(num_inputs)
            embeds = self._model.embed_tokens(inputs.token_ids)
            if any(num_values):
                self._put_values(slot, embeds, *num_values)
            attend = RowsAttend(self._cache, inputs, step_rows.groups)
            adapt = self._bank.rows(inputs.lora_slots) if step_rows.has_adapters else None
            hidden = self._model.decode(embeds, inputs.positions, attend, adapt)
            index = inputs.last_index[:, None, None].expand(-1, 1, hidden.shape[2])
            slot.hidden[:rows] = hidden.gather(1, index)[:, 0]

        self._device.compute.submit(prefill, "prefill")

    def _submit_prefixes(self, step: Step) -> None:
        slot = step.slot
        frames = [source.crops for _, source in step.new_prefixes]
        starts = [prefix.number * self._cache.page_size for prefix, _ in step.new_prefixes]
        lora_slots = [prefix.lora_slot for prefix, _ in step.new_prefixes]
        slot.stage_crops(frames)
        slot.frame_lora.array[: len(frames)] = lora_slots

        def encode() -> None:
            crops = slot.copy_crops([len(frame.pixels) for frame in frames])
            adapt = None
            if any(lora_slots):
                slot.frame_lora.to_device(len(frames))
                adapt = self._bank.rows(slot.frame_lora.device[: len(frames)])
            embeds = self._model.encode_frames(crops, [frame.tiling for frame in frames])
            positions = torch.arange(embeds.shape[1], device=embeds.device)
            positions = positions.expand(len(frames), -1)
            self._model.decode(embeds, positions, PrefixAttend(self._cache, starts), adapt)

        self._device.compute.submit(encode, "encode")

    def _put_values(
        self, slot: DecodeSlot, embeds: Tensor, num_coords: int, num_sizes: int
    ) -> None:
        """Replace the embeddings (rows, T, D) of the tokens that stand for values."""
        end = num_coords + num_sizes
        slot.value_index.to_device(end)
        slot.values.to_device(end)
        flat, places, values = embeds.flatten(0, 1), slot.value_index.device, slot.values.device
        if num_coords:
            coords = self._model.embed_coord_values(values[:num_coords, :1])
            flat.index_copy_(0, places[:num_coords], coords)
        if num_sizes:
            sizes = self._model.embed_size_values(values[num_coords:end])
            flat.index_copy_(0, places[num_coords:end], sizes)

    def _submit_decode(self, step: Step, step_rows: StepRows) -> None:
        """Queue a decode step; in a fixed shape and replayed where the device captures."""
        slot, can_capture = step.slot, self._device.can_capture
        fields = (
            step_rows.fixed_fields(**self._limits) if can_capture else step_rows.decode_fields()
        )
        num_inputs, inputs = slot.stage_inputs(fields)
        step.inputs = inputs
        has_adapters = step_rows.has_adapters

        def decode() -> None:
            slot.inputs.to_device(num_inputs)
            attend: Attend
            if can_capture:
                attend = CapturedRowsAttend(self._cache, inputs)
            else:
                attend = RowsAttend(self._cache, inputs, step_rows.groups)
            adapt = self._bank.rows(inputs.lora_slots) if has_adapters else None
            embeds = self._relay.index_select(0, inputs.lanes)[:, None]
            hidden = self._model.decode(embeds, inputs.positions, attend, adapt)
            slot.hidden[: len(embeds)] = hidden[:, 0]

        if can_capture:
            shapes = tuple([field.shape for field in fields])
            key = (slot.slot_id, shapes, has_adapters)
            self._device.compute.submit(partial(self._graphs.run, key, decode), "decode")
        else:
            self._device.compute.submit(decode, "decode")
