"""Pieces that the vision encoder, the text decoder and the region model share."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPS = 1e-5  # every layer norm of the family, vision included
MANY = 1 << 15  # values of one activation from which four passes cost less than a tanh


class Mlp(nn.Module):
    """Linear, GELU in its tanh form, linear: (..., dim_in) to (..., dim_out)."""

    def __init__(self, dim_in: int, dim_inner: int, dim_out: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim_in, dim_inner)
        self.fc2 = nn.Linear(dim_inner, dim_out)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both layers."""
        return linear(gelu(linear(x, self.fc1)), self.fc2)


class AttentionWeights(nn.Module):
    """The two linears around an attention: fused [q | k | v], and the output projection."""

    def __init__(self, dim: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * head_dim)
        self.proj = nn.Linear(dim, dim)


def norm(x: Tensor, weights: nn.LayerNorm) -> Tensor:
    """Layer norm over the last dimension, without the cost of a module call."""
    return torch.layer_norm(x, weights.normalized_shape, weights.weight, weights.bias, weights.eps)


def linear(x: Tensor, weights: nn.Linear) -> Tensor:
    """Affine map of the last dimension, without the cost of a module call."""
    return F.linear(x, weights.weight, weights.bias)


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form, x / 2 * (1 + tanh(c * (x + 0.044715 * x^3))), c = sqrt(2 / pi).

    That is x * sigmoid(2 * c * (x + 0.044715 * x^3)). torch's tanh takes six times as long as its
    sigmoid on a CPU, so there many values are taken that way, with the same error.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.numel() < MANY or x.requires_grad:
        return F.gelu(x, approximate="tanh")
    slope = math.sqrt(8 / math.pi)
    inner = torch.addcmul(x.new_tensor(slope), x, x, value=0.044715 * slope)
    return inner.mul_(x).sigmoid_().mul_(x)
