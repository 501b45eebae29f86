"""Sampling on the device: mask, choose, decode coordinates and sizes, choose the next input.

Free of host reads, so that it can be queued a step ahead. The plan, made on the host from the
rows' constraints, says which parts a batch needs: when every row is forced or chooses between
end and object, two rows of the head decide and the vocabulary is never computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from photon_ros.engine.decode_slot import Control, DecodeSlot, Landed
from photon_ros.engine.interfaces import Model


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Which parts of sampling a batch needs.

    Attributes:
        num_rows: rows of the batch.
        pair: the two ids every free row chooses between, and no id is embedded as text; None
            computes the vocabulary.
        any_free: some row chooses; only read with a pair.
        may_coord, may_size: some row may sample a spatial coordinate, or a spatial size.
        any_random: some row has a temperature above 0.
        any_folded: some row only asks whether its answer goes on.
    """

    num_rows: int
    pair: tuple[int, int] | None
    any_free: bool
    may_coord: bool
    may_size: bool
    any_random: bool
    any_folded: bool


def sample(
    model: Model, slot: DecodeSlot, plan: SamplingPlan, relay: Tensor, lanes: Tensor
) -> None:
    """Sample a batch and leave its next input embeddings in the relay.

    Hidden states and staged controls are read from the slot, what was sampled lands there.
    ``relay`` is (max_rows + 1, D), ``lanes`` (rows,) int64, both on the device.
    """
    rows, spec = plan.num_rows, model.spec
    slot.controls.to_device(rows)
    hidden, controls = slot.hidden[:rows], slot.controls.device[:rows]
    choose = _choose_of_vocabulary if plan.pair is None else _choose_of_pair
    ids, probs = choose(model, hidden, plan, slot)
    landed = slot.landed.device[:rows]
    landed[:, Landed.ID] = ids
    landed[:, Landed.COORD : Landed.PROB] = -1
    landed[:, Landed.PROB] = probs
    bin_probs = torch.ones_like(probs)
    embeds = model.embed_tokens(ids) if plan.pair is None else None
    # With a pair every row is spatial.
    is_text = None if plan.pair is not None else controls[:, Control.SPATIAL] == 0
    if plan.may_coord:
        is_coord = _is_value(ids, spec.coord_id, is_text)
        bins, chances = _most_likely(model.coord_logits(hidden))
        landed[:, Landed.COORD] = torch.where(is_coord, bins, -1)
        bin_probs = torch.where(is_coord, chances, bin_probs)
        embeds = _where_rows(is_coord, model.embed_coords(bins), embeds)
    if plan.may_size:
        is_size = _is_value(ids, spec.size_id, is_text)
        bins, chances = _most_likely(model.size_logits(hidden))
        landed[:, Landed.WIDTH : Landed.PROB] = torch.where(is_size[:, None], bins, -1)
        bin_probs = torch.where(is_size, chances.prod(-1), bin_probs)
        embeds = _where_rows(is_size, model.embed_sizes(bins), embeds)
    landed[:, Landed.BIN_PROB] = bin_probs
    if embeds is not None:  # a batch that can only end feeds nothing on
        relay.index_copy_(0, lanes, embeds.to(relay.dtype))


def _is_value(ids: Tensor, value_id: int, is_text: Tensor | None) -> Tensor:
    """Return which rows sampled ``value_id`` to stand for a value, and not as text."""
    is_sampled = ids == value_id
    return is_sampled if is_text is None else is_sampled & ~is_text


def _where_rows(is_new_R: Tensor, new_RD: Tensor, old_RD: Tensor | None) -> Tensor:
    return new_RD if old_RD is None else torch.where(is_new_R[:, None], new_RD, old_RD)


def _choose_of_pair(
    model: Model, hidden: Tensor, plan: SamplingPlan, slot: DecodeSlot
) -> tuple[Tensor, Tensor]:
    """Choose between the two ids of the plan; the lower id wins a tie, as argmax does."""
    assert plan.pair is not None
    forced = slot.controls.device[: plan.num_rows, Control.FORCED]
    if not plan.any_free:
        # Nothing is computed from the hidden states, but NaN must show: 1 unless it is NaN.
        return forced, hidden[:, 0].clamp(1, 1)
    logits = model.token_logits(hidden, plan.pair).float()
    lead = logits[:, 1] - logits[:, 0]
    ids = torch.where(lead > 0, plan.pair[1], plan.pair[0])
    probs = torch.sigmoid(lead.abs())
    is_forced = forced >= 0
    ids = torch.where(is_forced, forced, ids)
    return ids, torch.maximum(probs, is_forced)  # 1 where forced, but NaN stays NaN


def _choose_of_vocabulary(
    model: Model, hidden: Tensor, plan: SamplingPlan, slot: DecodeSlot
) -> tuple[Tensor, Tensor]:
    rows = plan.num_rows
    controls = slot.controls.device[:rows]
    slot.mask.to_device(rows)
    logits = model.vocab_logits(hidden).float()
    logits = logits.masked_fill(slot.mask.device[:rows], float("-inf"))
    ids = logits.argmax(-1)
    if plan.any_random:
        slot.sampling.to_device(rows)
        temperature, top_p = slot.sampling.device[:rows, :1], slot.sampling.device[:rows, 1:]
        seeds, positions = controls[:, Control.SEED, None], controls[:, Control.POSITION, None]
        scaled = logits / temperature.clamp_min(1e-6)
        kept = keep_top_p(scaled, top_p)
        drawn = (kept + gumbel_noise(seeds, positions, logits.shape[1])).argmax(-1)
        ids = torch.where(temperature[:, 0] > 0, drawn, ids)
    distribution = torch.softmax(logits, -1)
    probs = distribution.gather(1, ids[:, None])[:, 0]
    if plan.any_folded:
        fold = controls[:, Control.FOLD]
        is_folded = (fold >= 0) & (ids != model.spec.eos_id)
        ids = torch.where(is_folded, fold, ids)
        probs = torch.where(is_folded, 1 - distribution[:, model.spec.eos_id], probs)
    return ids, probs


def keep_top_p(logits_RV: Tensor, top_p_R1: Tensor) -> Tensor:
    """Return the logits with -inf where the mass of the likelier tokens exceeds ``top_p``.

    A token stays while the mass before it, most likely first, is at most ``top_p``; the most
    likely one always stays.
    """
    ordered, order = torch.softmax(logits_RV, -1).sort(stable=True, dim=-1, descending=True)
    mass_before = ordered.cumsum(-1) - ordered
    dropped = torch.zeros_like(mass_before, dtype=torch.bool).scatter_(
        -1, order, mass_before > top_p_R1
    )
    return logits_RV.masked_fill(dropped, float("-inf"))


def gumbel_noise(seeds_R1: Tensor, positions_R1: Tensor, vocab_size: int) -> Tensor:
    """Return (R, V) float32 Gumbel noise, a pure function of (seed, position, token id).

    The same in any batch, order or mode. The bits come from the finaliser of SplitMix64
    (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), twice.
    """
    tokens = torch.arange(vocab_size, device=seeds_R1.device)
    row_keys = _mix(seeds_R1 * 0x2545F4914F6CDD1D + positions_R1)
    bits = _mix(row_keys + tokens * -0x61C8864680B583EB)
    # 24 bits fill a float32's fraction; the half step keeps u inside (0, 1).
    uniform = ((bits & 0xFFFFFF).to(torch.float32) + 0.5) * 2.0**-24
    return -torch.log(-torch.log(uniform))


def _mix(x: Tensor) -> Tensor:
    """Return the SplitMix64 finaliser of int64 ``x``; products wrap as unsigned ones do."""
    x = (x ^ _shift_right(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shift_right(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift int64 right without copying the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the arg max over the last axis and its softmax probability."""
    return logits.argmax(-1), torch.softmax(logits, -1, dtype=torch.float32).amax(-1)
