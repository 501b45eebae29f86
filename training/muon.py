"""Muon for the block matrices, AdamW for everything else.

Muon: momentum, then the nearest orthogonal matrix by a quintic Newton-Schulz iteration
(Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"). Matrices of one
shape are iterated as one batch: on a CPU many small products cost more in calls than in
arithmetic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalised(batch: Tensor, num_steps: int = 5) -> Tensor:
    """Return matrices (N, rows, columns) with all singular values pulled near 1."""
    first, second, third = _COEFFICIENTS
    x: Tensor
    tall = batch.shape[1] > batch.shape[2]
    x = batch.transpose(1, 2) if tall else batch
    x = (x.float() / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-12)).to(batch.dtype)
    for _ in range(num_steps):
        gram = x @ x.transpose(1, 2)
        x = first * x + (second * gram + third * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates for matrices.

    A fused [q | k | v] matrix is three square ones: rows are cut into squares where a matrix
    is tall by a whole factor and ``split`` names it.

    Args:
        params: matrices, or groups of them.
        lr: step size; an update has a spectral norm of ``lr * sqrt(max(1, rows / columns))``.
        momentum: of the Nesterov kind.
        weight_decay: decoupled, times ``lr``.
        dtype: what the iteration computes in; it needs little precision.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.02,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for param in group["params"]:
                if param.grad is not None:
                    by_shape[tuple(param.shape)].append(param)
            for (rows, columns), params in by_shape.items():
                updates = [self._nesterov(param, group["momentum"]) for param in params]
                batch = torch.stack(updates)
                is_fused = rows == 3 * columns
                if is_fused:
                    batch = batch.view(-1, columns, columns)
                moves = orthogonalised(batch.to(self._dtype)).float()
                moves = moves.reshape(len(params), rows, columns)
                scale = 1.0 if is_fused else max(1.0, rows / columns) ** 0.5
                for param, move in zip(params, moves, strict=True):
                    param.mul_(1 - group["lr"] * group["weight_decay"])
                    param.add_(move, alpha=-group["lr"] * scale)

    def _nesterov(self, param: nn.Parameter, momentum: float) -> Tensor:
        assert param.grad is not None
        state = self.state[param]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(param)
        velocity: Tensor = state["velocity"]
        velocity.lerp_(param.grad, 1 - momentum)
        return param.grad.lerp(velocity, momentum)
