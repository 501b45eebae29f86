"""Decode steps of fixed shape, for devices that capture graphs.

Rows, page table width and number of prefixes are rounded up to a bucket. Which prefix a row
reads is data on the device, so one graph serves any mix of frames. Padding rows write to the
reserved page and to a relay row of their own, and nobody reads what they compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from photon_ros.engine.graphs import bucket
from photon_ros.engine.kv_cache import KVCache
from photon_ros.engine.page_pool import RESERVED_PAGE
from photon_ros.engine.step_inputs import StepRows

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a captured decode step is padded to; part of its key."""

    rows: int
    num_pages: int
    num_prefixes: int


def pad_decode_fields(
    step_rows: StepRows, fields: list[Int64], *, max_rows: int, max_pages: int, max_prefixes: int
) -> tuple[StepShape, list[Int64]]:
    """Round decode fields up to a bucket and add (prefix_starts, row_prefix).

    Args:
        step_rows: the real rows.
        fields: their decode fields, in the order of ForwardInputs.
        max_rows, max_pages, max_prefixes: where buckets end. Lane ``max_rows`` is the padding's.
    """
    page_table = fields[-1]
    starts = sorted({g.prefix_start for g in step_rows.groups if g.prefix_start >= 0})
    shape = StepShape(
        rows=bucket(len(page_table), max_rows),
        num_pages=bucket(page_table.shape[1], max_pages),
        num_prefixes=bucket(len(starts), max_prefixes),
    )
    padded = [_grown(field, shape.rows) for field in fields[:-1]]
    padded[0][len(page_table) :] = max_rows  # lanes; all else of a padding row is 0
    table = np.full((shape.rows, shape.num_pages), RESERVED_PAGE, dtype=np.int64)
    table[: page_table.shape[0], : page_table.shape[1]] = page_table
    prefix_starts = np.full(shape.num_prefixes, starts[0] if starts else 0, dtype=np.int64)
    prefix_starts[: len(starts)] = starts
    row_prefix = np.full(shape.rows, -1, dtype=np.int64)
    for group in step_rows.groups:
        if group.prefix_start >= 0:
            row_prefix[group.begin : group.end] = starts.index(group.prefix_start)
    return shape, [*padded, table, prefix_starts, row_prefix]


def _grown(field: Int64, rows: int) -> Int64:
    """Return ``field`` with zero rows behind; slot 0 and position 0 are on the reserved page."""
    grown = np.zeros((rows, *field.shape[1:]), dtype=np.int64)
    grown[: len(field)] = field
    return grown


class CapturedRowsAttend:
    """Decode attention whose prefixes are data: every prefix is scored, each row keeps its own.

    Args:
        cache: the paged cache.
        prefix_len: positions of a prefix.
        write_slots: (rows,) int64.
        page_table: (rows, num_pages) int64.
        private_positions: (rows, 1) int64.
        prefix_starts: (F,) int64 position slots of the prefixes.
        row_prefix: (rows,) int64 index into ``prefix_starts``; -1 for rows without an image.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        prefix_len: int,
        write_slots: Tensor,
        page_table: Tensor,
        private_positions: Tensor,
        prefix_starts: Tensor,
        row_prefix: Tensor,
    ) -> None:
        device = page_table.device
        self._cache = cache
        self._write_slots = write_slots
        rows, num_pages = page_table.shape
        page = cache.page_size
        offsets = torch.arange(page, device=device)
        self._read_slots = (page_table[:, :, None] * page + offsets).reshape(-1)
        places = torch.arange(num_pages * page, device=device)
        self._suffix_bias = _bias(places > private_positions)[None, :, None]  # (1, B, 1, S)
        positions = torch.arange(prefix_len, device=device)
        self._prefix_slots = (prefix_starts[:, None] + positions).reshape(-1)
        self._prefix_shape = (len(prefix_starts), prefix_len)
        self._prefix_bias = _bias(row_prefix < 0)[None, :, None, None]  # (1, B, 1, 1)
        self._own = row_prefix.clamp_min(0)
        self._row_index = torch.arange(rows, device=device)
        reads = row_prefix == torch.arange(len(prefix_starts), device=device)[:, None]
        self._reads = reads[:, None, :, None, None]  # (F, 1, B, 1, 1)

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Write this step's keys and values, then attend; T is 1."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.index_copy_(0, self._write_slots, k_BTGE.flatten(0, 1))
        values.index_copy_(0, self._write_slots, v_BTGE.flatten(0, 1))
        rows, _, heads, width = q_BTHE.shape
        kv_heads = k_BTGE.shape[2]
        repeats = heads // kv_heads
        suffix = (rows, -1, kv_heads, width)
        prefix = (*self._prefix_shape, kv_heads, width)
        suffix_k = keys.index_select(0, self._read_slots).view(suffix).permute(2, 0, 3, 1)
        suffix_v = values.index_select(0, self._read_slots).view(suffix).permute(2, 0, 1, 3)
        prefix_k = keys.index_select(0, self._prefix_slots).view(prefix).permute(0, 2, 3, 1)
        prefix_v = values.index_select(0, self._prefix_slots).view(prefix).transpose(1, 2)
        q = q_BTHE.reshape(rows, kv_heads, repeats, width).transpose(0, 1) * width**-0.5
        scores = torch.matmul(q, suffix_k).float() + self._suffix_bias
        every = torch.matmul(q.reshape(kv_heads, rows * repeats, width), prefix_k).float()
        every = every.view(-1, kv_heads, rows, repeats, self._prefix_shape[1])
        own = every[self._own, :, self._row_index].transpose(0, 1) + self._prefix_bias
        probs = torch.softmax(torch.cat((own, scores), -1), -1).to(q.dtype)
        prefix_len = self._prefix_shape[1]
        parts = (probs[..., :prefix_len] * self._reads).flatten(2, 3)
        out = torch.matmul(parts, prefix_v).sum(0).view(kv_heads, rows, repeats, width)
        out = out + torch.matmul(probs[..., prefix_len:], suffix_v)
        return out.transpose(0, 1).reshape(rows, 1, heads, width)


def _bias(is_hidden: Tensor) -> Tensor:
    return torch.zeros(is_hidden.shape, device=is_hidden.device).masked_fill_(
        is_hidden, float("-inf")
    )
