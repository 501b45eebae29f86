"""Forward: queue the forward pass of one step on the compute stream.

A prefill encodes its new frames first, then runs the prompts of all its rows at once; being on
one stream, the frames' pages are readable by every later operation from then on. A decode reads
each row's input embedding from the relay, where the step before leaves it.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from photon_ros.engine.attention import PrefixAttend, RowGroup, RowsAttend
from photon_ros.engine.captured import CapturedRowsAttend, pad_decode_fields
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.decode_slot import DecodeSlot, ForwardInputs, PromptValues
from photon_ros.engine.device import Device
from photon_ros.engine.graphs import Graphs
from photon_ros.engine.interfaces import Attend, Model
from photon_ros.engine.kv_cache import KVCache
from photon_ros.engine.lora import LoraBank
from photon_ros.engine.scheduler import StepPlan
from photon_ros.engine.sequence import Sequence
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
        spec = model.spec
        self._graphs = graphs
        self._bank = bank
        self._max_rows = config.max_rows
        self._max_pages = cache.pages_for(spec.max_context)
        self._max_prefixes = config.max_prefixes
        self._model = model
        self._device = device
        self._cache = cache
        self._relay = relay
        self._prefix_len = spec.prefix_len
        self._rows: StepRows | None = None

    def submit(self, plan: StepPlan, slot: DecodeSlot) -> ForwardInputs:
        """Stage a step's metadata in ``slot`` and queue its forward.

        The last hidden state of each row lands in ``slot.hidden``.
        """
        step_rows = self._rows_of(plan.sequences)
        if plan.kind == "prefill":
            return self._submit_prefill(plan, slot, step_rows)
        if self._device.can_capture:
            return self._submit_captured(slot, step_rows)
        return self._submit_decode(slot, step_rows)

    def _submit_prefill(
        self, plan: StepPlan, slot: DecodeSlot, step_rows: StepRows
    ) -> ForwardInputs:
        num_inputs, inputs = slot.stage_inputs(step_rows.prefill_fields())
        for lora_slot, adapter in plan.new_adapters:
            load = partial(self._bank.load, lora_slot, adapter)
            self._device.compute.submit(load, "load adapter")
        if plan.new_prefixes:
            self._submit_prefixes(plan, slot)
        rows, num_tokens = inputs.token_ids.shape
        values = slot.stage_values(plan.sequences, num_tokens)

        def prefill() -> None:
            slot.copy_inputs(num_inputs)
            embeds = self._prompt_embeds(inputs.token_ids, values)
            attend = self._rows_attend(inputs, step_rows.groups)
            adapt = self._bank.rows(inputs.lora_slots) if step_rows.has_adapters else None
            hidden = self._model.decode(embeds, inputs.positions, attend, adapt)
            index = inputs.last_index[:, None, None].expand(-1, 1, hidden.shape[2])
            slot.hidden[:rows] = hidden.gather(1, index)[:, 0]

        self._device.compute.submit(prefill, "prefill")
        return inputs

    def _submit_decode(self, slot: DecodeSlot, step_rows: StepRows) -> ForwardInputs:
        num_inputs, inputs = slot.stage_inputs(step_rows.decode_fields())
        has_adapters = step_rows.has_adapters

        def decode() -> None:
            slot.copy_inputs(num_inputs)
            attend = self._rows_attend(inputs, step_rows.groups)
            self._decode_rows(slot, inputs, attend, has_adapters)

        self._device.compute.submit(decode, "decode")
        return inputs

    def _submit_captured(self, slot: DecodeSlot, step_rows: StepRows) -> ForwardInputs:
        """Queue a decode step of fixed shape, replayed where its shape was captured before."""
        shape, fields = pad_decode_fields(
            step_rows, step_rows.decode_fields(), max_rows=self._max_rows,
            max_pages=self._max_pages, max_prefixes=self._max_prefixes,
        )  # fmt: skip
        num_inputs, inputs = slot.stage_inputs(fields)
        has_adapters = step_rows.has_adapters

        def decode() -> None:
            slot.copy_inputs(num_inputs)
            assert inputs.prefix_starts is not None
            assert inputs.row_prefix is not None
            attend = CapturedRowsAttend(
                self._cache,
                prefix_len=self._prefix_len,
                write_slots=inputs.write_slots.flatten(),
                page_table=inputs.page_table,
                private_positions=inputs.private_positions,
                prefix_starts=inputs.prefix_starts,
                row_prefix=inputs.row_prefix,
            )
            self._decode_rows(slot, inputs, attend, has_adapters)

        key = (slot.slot_id, shape, has_adapters)
        self._device.compute.submit(lambda: self._graphs.run(key, decode), "decode")
        return inputs

    def _decode_rows(
        self, slot: DecodeSlot, inputs: ForwardInputs, attend: Attend, has_adapters: bool
    ) -> None:
        adapt = self._bank.rows(inputs.lora_slots) if has_adapters else None
        embeds = self._relay.index_select(0, inputs.lanes)[:, None]
        hidden = self._model.decode(embeds, inputs.positions, attend, adapt)
        slot.hidden[: len(embeds)] = hidden[:, 0]

    def _rows_of(self, sequences: list[Sequence]) -> StepRows:
        """Return what is constant of these rows, computed anew only when they are others."""
        if self._rows is None or self._rows.sequences != sequences:
            self._rows = StepRows(sequences, self._cache.page_size, self._prefix_len)
        return self._rows

    def _submit_prefixes(self, plan: StepPlan, slot: DecodeSlot) -> None:
        sources = [source for _, source in plan.new_prefixes]
        hosts, crops = slot.stage_crops([source.crops for source in sources])
        tilings = [source.crops.tiling for source in sources]
        starts = [prefix.first_page * self._cache.page_size for prefix, _ in plan.new_prefixes]
        lora_slots = [prefix.lora_slot for prefix, _ in plan.new_prefixes]
        count = len(lora_slots)
        slot.frame_lora_host.numpy()[:count] = lora_slots

        def encode() -> None:
            for host, device in zip(hosts, crops, strict=True):
                device.copy_(host, non_blocking=True)
            adapt = None
            if any(lora_slots):
                slot.frame_lora[:count].copy_(slot.frame_lora_host[:count], non_blocking=True)
                adapt = self._bank.rows(slot.frame_lora[:count])
            embeds = self._model.encode_frames(crops, tilings)
            frames, length, _ = embeds.shape
            positions = torch.arange(length, device=embeds.device).expand(frames, -1)
            self._model.decode(embeds, positions, PrefixAttend(self._cache, starts), adapt)

        self._device.compute.submit(encode, "encode")

    def _prompt_embeds(self, token_ids: Tensor, values: PromptValues | None) -> Tensor:
        """Return (rows, T, D): tokens, and values where the prompts give them."""
        embeds = self._model.embed_tokens(token_ids)
        if values is None:
            return embeds
        for device, host in values.copies:
            device.copy_(host, non_blocking=True)
        flat = embeds.flatten(0, 1)
        if len(values.coords):
            flat.index_copy_(0, values.coord_index, self._model.embed_coord_values(values.coords))
        if len(values.sizes):
            flat.index_copy_(0, values.size_index, self._model.embed_size_values(values.sizes))
        return embeds

    def _rows_attend(self, inputs: ForwardInputs, groups: list[RowGroup]) -> RowsAttend:
        return RowsAttend(
            self._cache,
            prefix_len=self._prefix_len,
            write_slots=inputs.write_slots.flatten(),
            page_table=inputs.page_table,
            private_positions=inputs.private_positions,
            groups=groups,
        )
