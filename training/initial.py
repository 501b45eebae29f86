"""Initial weights that let shapes be learned early.

A patch of a picture is mostly one flat colour. A random linear map passes that on and drowns
the edges that tell a star from a ball, and such a run stays long at naming colours alone. So
the patch embedding starts as the whitened principal components of real patches, positions
start as waves over rows and columns, and attention starts looking nearby.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from photon_ros.models.moondream.vision import VisionBlock, VisionEncoder, patchify

# Share of the mean eigenvalue added to every one: how far faint components are lifted.
_RIDGE = 3e-3
_POSITION_SCALE = 0.5


def waves(side: int, dim: int) -> Tensor:
    """Return (side * side, dim): sines and cosines of the row, then of the column."""
    quarter = dim // 4
    periods = 2.0 * side ** (1 - torch.arange(quarter) / quarter)
    angles = 2 * math.pi * torch.arange(side)[:, None] / periods
    axis = torch.cat((angles.sin(), angles.cos()), dim=1)
    rows = axis[:, None].expand(side, side, -1)
    columns = axis[None].expand(side, side, -1)
    return torch.cat((rows, columns), dim=-1).reshape(side * side, dim)


def initialise_vision(vision: VisionEncoder) -> None:
    """Set positions to waves, and keys to queries so that like attends to like."""
    config = vision.config
    with torch.no_grad():
        vision.pos_emb.copy_(_POSITION_SCALE * waves(config.grid_side, config.enc_dim)[None])
        for block in vision.blocks:
            assert isinstance(block, VisionBlock)
            weight = block.attn.qkv.weight
            weight[config.enc_dim : 2 * config.enc_dim] = weight[: config.enc_dim]


def whiten_patches(patch_emb: nn.Linear, crops: Tensor, patch_px: int) -> None:
    """Set the patch embedding to the whitened principal components of real patches.

    Args:
        patch_emb: linear of a flattened patch.
        crops: (N, crop, crop, 3) uint8, RGB.
        patch_px: side of a patch.
    """
    pixels = crops.permute(0, 3, 1, 2).float().div(127.5).sub(1.0)
    patches = patchify(pixels, patch_px).flatten(0, 1)
    mean = patches.mean(dim=0)
    centred = patches - mean
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    num = patch_emb.out_features
    values, vectors = values[-num:].flip(0), vectors[:, -num:].flip(1)
    scale = (values + _RIDGE * values.mean()).rsqrt()
    with torch.no_grad():
        patch_emb.weight.copy_((vectors * scale).T)
        patch_emb.bias.copy_(-patch_emb.weight @ mean)
