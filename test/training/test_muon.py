"""Muon: updates are near orthogonal, batched and fused matrices move as if alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from training.muon import Muon, orthogonalised


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 96, 32), (2, 32, 128)])
def test_singular_values_are_pulled_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    moved = orthogonalised(torch.randn(shape))
    values = torch.linalg.svdvals(moved)
    assert moved.shape == shape
    assert float(values.max()) < 1.3
    assert float(values.median()) > 0.6


def test_half_precision_is_good_enough() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(2, 32, 64)
    full, half = orthogonalised(matrix), orthogonalised(matrix.bfloat16()).float()
    cosine = (full * half).sum() / (full.norm() * half.norm())
    assert float(cosine) > 0.98


def test_directions_are_kept() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(1, 16, 24)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    cosine = (orthogonalised(matrix) * (left @ right)).sum() / 16
    assert float(cosine) > 0.7


def step_once(weights: list[torch.Tensor], grads: list[torch.Tensor]) -> list[torch.Tensor]:
    params = [nn.Parameter(weight.clone()) for weight in weights]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()
    Muon(params, lr=0.1, weight_decay=0.0).step()
    return [param.detach() for param in params]


def test_matrices_of_one_shape_move_as_if_alone() -> None:
    torch.manual_seed(0)
    weights, grads = ([torch.randn(16, 24) for _ in range(3)] for _ in range(2))
    together = step_once(weights, grads)
    for weight, grad, moved in zip(weights, grads, together, strict=True):
        assert torch.allclose(step_once([weight], [grad])[0], moved, atol=1e-5)


def test_a_fused_matrix_moves_as_three() -> None:
    torch.manual_seed(0)
    weight, grad = torch.randn(48, 16), torch.randn(48, 16)
    fused = step_once([weight], [grad])[0]
    parts = step_once(list(weight.split(16)), list(grad.split(16)))
    assert torch.allclose(fused, torch.cat(parts), atol=1e-5)


def test_the_step_does_not_depend_on_the_size_of_the_gradient() -> None:
    torch.manual_seed(0)
    weight, grad = torch.randn(16, 16), torch.randn(16, 16)
    small, large = step_once([weight], [grad])[0], step_once([weight], [1000 * grad])[0]
    assert torch.allclose(small, large, atol=1e-4)
    assert 0.5 < float((small - weight).norm()) / (0.1 * 4) < 1.3


def test_weight_decay_pulls_to_zero() -> None:
    param = nn.Parameter(torch.ones(8, 8))
    param.grad = torch.zeros(8, 8)
    Muon([param], lr=0.1, weight_decay=0.5).step()
    assert torch.allclose(param.detach(), torch.full((8, 8), 0.95), atol=1e-6)


def test_parameters_without_a_gradient_are_left_alone() -> None:
    param = nn.Parameter(torch.ones(8, 8))
    Muon([param]).step()
    assert torch.equal(param.detach(), torch.ones(8, 8))


def test_it_descends() -> None:
    torch.manual_seed(0)
    goal = torch.randn(16, 16)
    param = nn.Parameter(torch.zeros(16, 16))
    muon = Muon([param], lr=0.1, weight_decay=0.0)
    first = float((param - goal).square().sum().detach())
    for _ in range(60):
        muon.zero_grad()
        (param - goal).square().sum().backward()
        muon.step()
    assert float((param - goal).square().sum().detach()) < 0.2 * first
