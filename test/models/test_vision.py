from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.moondream.vision import VisionEncoder, patchify, pool, stitch


def test_patches_are_ordered_channel_row_column() -> None:
    crops = torch.arange(2 * 3 * 6 * 6).reshape(2, 3, 6, 6).float()
    patches = patchify(crops, 2)
    assert patches.shape == (2, 9, 12)
    for row in range(3):
        for column in range(3):
            patch = crops[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            torch.testing.assert_close(patches[:, 3 * row + column], patch.reshape(2, 12))


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    side=st.integers(1, 9),
    margin=st.integers(0, 4),
)
def test_stitching_writes_every_cell_exactly_once(
    rows: int, columns: int, side: int, margin: int
) -> None:
    if 2 * margin >= side:
        return
    window = side - 2 * margin
    tiles = torch.arange(rows * columns * side * side).reshape(-1, side, side, 1).double()
    grid = stitch(tiles, (rows, columns), margin)
    wanted = torch.full((rows * window + 2 * margin, columns * window + 2 * margin, 1), -1.0)
    wanted = wanted.double()
    for tile in range(rows * columns):
        i, j = divmod(tile, columns)
        for r in range(side):
            for c in range(side):
                is_margin = (
                    (r < margin and i > 0)
                    or (r >= side - margin and i < rows - 1)
                    or (c < margin and j > 0)
                    or (c >= side - margin and j < columns - 1)
                )
                if not is_margin:
                    y, x = window * i + r, window * j + c
                    assert wanted[y, x] == -1, "written twice"
                    wanted[y, x] = tiles[tile, r, c]
    assert (wanted >= 0).all()
    torch.testing.assert_close(grid, wanted, atol=0, rtol=0)


def slow_pool(grid: Tensor, side: int) -> Tensor:
    height, width, _ = grid.shape
    rows = []
    for i in range(side):
        top, bottom = i * height // side, -(-(i + 1) * height // side)
        for j in range(side):
            left, right = j * width // side, -(-(j + 1) * width // side)
            rows.append(grid[top:bottom, left:right].mean(dim=(0, 1)))
    return torch.stack(rows).reshape(side, side, -1)


@given(height=st.integers(1, 60), width=st.integers(1, 60), side=st.integers(1, 27))
@settings(deadline=None)
def test_pooling_averages_the_cells_under_each_output_cell(
    height: int, width: int, side: int
) -> None:
    grid = torch.rand(height, width, 2, generator=torch.Generator().manual_seed(1)).double()
    pooled = pool(grid, side)
    torch.testing.assert_close(pooled, slow_pool(grid, side))
    adaptive = F.adaptive_avg_pool2d(grid.permute(2, 0, 1), side).permute(1, 2, 0)
    torch.testing.assert_close(pooled, adaptive)


def test_pooling_a_grid_of_the_right_size_changes_nothing() -> None:
    grid = torch.rand(5, 5, 3)
    assert torch.equal(pool(grid, 5), grid)


def slow_block(encoder: VisionEncoder, layer: int, x: Tensor) -> Tensor:
    """One crop (P, E) through one block, head by head."""
    block: Any = encoder.blocks[layer]
    dim, heads = encoder.config.enc_dim, encoder.config.enc_n_heads
    size = dim // heads
    qkv = block.attn.qkv(block.ln1(x))
    q, k, v = qkv[:, :dim], qkv[:, dim : 2 * dim], qkv[:, 2 * dim :]
    attended = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        weights = (q[:, part] @ k[:, part].T / size**0.5).softmax(dim=-1)
        attended.append(weights @ v[:, part])
    x = x + block.attn.proj(torch.cat(attended, dim=1))
    inner = F.gelu(block.mlp.fc1(block.ln2(x)), approximate="tanh")
    out: Tensor = x + block.mlp.fc2(inner)
    return out


def test_encoder_equals_a_slow_one(tiny_model: MoondreamModel) -> None:
    encoder = tiny_model.vision.double()
    crops = torch.randn(3, 3, 20, 20, dtype=torch.float64)
    features = encoder.encode(crops)
    for crop, feature in zip(crops, features, strict=True):
        x = encoder.patch_emb(patchify(crop[None], 4)[0]) + encoder.pos_emb[0]
        for layer in range(len(encoder.blocks)):
            x = slow_block(encoder, layer, x)
        torch.testing.assert_close(feature, encoder.post_ln(x))


def test_the_global_crop_alone_equals_a_tiling_of_one(tiny_model: MoondreamModel) -> None:
    crop = torch.randn(1, 3, 20, 20)
    features = tiny_model.vision.encode(crop)
    alone = tiny_model.vision.join(features, (1, 1))
    twice = tiny_model.vision.join(features.repeat(2, 1, 1), (1, 1))
    assert alone.shape == (25, 48)
    assert torch.equal(alone, twice)


def test_frames_of_one_batch_do_not_see_each_other(tiny_model: MoondreamModel) -> None:
    vision = tiny_model.vision.double()
    num_crops, tilings = [1, 5, 3], [(1, 1), (2, 2), (1, 2)]
    crops = torch.randn(sum(num_crops), 3, 20, 20, dtype=torch.float64)
    together = vision(crops, num_crops, tilings)
    assert together.shape == (3, 25, 32)
    start = 0
    for embeds, count, tiling in zip(together, num_crops, tilings, strict=True):
        alone = vision(crops[start : start + count], [count], [tiling])[0]
        torch.testing.assert_close(embeds, alone)
        start += count


def test_global_and_local_features_stand_side_by_side(tiny_model: MoondreamModel) -> None:
    features = tiny_model.vision.encode(torch.randn(3, 3, 20, 20))
    joined = tiny_model.vision.join(features, (1, 2))
    assert torch.equal(joined[:, :24], features[0])
    grid = stitch(features[1:].reshape(2, 5, 5, 24), (1, 2), 1)
    assert grid.shape == (5, 8, 24)
    torch.testing.assert_close(joined[:, 24:], slow_pool(grid, 5).reshape(25, 24))
