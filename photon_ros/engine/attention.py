"""Attention over the paged cache: how a step's rows read and write keys and values.

A frame's prefix is one contiguous extent, so rows that ask about the same frame read it once,
in place, in one matrix product; only their short private suffixes are gathered by page. Both
parts go through one softmax, so the result is that of ordinary attention.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from photon_ros.engine.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows ``begin`` to ``end`` share the prefix at ``prefix_start`` (-1: they have none).

    ``prefix_start`` is a position slot of the cache.
    """

    prefix_start: int
    begin: int
    end: int


class PrefixAttend:
    """Full attention of whole frame prefixes over themselves, written to their extents."""

    def __init__(self, cache: KVCache, starts: Seq[int]) -> None:
        self._cache = cache
        self._starts = tuple(starts)

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Write keys and values, then attend; every position sees every other one."""
        length = k_BTGE.shape[1]
        for row, start in enumerate(self._starts):
            self._cache.keys[layer, start : start + length] = k_BTGE[row]
            self._cache.values[layer, start : start + length] = v_BTGE[row]
        num_repeats = q_BTHE.shape[2] // k_BTGE.shape[2]
        k, v = k_BTGE.transpose(1, 2), v_BTGE.transpose(1, 2)
        if num_repeats > 1:
            k = k.repeat_interleave(num_repeats, dim=1)
            v = v.repeat_interleave(num_repeats, dim=1)
        out = functional.scaled_dot_product_attention(q_BTHE.transpose(1, 2), k, v)
        return out.transpose(1, 2)


class RowsAttend:
    """Causal attention of a step's rows over [shared prefix | own private positions].

    Args:
        cache: the paged cache.
        prefix_len: positions of a prefix.
        write_slots: (rows * T,) int64 position slots that receive the new keys and values.
        page_table: (rows, num_pages) int64 private pages, padded with the reserved one.
        private_positions: (rows, T) int64 private position of each query token.
        groups: rows by prefix, in row order.
    """

    def __init__(
        self,
        cache: KVCache,
        *,
        prefix_len: int,
        write_slots: Tensor,
        page_table: Tensor,
        private_positions: Tensor,
        groups: Seq[RowGroup],
    ) -> None:
        self._cache = cache
        self._prefix_len = prefix_len
        self._write_slots = write_slots
        self._groups = tuple(groups)
        num_pages = page_table.shape[1]
        page = cache.page_size
        offsets = torch.arange(page, device=page_table.device)
        self._read_slots = (page_table[:, :, None] * page + offsets).reshape(-1)
        self._suffix_len = num_pages * page
        key_positions = torch.arange(self._suffix_len, device=page_table.device)
        hidden = key_positions > private_positions[:, :, None]
        self._bias = torch.zeros(hidden.shape, device=page_table.device).masked_fill_(
            hidden, float("-inf")
        )

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Write this step's keys and values, then attend."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.index_copy_(0, self._write_slots, k_BTGE.flatten(0, 1))
        values.index_copy_(0, self._write_slots, v_BTGE.flatten(0, 1))
        rows = q_BTHE.shape[0]
        shape = (rows, self._suffix_len, *keys.shape[1:])
        suffix_k = keys.index_select(0, self._read_slots).view(shape)
        suffix_v = values.index_select(0, self._read_slots).view(shape)
        parts = []
        for group in self._groups:
            part = slice(group.begin, group.end)
            prefix_k = prefix_v = None
            if group.prefix_start >= 0:
                extent = slice(group.prefix_start, group.prefix_start + self._prefix_len)
                prefix_k, prefix_v = keys[extent], values[extent]
            parts.append(
                attend_group(
                    q_BTHE[part], suffix_k[part], suffix_v[part], self._bias[part],
                    prefix_k, prefix_v,
                )
            )  # fmt: skip
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def attend_group(
    q_BTHE: Tensor,
    suffix_k_BSGE: Tensor,
    suffix_v_BSGE: Tensor,
    bias_BTS: Tensor,
    prefix_k_PGE: Tensor | None,
    prefix_v_PGE: Tensor | None,
) -> Tensor:
    """Return attention (B, T, H, E) of rows that share one prefix.

    Scores and softmax are float32 whatever the model's dtype. ``bias_BTS`` is 0 where a suffix
    position may be seen and -inf elsewhere; the prefix is always seen.
    """
    rows, tokens, heads, width = q_BTHE.shape
    kv_heads = suffix_k_BSGE.shape[2]
    repeats = heads // kv_heads
    queries = tokens * repeats
    q = q_BTHE.reshape(rows, tokens, kv_heads, repeats, width) * width**-0.5
    q = q.permute(2, 0, 1, 3, 4).reshape(kv_heads, rows, queries, width)
    bias = bias_BTS if repeats == 1 else bias_BTS.repeat_interleave(repeats, dim=1)
    scores = torch.matmul(q, suffix_k_BSGE.permute(2, 0, 3, 1)).float() + bias
    if prefix_k_PGE is not None:
        prefix_len = prefix_k_PGE.shape[0]
        flat = q.reshape(kv_heads, rows * queries, width)  # grouped heads leave it strided
        prefix_scores = torch.bmm(flat, prefix_k_PGE.permute(1, 2, 0)).float()
        scores = torch.cat((prefix_scores.view(kv_heads, rows, queries, prefix_len), scores), -1)
    probs = torch.softmax(scores, -1).to(q.dtype)
    suffix_v = suffix_v_BSGE.permute(2, 0, 1, 3)
    if prefix_v_PGE is None:
        out = torch.matmul(probs, suffix_v)
    else:
        prefix_len = prefix_v_PGE.shape[0]
        flat_probs = probs[..., :prefix_len].reshape(kv_heads, rows * queries, prefix_len)
        out = torch.bmm(flat_probs, prefix_v_PGE.transpose(0, 1))
        out = out.view(kv_heads, rows, queries, width)
        out = out + torch.matmul(probs[..., prefix_len:], suffix_v)
    out = out.view(kv_heads, rows, tokens, repeats, width).permute(1, 2, 0, 3, 4)
    return out.reshape(rows, tokens, heads, width)
