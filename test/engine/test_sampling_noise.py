"""Noise is a pure function of seed, position and id, and draws what the softmax says."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_batch import (
    COORD,
    EOS,
    OBJECT_OR_END,
    logits_of,
    table_batch,
)
from torch import Tensor

from photon_ros.engine import sampling
from photon_ros.engine.interfaces import Constraint
from photon_ros.engine.sequence import SamplingParams


def slow_top_p(logits: list[float], top_p: float) -> list[bool]:
    """Say which ids stay, one at a time, most likely first; the lower id first in a tie."""
    exact = torch.softmax(torch.tensor(logits, dtype=torch.float64), -1).tolist()
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    keep, mass = [False] * len(logits), 0.0
    for i in order:
        keep[i] = mass <= top_p
        mass += exact[i]
    return keep


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-24, 24).map(lambda n: n / 4), min_size=1, max_size=12),
    st.floats(0.015625, 1.0, width=32),
)
def test_top_p_keeps_what_a_slow_reference_keeps(logits: list[float], top_p: float) -> None:
    kept = sampling.keep_top_p(torch.tensor([logits]), torch.tensor([[top_p]]))[0]
    wanted = slow_top_p(logits, top_p)
    exact = torch.softmax(torch.tensor(logits, dtype=torch.float64), -1)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    mass = 0.0
    for i in order:
        if abs(mass - top_p) > 1e-5:  # at the edge rounding decides
            assert bool(torch.isfinite(kept[i])) == wanted[i]
        mass += float(exact[i])
    assert torch.isfinite(kept[order[0]])
    same = torch.isfinite(kept)
    assert torch.equal(kept[same], torch.tensor(logits)[same])


def test_the_most_likely_id_stays_however_small_top_p_is() -> None:
    kept = sampling.keep_top_p(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[1e-9]]))
    assert torch.isfinite(kept).tolist() == [[False, True, False]]


def test_every_row_has_its_own_top_p() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 3)
    kept = torch.isfinite(sampling.keep_top_p(logits, torch.tensor([[0.1], [0.7], [1.0]])))
    assert kept.sum(-1).tolist() == [1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 5000)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_noise_depends_on_seed_position_and_id_alone(
    places: list[tuple[int, int]], random: object
) -> None:
    def noise(chosen: list[tuple[int, int]]) -> Tensor:
        seeds = torch.tensor([[seed] for seed, _ in chosen])
        positions = torch.tensor([[position] for _, position in chosen])
        return sampling.gumbel_noise(seeds, positions, 40)

    together = noise(places)
    assert torch.isfinite(together).all()
    order = list(range(len(places)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert torch.equal(noise([places[i] for i in order]), together[order])
    for row, place in enumerate(places):
        assert torch.equal(noise([place])[0], together[row])


def test_noise_differs_between_neighbouring_seeds_positions_and_ids() -> None:
    seeds = torch.arange(40).repeat_interleave(40)[:, None]
    positions = torch.arange(40).repeat(40)[:, None]
    noise = sampling.gumbel_noise(seeds, positions, 30)
    assert noise.unique().numel() > 0.997 * noise.numel()  # 24 bits: few collide by chance
    flat = noise.view(40, 40, 30).double()
    flat = (flat - flat.mean()) / flat.std()
    for dim in range(3):
        a = flat.narrow(dim, 0, flat.shape[dim] - 1)
        b = flat.narrow(dim, 1, flat.shape[dim] - 1)
        assert abs(float((a * b).mean())) < 0.02


def test_noise_is_gumbel_distributed() -> None:
    seeds = torch.arange(20)[:, None]
    noise = sampling.gumbel_noise(seeds, seeds * 0 + 3, 20_000)
    values = np.sort(noise.double().numpy().ravel())
    wanted = np.exp(-np.exp(-values))
    ranks = (np.arange(len(values)) + 0.5) / len(values)
    assert np.abs(ranks - wanted).max() < 1.63 / math.sqrt(len(values))  # 1 % of a K-S test


LOGITS = {0: 1.5, 3: 1.0, 7: 0.0, 8: -0.5, 11: 2.0, 20: 0.5}
IDS = tuple(sorted(LOGITS))


def draw(num_rows: int, temperature: float, top_p: float, seed: int) -> Counter[int]:
    counts: Counter[int] = Counter()
    batch = table_batch(logits_of(*[LOGITS] * 200))
    params = [SamplingParams(temperature, top_p, seed)] * 200
    for start in range(0, num_rows, 200):
        tokens = batch.run([Constraint(allowed=IDS)] * 200, params, list(range(start, start + 200)))
        counts.update(token.id for token in tokens)
    return counts


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_frequencies_match_the_softmax_by_chi_square(temperature: float, top_p: float) -> None:
    scaled = torch.tensor([LOGITS[i] / temperature for i in IDS], dtype=torch.float64)
    keep = torch.tensor(slow_top_p(scaled.tolist(), top_p))
    probs = torch.softmax(scaled.masked_fill(~keep, -math.inf), -1)
    num_draws = 8000
    counts = draw(num_draws, temperature, top_p, seed=12)
    assert set(counts) <= {i for i, kept in zip(IDS, keep.tolist(), strict=True) if kept}
    statistic = sum(
        (counts[i] - num_draws * p) ** 2 / (num_draws * p)
        for i, p in zip(IDS, probs.tolist(), strict=True)
        if p > 0
    )
    # 99.9 % quantiles of chi-square with 1 to 5 degrees of freedom.
    bound = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}[int(keep.sum()) - 1]
    assert statistic < bound


def test_different_seeds_give_different_answers_and_equal_ones_the_same() -> None:
    assert draw(200, 1.0, 1.0, seed=1) == draw(200, 1.0, 1.0, seed=1)
    assert draw(200, 1.0, 1.0, seed=1) != draw(200, 1.0, 1.0, seed=2)


def test_a_greedy_row_stays_greedy_beside_random_ones() -> None:
    batch = table_batch(logits_of(*[LOGITS] * 4))
    params = [SamplingParams(), SamplingParams(5.0, 1.0, 1), SamplingParams(), SamplingParams(2.0)]
    for position in range(40):
        tokens = batch.run([Constraint(allowed=IDS)] * 4, params, [position] * 4)
        assert tokens[0].id == tokens[2].id == 11


def test_a_masked_id_is_never_drawn() -> None:
    batch = table_batch(logits_of({3: 30.0, 4: 0.1}))
    for position in range(50):
        token = batch.run([Constraint(forbidden=(3,))], [SamplingParams(3.0, 1.0, 5)], [position])[
            0
        ]
        assert token.id != 3


def test_an_object_or_its_end_is_drawn_by_temperature_too() -> None:
    batch = table_batch(logits_of({EOS: 0.0, COORD: 0.0}))
    seen = {
        batch.run([OBJECT_OR_END], [SamplingParams(1.0, 1.0, 3)], [position])[0].id
        for position in range(40)
    }
    assert seen == {EOS, COORD}


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63)])
def test_any_integer_is_a_seed(seed: int) -> None:
    batch = table_batch(logits_of(LOGITS))
    token = batch.run([Constraint(allowed=IDS)], [SamplingParams(1.0, 1.0, seed)], [3])[0]
    assert token.id in IDS
