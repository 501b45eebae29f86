"""The shared layers compute what their formulas say, whichever way is fast."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from photon_ros.models.moondream.layers import MANY, Mlp, gelu, norm


def formula(x: Tensor) -> Tensor:
    """GELU in its tanh form, in float64."""
    x = x.double()
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("count", [MANY - 1, MANY])
def test_gelu_is_its_formula_for_few_values_and_for_many(count: int) -> None:
    x = torch.linspace(-12, 12, count)
    assert (gelu(x).double() - formula(x)).abs().max() < 1e-6


@pytest.mark.parametrize("count", [3, MANY])
def test_gelu_keeps_very_large_and_very_small_values(count: int) -> None:
    x = torch.zeros(count)
    x[:3] = torch.tensor([-1e30, 1e30, 1e-30])
    assert gelu(x)[:3].tolist() == [0.0, pytest.approx(1e30), pytest.approx(5e-31)]


def test_gelu_of_many_values_leaves_its_input_alone_and_takes_a_part_of_a_tensor() -> None:
    x = torch.randn(MANY // 64, 96, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    part = gelu(x[:, 32:])
    assert torch.equal(x, before)
    assert (part.double() - formula(x[:, 32:])).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gelu_of_many_half_precision_values_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.linspace(-6, 6, MANY).to(dtype)
    wanted = torch.nn.functional.gelu(x, approximate="tanh")
    assert torch.equal(gelu(x), wanted)


def test_a_large_mlp_has_gradients() -> None:
    mlp, x = Mlp(4, MANY // 8, 4), torch.randn(8, 4)
    mlp(x).sum().backward()
    for weight in mlp.parameters():
        assert weight.grad is not None
        assert weight.grad.abs().sum() > 0


def test_norm_is_that_of_the_module() -> None:
    module = torch.nn.LayerNorm(16)
    torch.nn.init.normal_(module.weight)
    x = torch.randn(3, 2, 16)
    assert torch.equal(norm(x, module), module(x))
