"""Sampling: mask, choose, decode coordinates and sizes, choose the next input embedding.

Everything that runs on the device is free of host reads, so it can be queued a step ahead. The
plan, made on the host from the rows' constraints, says which parts a batch needs: when every
row is forced or chooses between end and object, two rows of the head decide and the vocabulary
is never computed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from photon_ros.engine.decode_slot import (
    CONTROL_FOLD,
    CONTROL_FORCED,
    CONTROL_POSITION,
    CONTROL_SEED,
    CONTROL_SPATIAL,
    LANDED_BIN_PROB,
    LANDED_COORD,
    LANDED_HEIGHT,
    LANDED_ID,
    LANDED_PROB,
    LANDED_WIDTH,
    DecodeSlot,
)
from photon_ros.engine.interfaces import Constraint, Model, ModelSpec
from photon_ros.engine.sequence import Sequence

SEED_MASK = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Which parts of sampling a batch needs.

    Attributes:
        num_rows: rows of the batch.
        pair: the two ids every free row chooses between; None computes the vocabulary.
        any_free, any_forced: rows that choose, and rows that do not; only read with a pair.
        may_coord, may_size: some row may sample a spatial coordinate, or a spatial size.
        any_text: some row may sample an id that is embedded as text.
        any_random: some row has a temperature above 0.
        any_folded: some row only asks whether its answer goes on.
    """

    num_rows: int
    pair: tuple[int, int] | None
    any_free: bool
    any_forced: bool
    may_coord: bool
    may_size: bool
    any_text: bool
    any_random: bool
    any_folded: bool


def plan_sampling(
    constraints: Seq[Constraint], sequences: Seq[Sequence], spec: ModelSpec
) -> SamplingPlan:
    """Return what a batch with these constraints needs; one constraint a row."""
    pair = (min(spec.eos_id, spec.coord_id), max(spec.eos_id, spec.coord_id))
    # Rows in one state mostly share one constraint object: look at each only once.
    distinct = list({id(c): c for c in constraints}.values())
    free = [c for c in distinct if c.forced_id is None]
    any_random = bool(free) and any(s.sampling.temperature > 0 for s in sequences)
    uses_pair = not any_random and all(
        c.spatial and (c.forced_id in (*pair, spec.size_id) or c.allowed == pair) for c in distinct
    )
    return SamplingPlan(
        num_rows=len(constraints),
        pair=pair if uses_pair else None,
        any_free=bool(free),
        any_forced=len(free) < len(distinct),
        may_coord=any(c.spatial and c.permits(spec.coord_id) for c in distinct),
        may_size=any(c.spatial and c.permits(spec.size_id) for c in distinct),
        any_text=not uses_pair,
        any_random=any_random,
        any_folded=any(c.fold_to is not None for c in distinct),
    )


def stage_sampling(
    slot: DecodeSlot,
    plan: SamplingPlan,
    constraints: Seq[Constraint],
    sequences: Seq[Sequence],
    positions: Seq[int],
) -> None:
    """Write the controls, and where needed mask and temperatures, to the host staging.

    ``positions`` are the absolute positions of the tokens to be sampled; with the seed they
    determine the noise, and without any random row they are not read.
    """
    rows = plan.num_rows
    controls = slot.controls_host.numpy()[:rows]
    controls[:, CONTROL_FORCED] = [-1 if c.forced_id is None else c.forced_id for c in constraints]
    controls[:, CONTROL_SPATIAL] = [c.spatial for c in constraints]
    if plan.any_folded:
        controls[:, CONTROL_FOLD] = [-1 if c.fold_to is None else c.fold_to for c in constraints]
    if plan.any_random:
        controls[: len(sequences), CONTROL_SEED] = [s.sampling.seed & SEED_MASK for s in sequences]
        controls[: len(sequences), CONTROL_POSITION] = positions
    if plan.pair is None:
        slot.stage_mask(constraints)
    if plan.any_random:
        values = [(s.sampling.temperature, s.sampling.top_p) for s in sequences]
        slot.sampling_host.numpy()[: len(values)] = np.asarray(values, dtype=np.float32)


def copy_sampling_inputs(slot: DecodeSlot, plan: SamplingPlan) -> None:
    """Copy what :func:`stage_sampling` wrote to the device; runs on the compute stream."""
    rows = plan.num_rows
    slot.controls[:rows].copy_(slot.controls_host[:rows], non_blocking=True)
    if plan.pair is None:
        slot.mask[:rows].copy_(slot.mask_host[:rows], non_blocking=True)
    if plan.any_random:
        slot.sampling[:rows].copy_(slot.sampling_host[:rows], non_blocking=True)


def sample(
    model: Model, slot: DecodeSlot, plan: SamplingPlan, relay: Tensor, lanes: Tensor
) -> None:
    """Sample a batch and leave its next input embeddings in the relay.

    Args:
        model: gives logits and embeddings.
        slot: hidden states and controls in, landed values out.
        plan: what this batch needs.
        relay: (max_rows, D) device; row ``lane`` carries a sequence's next input embedding.
        lanes: (rows,) int64 device.
    """
    rows = plan.num_rows
    hidden = slot.hidden[:rows]
    controls = slot.controls[:rows]
    spec = model.spec
    if plan.pair is not None:
        ids, probs = _choose_of_pair(model, hidden, plan, controls[:, CONTROL_FORCED])
    else:
        ids, probs = _choose_of_vocabulary(model, hidden, plan, slot)
    landed, landed_probs = slot.landed[:rows], slot.landed_probs[:rows]
    landed[:, LANDED_ID] = ids
    landed[:, LANDED_COORD : LANDED_HEIGHT + 1] = -1
    landed_probs[:, LANDED_PROB] = probs
    bin_probs: Tensor | float = 1.0
    next_embeds = model.embed_tokens(ids) if plan.any_text else None
    spatial = controls[:, CONTROL_SPATIAL] == 1
    if plan.may_coord:
        is_coord = (ids == spec.coord_id) & spatial
        bins, bin_probs = _most_likely(model.coord_logits(hidden))
        landed[:, LANDED_COORD] = torch.where(is_coord, bins, -1)
        embeds = model.embed_coords(bins)
        next_embeds = (
            embeds if next_embeds is None else torch.where(is_coord[:, None], embeds, next_embeds)
        )
        bin_probs = torch.where(is_coord, bin_probs, 1.0)
    if plan.may_size:
        is_size = (ids == spec.size_id) & spatial
        bins, size_probs = _most_likely(model.size_logits(hidden))
        landed[:, LANDED_WIDTH : LANDED_HEIGHT + 1] = torch.where(is_size[:, None], bins, -1)
        embeds = model.embed_sizes(bins)
        next_embeds = (
            embeds if next_embeds is None else torch.where(is_size[:, None], embeds, next_embeds)
        )
        bin_probs = torch.where(is_size, size_probs.prod(-1), bin_probs)
    landed_probs[:, LANDED_BIN_PROB] = bin_probs
    if next_embeds is not None:  # a batch that can only end feeds nothing on
        relay.index_copy_(0, lanes, next_embeds.to(relay.dtype))


def _choose_of_pair(
    model: Model, hidden: Tensor, plan: SamplingPlan, forced: Tensor
) -> tuple[Tensor, Tensor]:
    """Choose between the two ids of the plan; the lower id wins a tie, as argmax does."""
    assert plan.pair is not None
    if not plan.any_free:
        return forced, torch.ones_like(forced, dtype=torch.float32)
    logits = model.token_logits(hidden, plan.pair).float()
    lead = logits[:, 1] - logits[:, 0]
    ids = torch.where(lead > 0, plan.pair[1], plan.pair[0])
    probs = torch.sigmoid(lead.abs())
    if plan.any_forced:
        is_forced = forced >= 0
        ids = torch.where(is_forced, forced, ids)
        probs = torch.where(is_forced, 1.0, probs)
    return ids, probs


def _choose_of_vocabulary(
    model: Model, hidden: Tensor, plan: SamplingPlan, slot: DecodeSlot
) -> tuple[Tensor, Tensor]:
    rows = plan.num_rows
    logits = model.vocab_logits(hidden).float()
    logits = logits.masked_fill(slot.mask[:rows], float("-inf"))
    ids = logits.argmax(-1)
    if plan.any_random:
        temperature, top_p = slot.sampling[:rows, 0:1], slot.sampling[:rows, 1:2]
        seeds = slot.controls[:rows, CONTROL_SEED : CONTROL_SEED + 1]
        positions = slot.controls[:rows, CONTROL_POSITION : CONTROL_POSITION + 1]
        scaled = logits / temperature.clamp_min(1e-6)
        kept = keep_top_p(scaled, top_p)
        drawn = (kept + gumbel_noise(seeds, positions, logits.shape[1])).argmax(-1)
        ids = torch.where(temperature[:, 0] > 0, drawn, ids)
    distribution = torch.softmax(logits, -1)
    probs = distribution.gather(1, ids[:, None])[:, 0]
    if plan.any_folded:
        fold = slot.controls[:rows, CONTROL_FOLD]
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
    logits = logits.float()
    best, bins = logits.max(-1)
    return bins, torch.exp(best - torch.logsumexp(logits, -1))
