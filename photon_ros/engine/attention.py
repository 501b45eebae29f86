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
        self._write_slots = inputs.write_slots.flatten()
        self._groups = []
        for group in groups:
            rows = slice(group.begin, group.end)
            prefix = None
            if group.prefix_start >= 0:
                extent = slice(group.prefix_start, group.prefix_start + self._cache.prefix_len)
                prefix = _OneExtent(extent)
            self._groups.append((rows, _PrivatePages(cache, inputs, rows), prefix))

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Write this step's keys and values, then attend."""
        kv = self._cache.layers[layer]
        _write(kv, self._write_slots, k_BTGE, v_BTGE)
        parts = [_attend(q_BTHE[rows], kv, pages, prefix) for rows, pages, prefix in self._groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class CapturedRowsAttend:
    """The same for steps of fixed shape, whose prefixes are data on the device.

    One graph serves any mix of frames: every row meets every prefix and keeps its own.
    """

    def __init__(self, cache: KVCache, inputs: ForwardInputs) -> None:
        self._cache = cache
        self._write_slots = inputs.write_slots.flatten()
        self._pages = _PrivatePages(cache, inputs, slice(None))
        self._extents = _ExtentsByRow(cache, inputs)

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Write this step's keys and values, then attend."""
        kv = self._cache.layers[layer]
        _write(kv, self._write_slots, k_BTGE, v_BTGE)
        self._extents.read(kv)
        return _attend(q_BTHE, kv, self._pages, self._extents)


def _write(kv: Tensor, slots: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> None:
    """Write new keys and values to their slots of a layer."""
    new = torch.cat((k_BTGE, v_BTGE), 2)
    kv.index_copy_(1, slots, new.flatten(0, 1).transpose(0, 1))


class _PrivatePages:
    """What some rows read from their private pages, alike in every layer.

    ``bias_BT1S`` is 0 where a position may be seen and -inf elsewhere.
    """

    def __init__(self, cache: KVCache, inputs: ForwardInputs, rows: slice) -> None:
        page, table = cache.page_size, inputs.page_table[rows]
        key_positions = torch.arange(table.shape[1] * page, device=table.device)
        self._read_slots = (table[:, :, None] * page + key_positions[:page]).flatten()
        self._num_rows = len(table)
        private_positions = inputs.private_positions[rows]
        self.bias_BT1S = _bias(key_positions > private_positions[:, :, None, None])

    def read(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Return all keys and values that the rows own in a layer, (G * B, S, E) each."""
        own = kv.index_select(1, self._read_slots)
        k_NSE, v_NSE = own.view(2, len(kv) // 2 * self._num_rows, -1, kv.shape[2]).unbind(0)
        return k_NSE, v_NSE


class _Prefixes(Protocol):
    """The shared part of what rows see; N queries are those of all rows, row by row."""

    def scores(self, q_GNE: Tensor, kv: Tensor) -> Tensor:
        """Return (G, N, P)."""

    def add_weighted(self, out_GNE: Tensor, probs_GNP: Tensor, kv: Tensor) -> Tensor:
        """Return ``out`` and, added to it, the values weighted by ``probs``."""


class _OneExtent:
    """A prefix that all rows share, read in place."""

    def __init__(self, extent: slice) -> None:
        self._extent = extent

    def scores(self, q_GNE: Tensor, kv: Tensor) -> Tensor:
        k_GPE = kv[: len(q_GNE), self._extent]
        return torch.bmm(q_GNE, k_GPE.transpose(1, 2))

    def add_weighted(self, out_GNE: Tensor, probs_GNP: Tensor, kv: Tensor) -> Tensor:
        v_GPE = kv[len(out_GNE) :, self._extent]
        return torch.baddbmm(out_GNE, probs_GNP, v_GPE)


class _ExtentsByRow:
    """Several prefixes; ``row_prefix`` says on the device which one a row reads, -1 for none."""

    def __init__(self, cache: KVCache, inputs: ForwardInputs) -> None:
        starts, row_prefix = inputs.prefix_starts, inputs.row_prefix
        assert starts is not None
        assert row_prefix is not None
        positions = torch.arange(cache.prefix_len, device=starts.device)
        self._num_prefixes = len(starts)
        self._slots = (starts[:, None] + positions).flatten()
        self._own = row_prefix.clamp_min(0)
        self._rows = torch.arange(len(row_prefix), device=starts.device)
        ignores = row_prefix != torch.arange(len(starts), device=starts.device)[:, None]
        self._ignores = ignores[:, None, :, None, None]  # (F, 1, B, 1, 1)
        self._has_none = (row_prefix < 0)[None, :, None, None]  # (1, B, 1, 1)

    def read(self, kv: Tensor) -> None:
        """Look at one layer of the cache."""
        every = kv.index_select(1, self._slots)
        every = every.view(len(kv), self._num_prefixes, -1, kv.shape[2]).transpose(0, 1)
        self._k_FGPE, self._v_FGPE = every.chunk(2, dim=1)

    def scores(self, q_GNE: Tensor, kv: Tensor) -> Tensor:  # noqa: ARG002
        every = torch.matmul(q_GNE, self._k_FGPE.transpose(2, 3))
        every = every.view(*every.shape[:2], len(self._rows), -1, every.shape[3])  # (F, G, B, Q, P)
        own = every[self._own, :, self._rows].transpose(0, 1)
        # Not by adding: without a prefix these are scores of any slots, finite or not.
        return own.masked_fill(self._has_none, float("-inf")).flatten(1, 2)

    def add_weighted(self, out_GNE: Tensor, probs_GNP: Tensor, kv: Tensor) -> Tensor:  # noqa: ARG002
        every = torch.matmul(probs_GNP, self._v_FGPE)
        every = every.view(*every.shape[:2], len(self._rows), -1, every.shape[3])  # (F, G, B, Q, E)
        # Not by weights of 0: another frame's values may not be finite.
        return out_GNE + every.masked_fill(self._ignores, 0).sum(0).flatten(1, 2)


def _attend(q_BTHE: Tensor, kv: Tensor, pages: _PrivatePages, prefixes: _Prefixes | None) -> Tensor:
    """Return attention (B, T, H, E) over the prefixes, all of each, and private positions.

    The softmax is float32 whatever the model's dtype.
    """
    rows, tokens, heads, width = q_BTHE.shape
    kv_heads = len(kv) // 2
    q = (q_BTHE * width**-0.5).view(rows, tokens, kv_heads, -1, width).permute(2, 0, 1, 3, 4)
    q_GNE = q.reshape(kv_heads, -1, width)
    k, v = pages.read(kv)
    length = k.shape[1]
    scores = torch.bmm(q_GNE.reshape(len(k), -1, width), k.transpose(1, 2))
    scores = scores.view(kv_heads, rows, tokens, -1, length).add_(pages.bias_BT1S)
    scores = scores.view(kv_heads, -1, length)
    if prefixes is not None:
        scores = torch.cat((prefixes.scores(q_GNE, kv), scores), -1)
    probs = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype)
    own = probs[..., -length:].view(len(k), -1, length)
    out = torch.bmm(own, v).view(kv_heads, -1, width)
    if prefixes is not None:
        out = prefixes.add_weighted(out, probs[..., :-length], kv)
    out = out.view(kv_heads, rows, tokens, -1, width).permute(1, 2, 0, 3, 4)
    return out.reshape(rows, tokens, heads, width)


def _bias(is_hidden: Tensor) -> Tensor:
    """Return 0 and, where hidden, -inf."""
    zeros = torch.zeros(is_hidden.shape, device=is_hidden.device)
    return zeros.masked_fill_(is_hidden, float("-inf"))
