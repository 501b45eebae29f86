"""A model whose every answer is an exact hash of what it read through the page table.

Each position's value vector is a small-integer hash of (input embedding, position). Queries are
zero, so attention is the mean of the visible value vectors; times their count and rounded it is
their exact sum. A wrong page, position, row, relay value or stale buffer changes the sum and
with it every later token. :func:`expected_tokens` computes the same without an engine. As in
any model, a number that is not finite makes NaN of all that is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from photon_ros.engine.interfaces import (
    Adapt,
    AdaptedLinear,
    Attend,
    Constraint,
    FrameCrops,
    ModelSpec,
    SampledToken,
    SkillState,
)
from photon_ros.engine.lora import LoraAdapter

WIDTH = 8  # dimensions of a hash
BASE = 64  # values of one dimension: sums over a context stay exact in float32
PREFIX_LEN = 10
SPEC = ModelSpec(
    vocab_size=24,
    dim=WIDTH,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=WIDTH,
    max_context=200,
    prefix_len=PREFIX_LEN,
    bos_id=0,
    eos_id=0,
    coord_id=5,
    size_id=6,
    num_coord_bins=32,
    num_size_bins=16,
    crop_size_px=2,
    max_crops=1,
    dtype=torch.float32,
    adapted_linears=(AdaptedLinear("value", WIDTH, WIDTH),),
)
_TOKEN, _COORD, _SIZE, _FRAME, _VALUE = 1, 2, 3, 4, 5
_DIMS = torch.arange(WIDTH)


def _features(kind: int, value: Tensor) -> Tensor:
    """Return (..., WIDTH) small integers as float32."""
    mixed = value[..., None] * (2 * _DIMS + 7919 * kind + 1) + (_DIMS + kind) * 104729
    mixed = mixed ^ (mixed >> 5)
    return ((mixed * 40503) >> 7).remainder(BASE).float()


def _at_position(x: Tensor, positions: Tensor) -> Tensor:
    place, whole = positions[..., None] * (_DIMS + 13), x.nan_to_num(0).long()
    return (whole * 31 + place * 17 + (place ^ whole)).remainder(BASE).float() + x * 0


def _scores(hidden_RD: Tensor, salt: int, count: int) -> Tensor:
    """Return (R, count) logits: integers that depend on every dimension of the hidden state."""
    whole = hidden_RD.nan_to_num(0).long()
    state = (whole * (_DIMS * 2654435 + 97)).sum(-1, keepdim=True) + salt * 7727
    mixed = (state + torch.arange(count) * 69069) * 1103515
    scores = ((mixed ^ (mixed >> 11)) * 12345).remainder(10007).float()
    return scores + (hidden_RD * 0).sum(-1, keepdim=True)


class HashModel:
    """See the module's docstring. ``fail_on`` names the method whose next calls raise."""

    def __init__(self, fail_on: dict[str, int] | None = None) -> None:
        self.spec = SPEC
        self.fail_on = dict(fail_on or {})
        self.num_encoded_frames = 0
        self.num_vocab_rows = 0

    def _maybe_fail(self, name: str) -> None:
        if name in self.fail_on:
            self.fail_on[name] -= 1
            if self.fail_on[name] < 0:
                del self.fail_on[name]
                raise RuntimeError(f"planted fault in {name}")

    def encode_frames(self, crops: Seq[Tensor], tilings: Seq[tuple[int, int]]) -> Tensor:
        self._maybe_fail("encode_frames")
        self.num_encoded_frames += len(crops)
        frames = [int(crop.flatten()[0]) for crop in crops]
        places = torch.arange(PREFIX_LEN)
        return torch.stack([_features(_FRAME, places * 256 + frame) for frame in frames])

    def embed_tokens(self, ids: Tensor) -> Tensor:
        return _features(_TOKEN, ids)

    def embed_coords(self, bins_R: Tensor) -> Tensor:
        return _features(_COORD, bins_R)

    def embed_sizes(self, bins_R2: Tensor) -> Tensor:
        return _features(_SIZE, bins_R2[:, 0] * 64 + bins_R2[:, 1])

    def embed_coord_values(self, values_N1: Tensor) -> Tensor:
        return _features(_VALUE, (values_N1[:, 0] * 1000).long())

    def embed_size_values(self, values_N2: Tensor) -> Tensor:
        return _features(
            _VALUE, (values_N2[:, 0] * 1000).long() * 77 + (values_N2[:, 1] * 1000).long()
        )

    def decode(
        self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        self._maybe_fail("decode")
        values = _at_position(x_BTD, positions_BT)
        if adapt is not None:
            values = (values + adapt(0, "value", values)).remainder(BASE)
        values = values[:, :, None]
        mean = attend(0, torch.zeros_like(values), values * 0, values)[:, :, 0]
        return torch.round(mean * (positions_BT[..., None] + 1))

    def vocab_logits(self, hidden_RD: Tensor) -> Tensor:
        self._maybe_fail("vocab_logits")
        self.num_vocab_rows += hidden_RD.shape[0]
        return _scores(hidden_RD, 1, SPEC.vocab_size)

    def token_logits(self, hidden_RD: Tensor, ids: tuple[int, ...]) -> Tensor:
        return _scores(hidden_RD, 1, SPEC.vocab_size)[:, list(ids)]

    def coord_logits(self, hidden_RD: Tensor) -> Tensor:
        self._maybe_fail("coord_logits")
        return _scores(hidden_RD, 2, SPEC.num_coord_bins)

    def size_logits(self, hidden_RD: Tensor) -> Tensor:
        flat = _scores(hidden_RD, 3, 2 * SPEC.num_size_bins)
        return flat.view(-1, 2, SPEC.num_size_bins)


def adapter_of(number: int) -> LoraAdapter:
    """Return an adapter that adds ``number`` times the sum of two dimensions to the values."""
    down = torch.zeros(2, WIDTH)
    down[0, number % WIDTH] = down[1, (number + 3) % WIDTH] = 1
    up = torch.full((WIDTH, 2), float(number))
    return LoraAdapter(f"adapter {number}", 2, {(0, "value"): (down, up)})


def crops_of(frame_number: int) -> FrameCrops:
    """Return the crops that stand for a numbered frame."""
    return FrameCrops(np.full((1, 2, 2, 3), frame_number, dtype=np.uint8), (1, 1))


def expected_tokens(
    prompt_ids: Seq[int],
    frame_number: int | None,
    state: SkillState,
    max_context: int = SPEC.max_context,
    values: Seq[tuple[int, tuple[float, ...]]] = (),
    adapter: LoraAdapter | None = None,
) -> list[SampledToken]:
    """Return the tokens of one greedy request, computed alone and without any cache."""

    def _add(total: Tensor, length: int, x: Tensor) -> tuple[Tensor, int]:
        added = _at_position(x, torch.arange(length, length + len(x)))
        if adapter is not None:
            down, up = adapter.factors[0, "value"]
            added = (added + added @ down.T @ up.T).remainder(BASE)
        return total + added.sum(0), length + len(x)

    rows = [_prompt_rows(prompt_ids, values)]
    if frame_number is not None:
        rows.insert(0, _features(_FRAME, torch.arange(PREFIX_LEN) * 256 + frame_number))
    total, length = _add(torch.zeros(WIDTH), 0, torch.cat(rows))
    tokens: list[SampledToken] = []
    while True:
        phase_tokens = 0
        while True:
            constraint = state.constraint_ahead(0)
            assert constraint is not None
            token, next_x = _choose(total[None], constraint)
            tokens.append(token)
            phase_tokens += 1
            if state.advance(token):
                break
            if phase_tokens >= state.max_new_tokens or length >= max_context:
                return tokens
            total, length = _add(total, length, next_x)
        next_ids = state.next_phase()
        if next_ids is None:
            return tokens
        total, length = _add(total, length, _prompt_rows(next_ids, ()))


def _prompt_rows(ids: Seq[int], values: Seq[tuple[int, tuple[float, ...]]]) -> Tensor:
    rows = _features(_TOKEN, torch.tensor(list(ids)))
    for index, value in values:
        model = HashModel()
        embed = model.embed_coord_values if len(value) == 1 else model.embed_size_values
        rows[index] = embed(torch.tensor([value]))[0]
    return rows


def _choose(hidden_1D: Tensor, constraint: Constraint) -> tuple[SampledToken, Tensor]:
    model = HashModel()
    scores = model.vocab_logits(hidden_1D)[0].tolist()
    if constraint.allowed is None:
        ids = [i for i in range(SPEC.vocab_size) if i not in constraint.forbidden]
    else:
        ids = list(constraint.allowed)
    best = max(ids, key=lambda i: (scores[i], -i))
    if constraint.fold_to is not None and best != SPEC.eos_id:
        best = constraint.fold_to
    if constraint.spatial and best == SPEC.coord_id:
        coord = int(model.coord_logits(hidden_1D)[0].argmax())
        return SampledToken(best, coord_bin=coord), model.embed_coords(torch.tensor([coord]))
    if constraint.spatial and best == SPEC.size_id:
        w, h = model.size_logits(hidden_1D)[0].argmax(-1).tolist()
        return SampledToken(best, size_bins=(w, h)), model.embed_sizes(torch.tensor([[w, h]]))
    return SampledToken(best), model.embed_tokens(torch.tensor([best]))
