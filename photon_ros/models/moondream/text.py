"""Text decoder: parallel-block transformer with partial rotary positions.

Shape suffixes as in :mod:`photon_ros.engine.interfaces`. Attention belongs to the caller (an
``Attend``), so the same weights run over a paged cache, over a dense mask and in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from photon_ros.engine.interfaces import Adapt, Attend
from photon_ros.models.moondream.config import TextConfig
from photon_ros.models.moondream.layers import NORM_EPS, AttentionWeights, Mlp, gelu, linear, norm


class Rotary(nn.Module):
    """Rotation of the leading half of each head by an angle that grows with the position.

    Pair i is dimensions (i, i + rotary_dim / 2), its angle position * theta^(-2i / rotary_dim).
    The table spans the whole head (angle 0 behind the rotated part), so that a rotation is one
    gather, one product and one fused multiply-add. It stays float32 whatever the weights are:
    cosines of large positions lose too much in half precision.
    """

    table: Tensor  # (max_context, 2, head_dim) float32: cosines, then sines with their sign
    partner: Tensor  # (head_dim,) int64: the dimension that each one is mixed with

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self._config = config
        self.register_buffer("table", torch.empty(0), persistent=False)
        self.register_buffer("partner", torch.empty(0, dtype=torch.int64), persistent=False)
        self.reset(self.table.device)

    def reset(self, device: torch.device) -> None:
        """Compute both tables on ``device``."""
        half, head_dim = self._config.rotary_dim // 2, self._config.head_dim
        exponents = torch.arange(half, dtype=torch.float64, device=device) / half
        frequencies = (self._config.rope_theta**-exponents).float()
        positions = torch.arange(self._config.max_context, dtype=torch.float32, device=device)
        angles = torch.outer(positions, frequencies)
        table = torch.zeros(len(positions), 2, head_dim, device=device)
        table[:, 0] = 1.0
        table[:, 0, : 2 * half] = angles.cos().repeat(1, 2)
        table[:, 1, : 2 * half] = torch.cat((-angles.sin(), angles.sin()), dim=1)
        dims = torch.arange(head_dim, device=device)
        self.table = table
        self.partner = torch.cat((dims[half : 2 * half], dims[:half], dims[2 * half :]))

    def at(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines, each (B, T, 1, head_dim) float32."""
        cos, sin = F.embedding(positions_BT, self.table.flatten(1)).chunk(2, dim=-1)
        return cos.unsqueeze(2), sin.unsqueeze(2)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rotary:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.table.dtype != torch.float32:
            self.reset(self.table.device)
        return self


@dataclass(frozen=True, eq=False, slots=True)
class _FusedWeights:
    """A block's four linears as two: those that read the layer norm, and those that are summed."""

    weight_in: Tensor  # (qkv rows + ff, D)
    bias_in: Tensor
    weight_out: Tensor  # (D, D + ff): applied to [attended | inner]
    bias_out: Tensor


class TextBlock(nn.Module):
    """Attention and MLP side by side on one layer norm."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.num_heads = config.n_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.ln = nn.LayerNorm(config.dim, eps=NORM_EPS)
        self.attn = AttentionWeights(config.dim, config.n_heads, config.num_kv_heads)
        self.mlp = Mlp(config.dim, config.ff_dim, config.dim)
        self._fused: _FusedWeights | None = None

    def forward(
        self,
        x_BTD: Tensor,
        cos: Tensor,
        sin: Tensor,
        partner: Tensor,
        layer: int,
        attend: Attend,
        adapt: Adapt | None = None,
    ) -> Tensor:
        """Return the residual stream after this block, same shape."""
        normed = norm(x_BTD, self.ln)
        if adapt is not None:
            qkv = linear(normed, self.attn.qkv) + adapt(layer, "qkv", normed)
            attended = self._attend(qkv, cos, sin, partner, layer, attend)
            inner = gelu(linear(normed, self.mlp.fc1) + adapt(layer, "fc1", normed))
            x_BTD = x_BTD + linear(attended, self.attn.proj) + adapt(layer, "proj", attended)
            return x_BTD + linear(inner, self.mlp.fc2) + adapt(layer, "fc2", inner)
        if self._fused is None:
            qkv = linear(normed, self.attn.qkv)
            attended = self._attend(qkv, cos, sin, partner, layer, attend)
            residual: Tensor = self.mlp(normed)
            return x_BTD + linear(attended, self.attn.proj) + residual
        both = F.linear(normed, self._fused.weight_in, self._fused.bias_in)
        num_qkv = self.attn.qkv.out_features
        inner = gelu(both[..., num_qkv:])
        attended = self._attend(both[..., :num_qkv], cos, sin, partner, layer, attend)
        joined = torch.cat((attended, inner), dim=-1)
        return x_BTD + F.linear(joined, self._fused.weight_out, self._fused.bias_out)

    def _attend(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, partner: Tensor, layer: int, attend: Attend
    ) -> Tensor:
        """Return (B, T, D): rotate queries and keys, and let the caller attend."""
        heads = qkv.view(*qkv.shape[:2], -1, self.head_dim)
        num_rotated = self.num_heads + self.num_kv_heads
        rotated, v_BTGE = heads[:, :, :num_rotated], heads[:, :, num_rotated:]
        swapped = rotated.index_select(3, partner)
        rotated = torch.addcmul(rotated * cos, swapped, sin).to(qkv.dtype)
        q_BTHE, k_BTGE = rotated[:, :, : self.num_heads], rotated[:, :, self.num_heads :]
        return attend(layer, q_BTHE, k_BTGE, v_BTGE).flatten(2)

    @torch.no_grad()
    def fuse(self) -> None:
        """Run two linears instead of four from now on, for inference.

        The weights become views of the fused ones, so nothing is stored twice. Training or
        moving the block undoes it.
        """
        qkv, proj, fc1, fc2 = self.attn.qkv, self.attn.proj, self.mlp.fc1, self.mlp.fc2
        fused = _FusedWeights(
            weight_in=torch.cat((qkv.weight, fc1.weight)),
            bias_in=torch.cat((qkv.bias, fc1.bias)),
            weight_out=torch.cat((proj.weight, fc2.weight), dim=1),
            bias_out=proj.bias + fc2.bias,
        )
        split = [qkv.out_features, fc1.out_features]
        qkv.weight.data, fc1.weight.data = torch.split(fused.weight_in, split)
        qkv.bias.data, fc1.bias.data = torch.split(fused.bias_in, split)
        split = [proj.in_features, fc2.in_features]
        proj.weight.data, fc2.weight.data = torch.split(fused.weight_out, split, dim=1)
        self._fused = fused

    @torch.no_grad()
    def unfuse(self) -> None:
        """Undo :meth:`fuse`: every weight has its own memory again."""
        if self._fused is not None:
            self._fused = None
            for weight in self.parameters():
                weight.data = weight.data.clone(memory_format=torch.contiguous_format)

    def train(self, mode: bool = True) -> TextBlock:
        """Switch to training, which undoes :meth:`fuse`, or back."""
        if mode:
            self.unfuse()
        super().train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TextBlock:
        self.unfuse()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


class TextDecoder(nn.Module):
    """Token embeddings, blocks and the vocabulary head (not tied to the embeddings)."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Parameter(torch.empty(config.vocab_size, config.dim))
        self.blocks = nn.ModuleList(TextBlock(config) for _ in range(config.n_layers))
        self.post_ln = nn.LayerNorm(config.dim, eps=NORM_EPS)
        self.lm_head = nn.Linear(config.dim, config.vocab_size)
        self.rotary = Rotary(config)
        nn.init.normal_(self.wte, std=0.02)

    def fuse(self) -> None:
        """Make every block cheaper to run; see :meth:`TextBlock.fuse`."""
        for block in self.blocks:
            block.fuse()  # type: ignore[operator]  # ModuleList forgets the type

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings of int64 ``ids`` of any shape, with D appended."""
        return F.embedding(ids, self.wte)

    def decode(
        self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        """Return the residual stream after the last block, before ``post_ln``.

        ``positions_BT`` is int64 and below ``max_context``.
        """
        cos, sin = self.rotary.at(positions_BT)
        partner = self.rotary.partner
        for layer, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, cos, sin, partner, layer, attend, adapt)
        return x_BTD

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (..., vocab) of the residual stream (..., D)."""
        return linear(norm(hidden, self.post_ln), self.lm_head)
