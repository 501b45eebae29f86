"""Vision encoder: crops become one grid of image embeddings.

Shape suffixes: N crops, C channels, P patches of a crop, E encoder width, D text width,
G patches along a side (P = G * G).

Each crop passes a pre-norm transformer on its own. The local crops' features are laid next to
each other (:func:`stitch`), averaged down to the grid of one crop (:func:`pool`), joined with
the features of the global crop and projected to the text width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from photon_ros.models.moondream.config import VisionConfig
from photon_ros.models.moondream.layers import NORM_EPS, AttentionWeights, Mlp, linear, norm


class VisionBlock(nn.Module):
    """One sequential pre-norm block with full attention."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.num_heads = config.enc_n_heads
        self.ln1 = nn.LayerNorm(config.enc_dim, eps=NORM_EPS)
        self.attn = AttentionWeights(config.enc_dim, config.enc_n_heads, config.enc_n_heads)
        self.ln2 = nn.LayerNorm(config.enc_dim, eps=NORM_EPS)
        self.mlp = Mlp(config.enc_dim, config.enc_ff_dim, config.enc_dim)

    def forward(self, x_NPE: Tensor) -> Tensor:
        """Return the residual stream after this block, same shape."""
        num_crops, num_patches, dim = x_NPE.shape
        qkv = linear(norm(x_NPE, self.ln1), self.attn.qkv)
        qkv = qkv.view(num_crops, num_patches, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x_NPE = x_NPE + linear(attended.reshape(num_crops, num_patches, dim), self.attn.proj)
        residual: Tensor = self.mlp(norm(x_NPE, self.ln2))
        return x_NPE + residual


class VisionEncoder(nn.Module):
    """Patch embedding, transformer, stitching, pooling and projection."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_emb = nn.Linear(config.patch_dim, config.enc_dim)
        self.pos_emb = nn.Parameter(torch.empty(1, config.num_patches, config.enc_dim))
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.enc_n_layers))
        self.post_ln = nn.LayerNorm(config.enc_dim, eps=NORM_EPS)
        self.proj_mlp = Mlp(2 * config.enc_dim, config.proj_inner_dim, config.proj_out_dim)
        nn.init.normal_(self.pos_emb, std=0.02)

    def encode(self, crops_NCHW: Tensor) -> Tensor:
        """Return features (N, P, E) of normalised crops (N, 3, crop, crop)."""
        x_NPE = linear(patchify(crops_NCHW, self.config.enc_patch_size), self.patch_emb)
        x_NPE = x_NPE + self.pos_emb
        for block in self.blocks:
            x_NPE = block(x_NPE)
        return norm(x_NPE, self.post_ln)

    def join(self, features_NPE: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Return (P, 2E): one frame's global features beside its pooled local ones.

        ``features_NPE`` holds the global crop, then rows * columns local crops; a frame with
        the global crop alone uses its features for both.
        """
        global_PE = features_NPE[0]
        if features_NPE.shape[0] == 1:
            return torch.cat((global_PE, global_PE), dim=-1)
        side = self.config.grid_side
        tiles = features_NPE[1:].view(-1, side, side, features_NPE.shape[-1])
        pooled = pool(stitch(tiles, tiling, self.config.overlap_margin), side)
        return torch.cat((global_PE, pooled.flatten(0, 1)), dim=-1)

    def project(self, joined: Tensor) -> Tensor:
        """Return image embeddings (..., P, D) of joined features (..., P, 2E)."""
        embeds: Tensor = self.proj_mlp(joined)
        return embeds

    def forward(
        self, crops_NCHW: Tensor, num_crops: Sequence[int], tilings: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Return (frames, P, D); all crops of all frames are encoded as one batch.

        Args:
            crops_NCHW: the frames' normalised crops, frame after frame.
            num_crops: crops of each frame, the global one included.
            tilings: (rows, columns) of each frame's local crops.
        """
        features = torch.split(self.encode(crops_NCHW), list(num_crops))
        joined = [self.join(part, tiling) for part, tiling in zip(features, tilings, strict=True)]
        return self.project(torch.stack(joined))


def patchify(crops_NCHW: Tensor, patch_px: int) -> Tensor:
    """Return (N, P, C * patch * patch): patches row by row, each channel, row, column."""
    num_crops, channels, height, width = crops_NCHW.shape
    rows, columns = height // patch_px, width // patch_px
    split = crops_NCHW.reshape(num_crops, channels, rows, patch_px, columns, patch_px)
    return split.permute(0, 2, 4, 1, 3, 5).reshape(num_crops, rows * columns, -1)


def stitch(tiles: Tensor, tiling: tuple[int, int], margin: int) -> Tensor:
    """Lay the features of overlapping local crops next to each other.

    A tile keeps its ``margin`` outermost rows and columns only where the picture ends, as its
    neighbour has seen more around the others; so every cell is written exactly once.

    Args:
        tiles: (rows * columns, G, G, E), row by row.
        tiling: (rows, columns).
        margin: overlap on each side, in cells.

    Returns:
        (rows * (G - 2 * margin) + 2 * margin, likewise for columns, E).
    """
    rows, columns = tiling
    side = tiles.shape[1]
    tiles = tiles.view(rows, columns, *tiles.shape[1:])
    bands = torch.cat(
        [tiles[:, j, :, slice(*_kept(j, columns, side, margin))] for j in range(columns)], dim=2
    )
    return torch.cat([bands[i, slice(*_kept(i, rows, side, margin))] for i in range(rows)], dim=0)


def _kept(index: int, count: int, side: int, margin: int) -> tuple[int, int]:
    """Return the [start, stop) of the cells that tile ``index`` of ``count`` keeps."""
    return (0 if index == 0 else margin), (side if index == count - 1 else side - margin)


def pool(grid: Tensor, side: int) -> Tensor:
    """Average (height, width, E) down to (side, side, E).

    Output cell k averages inputs floor(k * n / side) up to ceil((k + 1) * n / side) of an axis.
    """
    if grid.shape[0] == side and grid.shape[1] == side:
        return grid
    return F.adaptive_avg_pool2d(grid.permute(2, 0, 1), (side, side)).permute(1, 2, 0)
