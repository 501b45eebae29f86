"""Forward: queue the forward pass of one step on the compute stream.

A prefill encodes its new frames first, then runs the prompts of all its rows at once; being on
one stream, the frames' pages are readable by every later operation from then on. A decode reads
each row's input embedding from the relay, where the step before leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
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
        if self._rows is None or self._rows.sequences != step.sequences:
            self._rows = StepRows(step.sequences, self._cache.page_size, self._cache.prefix_len)
        slot, rows = step.slot, self._rows
        if step.kind == "prefill":
            fields = rows.prefill_fields()
        elif self._device.can_capture:
            fields = rows.fixed_fields(**self._limits)
        else:
            fields = rows.decode_fields()
        num_inputs, inputs = slot.stage_inputs(fields)
        step.inputs = inputs
        for place, adapter in step.new_adapters:
            load = partial(self._bank.load, place.number, adapter)
            self._device.compute.submit(load, "load adapter")
        if step.new_prefixes:
            self._submit_prefixes(step)
        embed = partial(self._embed_relayed, inputs.lanes)
        if step.kind == "prefill":
            num_values = slot.stage_values(step.sequences, inputs.token_ids.shape[1])
            embed = partial(self._embed_prompts, slot, inputs.token_ids, *num_values)
        op = partial(self._run, step, rows, num_inputs, embed)
        if inputs.is_fixed:
            shapes = tuple([field.shape for field in fields])
            key = (slot.slot_id, shapes, rows.has_adapters)
            op = partial(self._graphs.run, key, op)
        self._device.compute.submit(op, step.kind)

    def _run(
        self, step: Step, rows: StepRows, num_inputs: int, embed: Callable[[], Tensor]
    ) -> None:
        """Copy the metadata, then run the rows; on the compute stream."""
        slot, inputs = step.slot, step.inputs
        slot.inputs.to_device(num_inputs)
        attend: Attend
        if inputs.is_fixed:
            attend = CapturedRowsAttend(self._cache, inputs)
        else:
            attend = RowsAttend(self._cache, inputs, rows.groups)
        adapt = partial(self._bank.adapt, inputs.lora_slots) if rows.has_adapters else None
        hidden = self._model.decode(embed(), inputs.positions, attend, adapt)
        last = hidden.flatten(0, 1).index_select(0, inputs.last_index)
        slot.hidden[: len(last)] = last

    def _embed_relayed(self, lanes: Tensor) -> Tensor:
        """Return (rows, 1, D): what the step before left for these rows."""
        return self._relay.index_select(0, lanes)[:, None]

    def _embed_prompts(
        self, slot: DecodeSlot, token_ids: Tensor, num_coords: int, num_sizes: int
    ) -> Tensor:
        """Return (rows, T, D); tokens that stand for staged values are embedded as these."""
        embeds = self._model.embed_tokens(token_ids)
        end = num_coords + num_sizes
        if not end:
            return embeds
        slot.value_index.to_device(end)
        slot.values.to_device(end)
        flat, places, values = embeds.flatten(0, 1), slot.value_index.device, slot.values.device
        if num_coords:
            coords = self._model.embed_coord_values(values[:num_coords, :1])
            flat.index_copy_(0, places[:num_coords], coords)
        if num_sizes:
            sizes = self._model.embed_size_values(values[num_coords:end])
            flat.index_copy_(0, places[num_coords:end], sizes)
        return embeds

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
                adapt = partial(self._bank.adapt, slot.frame_lora.device[: len(frames)])
            embeds = self._model.encode_frames(crops, [frame.tiling for frame in frames])
            positions = torch.arange(embeds.shape[1], device=embeds.device)
            positions = positions.expand(len(frames), -1)
            self._model.decode(embeds, positions, PrefixAttend(self._cache, starts), adapt)

        self._device.compute.submit(encode, "encode")
