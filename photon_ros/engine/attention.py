"""Attention over the paged cache: how a step's rows read and write keys and values.

A frame's prefix is one contiguous extent, so rows that ask about the same frame read it once,
in place, in one matrix product; only their short private suffixes are gathered by page. Both
parts go through one softmax, so the result is that of ordinary attention.

Shapes beside those of interfaces.py: S private positions, Q queries of a row that share a
key/value head (its tokens times H / G).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from photon_ros.engine.kv_cache import KVCache
from photon_ros.engine.step_inputs import ForwardInputs, RowGroup


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

    ``groups`` says which neighbouring rows share which prefix.
    """

    def __init__(self, cache: KVCache, inputs: ForwardInputs, groups: Seq[RowGroup]) -> None:
        self._cache = cache
        self._pages = _PrivatePages(cache, inputs)
        self._groups = tuple(groups)

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Write this step's keys and values, then attend."""
        k_BSGE, v_BSGE = self._pages.exchange(layer, k_BTGE, v_BTGE)
        parts = []
        for group in self._groups:
            rows = slice(group.begin, group.end)
            prefix = None
            if group.prefix_start >= 0:
                extent = slice(group.prefix_start, group.prefix_start + self._cache.prefix_len)
                keys, values = self._cache.keys[layer], self._cache.values[layer]
                prefix = _OneExtent(keys[extent], values[extent])
            bias = self._pages.bias_BTS[rows]
            parts.append(_attend(q_BTHE[rows], k_BSGE[rows], v_BSGE[rows], bias, prefix))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class CapturedRowsAttend:
    """The same for steps of fixed shape, whose prefixes are data on the device.

    One graph serves any mix of frames: every row meets every prefix and keeps its own.
    """

    def __init__(self, cache: KVCache, inputs: ForwardInputs) -> None:
        self._cache = cache
        self._pages = _PrivatePages(cache, inputs)
        self._extents = _ExtentsByRow(cache, inputs)

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Write this step's keys and values, then attend."""
        k_BSGE, v_BSGE = self._pages.exchange(layer, k_BTGE, v_BTGE)
        self._extents.read(self._cache.keys[layer], self._cache.values[layer])
        return _attend(q_BTHE, k_BSGE, v_BSGE, self._pages.bias_BTS, self._extents)


class _PrivatePages:
    """What a step's rows write to and read from their private pages, alike in every layer.

    ``bias_BTS`` is 0 where a position may be seen and -inf elsewhere.
    """

    def __init__(self, cache: KVCache, inputs: ForwardInputs) -> None:
        self._cache = cache
        self._write_slots = inputs.write_slots.flatten()
        page, table = cache.page_size, inputs.page_table
        offsets = torch.arange(page, device=table.device)
        self._read_slots = (table[:, :, None] * page + offsets).flatten()
        key_positions = torch.arange(table.shape[1] * page, device=table.device)
        self.bias_BTS = _bias(key_positions > inputs.private_positions[:, :, None])

    def exchange(self, layer: int, k_BTGE: Tensor, v_BTGE: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values; return all that the rows own, (B, S, G, E) each."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys.index_copy_(0, self._write_slots, k_BTGE.flatten(0, 1))
        values.index_copy_(0, self._write_slots, v_BTGE.flatten(0, 1))
        shape = (len(k_BTGE), -1, *keys.shape[1:])
        return (
            keys.index_select(0, self._read_slots).view(shape),
            values.index_select(0, self._read_slots).view(shape),
        )


class _Prefixes(Protocol):
    """The shared part of what rows see."""

    def scores(self, q_GBQE: Tensor) -> Tensor:
        """Return (G, B, Q, P) float32."""

    def weighted(self, probs_GBQP: Tensor) -> Tensor:
        """Return (G, B, Q, E): the values weighted by ``probs``."""


class _OneExtent:
    """A prefix that all rows share, read in place."""

    def __init__(self, k_PGE: Tensor, v_PGE: Tensor) -> None:
        self._k_GEP, self._v_GPE = k_PGE.permute(1, 2, 0), v_PGE.transpose(0, 1)

    def scores(self, q_GBQE: Tensor) -> Tensor:
        return torch.bmm(q_GBQE.flatten(1, 2), self._k_GEP).float().view(*q_GBQE.shape[:3], -1)

    def weighted(self, probs_GBQP: Tensor) -> Tensor:
        return torch.bmm(probs_GBQP.flatten(1, 2), self._v_GPE).view(*probs_GBQP.shape[:3], -1)


class _ExtentsByRow:
    """Several prefixes; ``row_prefix`` says on the device which one a row reads, -1 for none."""

    def __init__(self, cache: KVCache, inputs: ForwardInputs) -> None:
        starts, row_prefix = inputs.prefix_starts, inputs.row_prefix
        assert starts is not None
        assert row_prefix is not None
        positions = torch.arange(cache.prefix_len, device=starts.device)
        self._slots_FP = starts[:, None] + positions
        self._own = row_prefix.clamp_min(0)
        self._rows = torch.arange(len(row_prefix), device=starts.device)
        reads = row_prefix == torch.arange(len(starts), device=starts.device)[:, None]
        self._reads = reads[:, None, :, None, None]  # (F, 1, B, 1, 1)
        self._bias = _bias(row_prefix < 0)[None, :, None, None]  # (1, B, 1, 1)

    def read(self, keys: Tensor, values: Tensor) -> None:
        """Look at one layer of the cache."""
        shape = (*self._slots_FP.shape, *keys.shape[1:])
        slots = self._slots_FP.flatten()
        self._k_FGEP = keys.index_select(0, slots).view(shape).permute(0, 2, 3, 1)
        self._v_FGPE = values.index_select(0, slots).view(shape).transpose(1, 2)

    def scores(self, q_GBQE: Tensor) -> Tensor:
        every = torch.matmul(q_GBQE.flatten(1, 2), self._k_FGEP).float()
        every = every.view(len(every), *q_GBQE.shape[:3], -1)  # (F, G, B, Q, P)
        return every[self._own, :, self._rows].transpose(0, 1) + self._bias

    def weighted(self, probs_GBQP: Tensor) -> Tensor:
        parts = (probs_GBQP * self._reads).flatten(2, 3)  # (F, G, B * Q, P)
        return torch.matmul(parts, self._v_FGPE).sum(0).view(*probs_GBQP.shape[:3], -1)


def _attend(
    q_BTHE: Tensor, k_BSGE: Tensor, v_BSGE: Tensor, bias_BTS: Tensor, prefixes: _Prefixes | None
) -> Tensor:
    """Return attention (B, T, H, E) over the prefixes, all of each, and private positions.

    Scores and softmax are float32 whatever the model's dtype.
    """
    rows, tokens, heads, width = q_BTHE.shape
    length, kv_heads = k_BSGE.shape[1:3]
    repeats = heads // kv_heads
    q = q_BTHE.reshape(rows, tokens, kv_heads, repeats, width) * width**-0.5
    q_GBQE = q.permute(2, 0, 1, 3, 4).flatten(2, 3)
    bias = bias_BTS if repeats == 1 else bias_BTS.repeat_interleave(repeats, dim=1)
    scores = torch.matmul(q_GBQE, k_BSGE.permute(2, 0, 3, 1)).float() + bias
    if prefixes is not None:
        scores = torch.cat((prefixes.scores(q_GBQE), scores), -1)
    probs = torch.softmax(scores, -1).to(q.dtype)
    out = torch.matmul(probs[..., -length:], v_BSGE.permute(2, 0, 1, 3))
    if prefixes is not None:
        out = out + prefixes.weighted(probs[..., :-length])
    out = out.view(kv_heads, rows, tokens, repeats, width).permute(1, 2, 0, 3, 4)
    return out.reshape(rows, tokens, heads, width)


def _bias(is_hidden: Tensor) -> Tensor:
    """Return 0 and, where hidden, -inf."""
    zeros = torch.zeros(is_hidden.shape, device=is_hidden.device)
    return zeros.masked_fill_(is_hidden, float("-inf"))
