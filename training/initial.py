"""Initial weights that let shapes be learned early.

A patch of a picture is mostly one flat colour. A random linear map passes that on and drowns
the edges that tell a star from a ball, and attention with random weights looks everywhere: such
a run stays long at naming colours alone. So this is where the vision encoder starts from:

- the patch embedding is the whitened principal components of real patches, in the first
  channels;
- the last channels hold waves over the rows and columns of the grid, which say where a patch
  is;
- the heads of the first blocks read those channels so that each looks at one neighbour, as a
  convolution does.

All of it is only a start; everything is trained from there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from photon_ros.models.moondream.config import VisionConfig
from photon_ros.models.moondream.text import TextBlock, TextDecoder
from photon_ros.models.moondream.vision import VisionBlock, VisionEncoder, patchify
from photon_ros.models.nano import vocabulary

# Share of the mean eigenvalue added to every one: how far faint components are lifted.
_RIDGE = 3e-3
# Where the heads of the first blocks look at first: (rows down, columns right).
NEIGHBOURS = (
    ((0, -1), (0, 1), (-1, 0), (1, 0)),
    ((-1, -1), (-1, 1), (1, -1), (1, 1)),
)
# Gain of those queries and keys: most of the attention falls on the neighbour.
_SHARPNESS = 2.0


def num_waves(config: VisionConfig) -> int:
    """Waves of each axis: sine and cosine of both axes fill the width of one head."""
    return config.enc_dim // config.enc_n_heads // 4


def waves(side: int, num: int) -> Tensor:
    """Return (side * side, 4 * num): sines and cosines of the row, then of the column.

    Wave k has a period of 2 * side / (k + 1) patches; together they peak at one offset.
    """
    angles = _frequencies(side, num) * torch.arange(side)[:, None]
    axis = torch.cat((angles.sin(), angles.cos()), dim=1)
    rows = axis[:, None].expand(side, side, -1)
    columns = axis[None].expand(side, side, -1)
    return torch.cat((rows, columns), dim=-1).reshape(side * side, -1)


def _frequencies(side: int, num: int) -> Tensor:
    return math.pi * torch.arange(1, num + 1) / side


def _shift(side: int, num: int, offset: tuple[int, int]) -> Tensor:
    """Return (4 * num, 4 * num): maps the waves of a place to those of place + offset."""
    blocks = []
    for steps in offset:
        angle = _frequencies(side, num) * steps
        sin, cos = torch.diag(angle.sin()), torch.diag(angle.cos())
        blocks.append(torch.cat((torch.cat((cos, sin), 1), torch.cat((-sin, cos), 1))))
    rows, columns = blocks
    nothing = torch.zeros_like(rows)
    return torch.cat((torch.cat((rows, nothing), 1), torch.cat((nothing, columns), 1)))


def initialise_vision(vision: VisionEncoder) -> None:
    """Set positions to waves and the first blocks to look at neighbours."""
    config = vision.config
    side, num = config.grid_side, num_waves(config)
    width = 4 * num
    with torch.no_grad():
        vision.pos_emb.zero_()
        vision.pos_emb[0, :, -width:] = waves(side, num)
        for block, offsets in zip(vision.blocks, NEIGHBOURS, strict=False):
            assert isinstance(block, VisionBlock)
            query, key, _ = torch.split(block.attn.qkv.weight, config.enc_dim)
            for head, offset in enumerate(offsets[: config.enc_n_heads]):
                rows = slice(head * width, (head + 1) * width)
                query[rows] = 0
                key[rows] = 0
                query[rows, -width:] = _SHARPNESS * _shift(side, num, offset)
                key[rows, -width:] = _SHARPNESS * torch.eye(width)
            # What the neighbours show must arrive loud enough to be of use.
            nn.init.normal_(block.attn.proj.weight, std=config.enc_dim**-0.5)


def whiten_patches(vision: VisionEncoder, crops: Tensor) -> None:
    """Set the patch embedding to the whitened principal components of real patches.

    Args:
        vision: the encoder; the channels that hold the waves stay free of the picture.
        crops: (N, crop, crop, 3) uint8, RGB.
    """
    config = vision.config
    pixels = crops.permute(0, 3, 1, 2).float().div(127.5).sub(1.0)
    patches = patchify(pixels, config.enc_patch_size).flatten(0, 1)
    mean = patches.mean(dim=0)
    centred = patches - mean
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    num = config.enc_dim - 4 * num_waves(config)
    values, vectors = values[-num:].flip(0), vectors[:, -num:].flip(1)
    scale = (values + _RIDGE * values.mean()).rsqrt()
    with torch.no_grad():
        vision.patch_emb.weight.zero_()
        vision.patch_emb.bias.zero_()
        vision.patch_emb.weight[:num] = (vectors * scale).T
        vision.patch_emb.bias[:num] = -vision.patch_emb.weight[:num] @ mean


def align_words(text: TextDecoder, kinds_KD: Tensor, colours_CD: Tensor) -> None:
    """Let each word start as what its sight looks like, and attention as likeness.

    When the text decoder joins, the vision encoder already tells classes and colours apart.
    A word that points the way its patches do need not be learned from nothing.

    Args:
        text: the decoder, not trained yet.
        kinds_KD, colours_CD: directions of classes and colours among the image embeddings.
    """
    ids = vocabulary.word_ids()
    words = (*vocabulary.CLASSES, *vocabulary.COLOURS)
    directions = torch.cat((kinds_KD - kinds_KD.mean(0), colours_CD - colours_CD.mean(0)))
    with torch.no_grad():
        loudness = text.wte.norm(dim=1).mean()
        for word, direction in zip(words, directions, strict=True):
            text.wte[ids[word]] = loudness * direction / direction.norm().clamp(min=1e-6)
        for block in text.blocks:
            assert isinstance(block, TextBlock)
            rows = block.num_heads * block.head_dim
            block.attn.qkv.weight[rows : 2 * rows] = block.attn.qkv.weight[:rows]
