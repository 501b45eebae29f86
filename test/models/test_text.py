from __future__ import annotations

import cmath
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from photon_ros.engine.interfaces import Attend
from photon_ros.models.moondream.config import MoondreamConfig, TextConfig
from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.moondream.text import Rotary, TextDecoder

MakeCache = Callable[[int], Attend]


def text_config(**changes: Any) -> TextConfig:
    values: dict[str, Any] = {
        "dim": 32,
        "ff_dim": 48,
        "n_layers": 3,
        "vocab_size": 40,
        "max_context": 50,
        "n_heads": 4,
    }
    return TextConfig(**{**values, **changes})


def make_decoder(**changes: Any) -> TextDecoder:
    torch.manual_seed(3)
    return TextDecoder(text_config(**changes)).double()


def slow_rotation(head: Tensor, position: int, theta: float) -> Tensor:
    """Turn pairs (i, i + half) of the leading half of a head as complex numbers."""
    head = head.detach()
    turned = head.clone()
    rotary_dim = len(head) // 2
    half = rotary_dim // 2
    for i in range(half):
        angle = position * theta ** (-2 * i / rotary_dim)
        value = complex(head[i], head[i + half]) * cmath.exp(1j * angle)
        turned[i], turned[i + half] = value.real, value.imag
    return turned


def rotate(rotary: Rotary, heads: Tensor, positions: Tensor) -> Tensor:
    cos, sin = rotary.at(positions)
    return heads * cos + heads[..., rotary.partner] * sin


@pytest.mark.parametrize(("dim", "theta"), [(32, 10000.0), (64, 10000.0), (128, 1.5e6)])
def test_rotation_turns_split_halves_and_leaves_the_rest(dim: int, theta: float) -> None:
    rotary = Rotary(text_config(dim=dim, rope_theta=theta))
    heads = torch.randn(2, 3, 5, dim // 4)
    positions = torch.tensor([[0, 1, 49], [7, 7, 20]])
    turned = rotate(rotary, heads, positions)
    for b in range(2):
        for t in range(3):
            for h in range(5):
                wanted = slow_rotation(heads[b, t, h], int(positions[b, t]), theta)
                torch.testing.assert_close(turned[b, t, h], wanted)


def test_scores_depend_on_the_distance_only() -> None:
    rotary = Rotary(text_config())
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    scores = [
        (rotate(rotary, q, torch.tensor([[a]])) * rotate(rotary, k, torch.tensor([[b]]))).sum()
        for a, b in ((5, 2), (30, 27), (49, 46))
    ]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores[0], scores[2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rotation_stays_in_single_precision_whatever_the_weights_are(dtype: torch.dtype) -> None:
    decoder = TextDecoder(text_config()).to(dtype)
    assert decoder.wte.dtype == dtype
    assert decoder.rotary.table.dtype == torch.float32
    fresh = TextDecoder(text_config())
    assert torch.equal(decoder.rotary.table, fresh.rotary.table)


def test_rotary_tables_are_not_weights() -> None:
    assert not [name for name in make_decoder().state_dict() if "rotary" in name]


def slow_decode(decoder: TextDecoder, x: Tensor, prefix_len: int) -> Tensor:
    """One sequence (T, D), head by head and position by position."""
    config = decoder.config
    size, num_heads, num_kv = config.head_dim, config.n_heads, config.num_kv_heads
    blocks: Any = decoder.blocks
    for block in blocks:
        h = F.layer_norm(x, (config.dim,), block.ln.weight, block.ln.bias, 1e-5)
        qkv = block.attn.qkv(h).reshape(len(x), num_heads + 2 * num_kv, size)
        attended = torch.zeros(len(x), num_heads, size, dtype=x.dtype)
        for head in range(num_heads):
            group = head * num_kv // num_heads
            for t in range(len(x)):
                last = prefix_len if t < prefix_len else t + 1
                q = slow_rotation(qkv[t, head], t, config.rope_theta)
                keys = [
                    slow_rotation(qkv[s, num_heads + group], s, config.rope_theta)
                    for s in range(last)
                ]
                weights = torch.stack([q @ key / size**0.5 for key in keys]).softmax(0)
                values = qkv[:last, num_heads + num_kv + group]
                attended[t, head] = weights @ values
        inner = F.gelu(block.mlp.fc1(h), approximate="tanh")
        x = x + block.attn.proj(attended.reshape(len(x), -1)) + block.mlp.fc2(inner)
    return x


@pytest.mark.parametrize("num_kv_heads", [None, 2, 1])
def test_decoder_equals_a_slow_one(num_kv_heads: int | None, dense_cache: MakeCache) -> None:
    decoder = make_decoder(n_kv_heads=num_kv_heads)
    x = torch.randn(9, 32, dtype=torch.float64)
    hidden = decoder.decode(x[None], torch.arange(9)[None], dense_cache(4))[0]
    # The rotation itself is in float32.
    torch.testing.assert_close(hidden, slow_decode(decoder, x, 4), atol=1e-6, rtol=1e-6)


def test_steps_after_a_prefill_equal_one_long_prefill(dense_cache: MakeCache) -> None:
    decoder = make_decoder()
    x = torch.randn(1, 12, 32, dtype=torch.float64)
    positions = torch.arange(12)[None]
    whole = decoder.decode(x, positions, dense_cache(5))
    cache = dense_cache(5)
    parts = [decoder.decode(x[:, :7], positions[:, :7], cache)]
    parts += [decoder.decode(x[:, t, None], positions[:, t, None], cache) for t in range(7, 12)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_attention_gets_heads_as_views_of_the_promised_shapes() -> None:
    decoder = make_decoder(n_kv_heads=2)
    seen = []

    def attend(layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        seen.append((layer, q_BTHE.shape, k_BTGE.shape, v_BTGE.shape, q_BTHE.dtype))
        return torch.zeros_like(q_BTHE)

    decoder.decode(torch.randn(3, 2, 32, dtype=torch.float64), torch.zeros(3, 2).long(), attend)
    assert [entry[0] for entry in seen] == [0, 1, 2]
    assert seen[0][1:] == ((3, 2, 4, 8), (3, 2, 2, 8), (3, 2, 2, 8), torch.float64)


def test_logits_are_the_head_of_the_normed_hidden_state() -> None:
    decoder = make_decoder()
    hidden = torch.randn(5, 32, dtype=torch.float64)
    wanted = decoder.lm_head(decoder.post_ln(hidden))
    torch.testing.assert_close(decoder.logits(hidden), wanted)


def test_every_weight_learns(tiny: dict[str, Any], dense_cache: MakeCache) -> None:
    torch.manual_seed(1)
    model = MoondreamModel(MoondreamConfig.from_dict(tiny))
    crops = torch.randint(0, 256, (3, 20, 20, 3), dtype=torch.uint8)
    prefix = model.encode_frames([crops], [(1, 2)])
    bins = torch.tensor([3, 9])
    x = torch.cat(
        (
            prefix[0],
            model.embed_tokens(torch.tensor([1, 8, 50, 3])),
            model.embed_coords(bins),
            model.embed_sizes(torch.stack((bins, bins.flip(0)), dim=-1)),
        )
    )
    positions = torch.arange(len(x))
    hidden = model.decode(x[None], positions[None], dense_cache(len(prefix[0])))[0]
    loss = (
        model.vocab_logits(hidden).square().mean()
        + model.coord_logits(hidden).square().mean()
        + model.size_logits(hidden).square().mean()
    )
    loss.backward()  # type: ignore[no-untyped-call]
    still = [
        name
        for name, weight in model.named_parameters()
        if weight.grad is None or not weight.grad.abs().sum() > 0
    ]
    assert still == []


@pytest.mark.parametrize("num_kv_heads", [None, 2])
def test_fused_blocks_equal_plain_ones(num_kv_heads: int | None, dense_cache: MakeCache) -> None:
    decoder = make_decoder(n_kv_heads=num_kv_heads).requires_grad_(False)
    weights = {name: weight.clone() for name, weight in decoder.state_dict().items()}
    x, positions = torch.randn(1, 9, 32, dtype=torch.float64), torch.arange(9)[None]
    plain = decoder.decode(x, positions, dense_cache(4))
    decoder.fuse()
    torch.testing.assert_close(decoder.decode(x, positions, dense_cache(4)), plain)
    assert decoder.state_dict().keys() == weights.keys()
    for name, weight in decoder.state_dict().items():
        assert torch.equal(weight, weights[name]), name


def test_fused_weights_are_not_stored_twice() -> None:
    decoder = make_decoder().requires_grad_(False)

    def num_stored() -> int:
        storages = {w.untyped_storage().data_ptr(): w.untyped_storage().nbytes()
                    for w in decoder.parameters()}  # fmt: skip
        return sum(storages.values()) // 8

    before = num_stored()
    decoder.fuse()
    assert num_stored() == before
    blocks: Any = decoder.blocks
    for block in blocks:
        fused = block._fused
        assert fused.weight_in.data_ptr() == block.attn.qkv.weight.data_ptr()
        assert fused.weight_out.data_ptr() == block.attn.proj.weight.data_ptr()


def test_training_after_fusing_uses_the_weights_that_it_changes(dense_cache: MakeCache) -> None:
    decoder = make_decoder()
    decoder.fuse()
    decoder.train()
    assert all(weight.is_contiguous() for weight in decoder.parameters())
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.1)
    x, positions = torch.randn(1, 5, 32, dtype=torch.float64), torch.arange(5)[None]
    before = decoder.decode(x, positions, dense_cache(2))
    before.square().sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    trained = decoder.decode(x, positions, dense_cache(2)).detach()
    assert not torch.allclose(trained, before)
    decoder.fuse()
    torch.testing.assert_close(decoder.decode(x, positions, dense_cache(2)), trained)


def test_moving_a_fused_decoder_moves_what_it_runs_on(dense_cache: MakeCache) -> None:
    decoder = make_decoder().requires_grad_(False)
    decoder.fuse()
    x, positions = torch.randn(1, 5, 32, dtype=torch.float64), torch.arange(5)[None]
    exact = decoder.decode(x, positions, dense_cache(2))
    rough = decoder.to(torch.bfloat16).decode(x.bfloat16(), positions, dense_cache(2))
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.double(), exact, atol=0.05, rtol=0.05)
