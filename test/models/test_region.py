from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.moondream.region import coord_values, fourier, size_values


def test_fourier_features_are_cosines_then_sines() -> None:
    values, features = torch.rand(4, 2).double(), torch.randn(2, 3).double()
    found = fourier(values, features)
    assert found.shape == (4, 6)
    for n in range(4):
        for i in range(3):
            f = 2 * math.pi * sum(float(values[n, a] * features[a, i]) for a in range(2))
            assert float(found[n, i]) == pytest.approx(math.cos(f))
            assert float(found[n, 3 + i]) == pytest.approx(math.sin(f))


@pytest.mark.parametrize("num_bins", [2, 16, 256, 1024])
def test_coordinates_start_at_zero_and_stay_below_one(num_bins: int) -> None:
    values = coord_values(num_bins)
    assert len(values) == num_bins
    assert values[0] == 0.0
    assert values[1] == 1 / num_bins
    assert values[-1] == (num_bins - 1) / num_bins


@pytest.mark.parametrize("num_bins", [2, 11, 128, 1024])
def test_sizes_grow_by_a_constant_factor_from_a_1024th_to_one(num_bins: int) -> None:
    values = size_values(num_bins)
    assert len(values) == num_bins
    assert values[0] == 1 / 1024
    assert values[-1] == 1.0
    ratios = [after / before for before, after in pairwise(values)]
    assert ratios == pytest.approx([2 ** (10 / (num_bins - 1))] * (num_bins - 1))


def test_size_bins_invert_the_training_formula() -> None:
    for b, value in enumerate(size_values(1024)):
        assert (math.log2(max(value, 1 / 1024)) + 10) / 10 * 1023 == pytest.approx(b)


def test_size_logits_hold_the_width_first(tiny_model: MoondreamModel) -> None:
    region = tiny_model.region
    hidden = torch.randn(3, 32)
    flat = region.size_decoder(hidden)
    logits = region.size_logits(hidden)
    assert logits.shape == (3, 2, 11)
    assert torch.equal(logits[:, 0], flat[:, :11])
    assert torch.equal(logits[:, 1], flat[:, 11:])


def test_heads_take_any_leading_shape(tiny_model: MoondreamModel) -> None:
    region = tiny_model.region
    hidden = torch.randn(2, 5, 32)
    assert region.coord_logits(hidden).shape == (2, 5, 16)
    assert region.size_logits(hidden).shape == (2, 5, 2, 11)
    assert region.embed_coords(torch.rand(2, 5, 1)).shape == (2, 5, 32)
    assert region.embed_sizes(torch.rand(2, 5, 2)).shape == (2, 5, 32)


def test_width_and_height_are_told_apart(tiny_model: MoondreamModel) -> None:
    sizes = torch.tensor([[0.2, 0.7], [0.7, 0.2]])
    embeds = tiny_model.region.embed_sizes(sizes)
    assert not torch.allclose(embeds[0], embeds[1])
