from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from photon_ros.engine.interfaces import Attend, Model
from photon_ros.models.moondream.builtin import builtin_config
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.model import MoondreamModel

MakeCache = Callable[[int], Attend]


def random_crops(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 20, 20, 3), dtype=torch.uint8)


def test_it_is_what_the_engine_calls(tiny_model: MoondreamModel) -> None:
    model: Model = tiny_model  # checked by mypy
    spec = model.spec
    assert (spec.vocab_size, spec.dim, spec.num_layers) == (300, 32, 2)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 4, 8)
    assert (spec.max_context, spec.prefix_len) == (64, 26)
    assert (spec.bos_id, spec.eos_id, spec.coord_id, spec.size_id) == (2, 0, 7, 4)
    assert (spec.num_coord_bins, spec.num_size_bins) == (16, 11)
    assert (spec.crop_size_px, spec.max_crops, spec.dtype) == (20, 5, torch.float32)


@pytest.mark.parametrize(
    ("name", "num_weights"), [("moondream2", 1_927_237_104), ("moondream-0.5b", 631_889_382)]
)
def test_released_sizes_have_the_published_number_of_weights(name: str, num_weights: int) -> None:
    with torch.device("meta"):
        model = MoondreamModel(builtin_config(name))
    assert sum(weight.numel() for weight in model.state_dict().values()) == num_weights
    assert sum(weight.numel() for weight in model.parameters()) == num_weights


def test_prefix_is_bos_and_then_the_image(tiny_model: MoondreamModel) -> None:
    crops = random_crops(3)
    prefix = tiny_model.encode_frames([crops], [(1, 2)])
    assert prefix.shape == (1, 26, 32)
    assert torch.equal(prefix[0, 0], tiny_model.text.wte[2])
    pixels = crops.permute(0, 3, 1, 2).double()
    normalised = (((pixels / 255) - 0.5) / 0.5).float()
    embeds = tiny_model.vision(normalised, [3], [(1, 2)])
    torch.testing.assert_close(prefix[0, 1:], embeds[0])


def test_frames_with_different_numbers_of_crops_share_a_batch(tiny_model: MoondreamModel) -> None:
    crops = [random_crops(1), random_crops(5), random_crops(3)]
    tilings = [(1, 1), (2, 2), (2, 1)]
    together = tiny_model.encode_frames(crops, tilings)
    assert together.shape == (3, 26, 32)
    for embeds, part, tiling in zip(together, crops, tilings, strict=True):
        alone = tiny_model.encode_frames([part], [tiling])[0]
        torch.testing.assert_close(embeds, alone, atol=1e-5, rtol=1e-5)


def test_encoding_leaves_the_crops_as_they_are(tiny_model: MoondreamModel) -> None:
    crops = random_crops(1)
    before = crops.clone()
    tiny_model.encode_frames([crops], [(1, 1)])
    assert torch.equal(crops, before)


def test_a_tiling_that_does_not_fit_the_crops_fails(tiny_model: MoondreamModel) -> None:
    with pytest.raises(RuntimeError):
        tiny_model.encode_frames([random_crops(4)], [(2, 2)])


@pytest.mark.parametrize("frozen", [False, True])
def test_token_logits_are_columns_of_all_logits(tiny_model: MoondreamModel, frozen: bool) -> None:
    if frozen:
        tiny_model.freeze()
    hidden = torch.randn(6, 32)
    every = tiny_model.vocab_logits(hidden)
    for _ in range(2):  # the second time from what was kept
        for ids in ((0, 7), (7, 0), (4,), (0, 4, 7, 299)):
            found = tiny_model.token_logits(hidden, ids)
            torch.testing.assert_close(found, every[:, list(ids)])


def test_bins_are_embedded_by_their_values(tiny_model: MoondreamModel) -> None:
    bins = torch.tensor([0, 5, 15])
    coords = tiny_model.region.embed_coords(bins[:, None] / 16)
    pairs = torch.tensor([[0, 10], [3, 7]])
    sizes = tiny_model.region.embed_sizes(2.0 ** (10 * pairs / 10 - 10))
    for model in (tiny_model, tiny_model.freeze()):
        torch.testing.assert_close(model.embed_coords(bins), coords)
        torch.testing.assert_close(model.embed_sizes(pairs), sizes)


def test_values_are_rounded_to_the_type_of_the_weights(tiny: dict[str, Any]) -> None:
    tiny["region"]["size_out_dim"] = 2048
    model = MoondreamModel(MoondreamConfig.from_dict(tiny)).to(torch.bfloat16)
    value = torch.tensor(2.0 ** (10 * 700 / 1023 - 10)).to(torch.bfloat16)
    assert model.size_values[700] == value
    assert model.size_values.dtype == model.coord_values.dtype == torch.bfloat16
    embeds = model.embed_sizes(torch.tensor([[700, 700]]))
    assert torch.equal(embeds, model.region.embed_sizes(value.repeat(1, 2)))


def test_freezing_ends_training_and_training_ends_freezing(tiny_model: MoondreamModel) -> None:
    tiny_model.freeze()
    assert not tiny_model.training
    assert not any(weight.requires_grad for weight in tiny_model.parameters())
    hidden, bins = torch.randn(2, 32), torch.tensor([1])
    stale = tiny_model.token_logits(hidden, (3,)), tiny_model.embed_coords(bins)
    tiny_model.train()
    with torch.no_grad():
        tiny_model.text.lm_head.weight += 1
        tiny_model.region.coord_encoder.weight += 1
    fresh = tiny_model.token_logits(hidden, (3,)), tiny_model.embed_coords(bins)
    torch.testing.assert_close(fresh[0], tiny_model.vocab_logits(hidden)[:, [3]])
    assert not torch.allclose(fresh[1], stale[1])
    tiny_model.freeze()
    torch.testing.assert_close(tiny_model.embed_coords(bins), fresh[1])
    torch.testing.assert_close(tiny_model.token_logits(hidden, (3,)), fresh[0])


def test_a_frozen_model_can_be_moved(tiny_model: MoondreamModel) -> None:
    tiny_model.to(torch.bfloat16).freeze()
    moved = tiny_model.to(torch.float32)
    # Computed anew: the exact values are not those that bfloat16 left of them.
    fresh = MoondreamModel(tiny_model.config)
    assert torch.equal(moved.size_values, fresh.size_values)
    hidden, bins = torch.randn(2, 32), torch.tensor([3])
    torch.testing.assert_close(
        moved.token_logits(hidden, (0, 7)), moved.vocab_logits(hidden)[:, [0, 7]]
    )
    embeds = moved.embed_coords(bins)
    assert embeds.dtype == torch.float32
    torch.testing.assert_close(moved.freeze().embed_coords(bins), embeds)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_end_to_end(
    tiny_model: MoondreamModel, dtype: torch.dtype, dense_cache: MakeCache
) -> None:
    crops = random_crops(3)
    positions = torch.arange(26)[None]

    def hidden_of(model: MoondreamModel) -> torch.Tensor:
        prefix = model.encode_frames([crops], [(1, 2)])
        return model.decode(prefix, positions, dense_cache(26))[0]

    exact = hidden_of(tiny_model)
    rough = hidden_of(tiny_model.to(dtype).freeze())
    assert rough.dtype == tiny_model.spec.dtype == dtype
    torch.testing.assert_close(rough.float(), exact, atol=0.05, rtol=0.05)
    heads = (tiny_model.coord_logits(rough), tiny_model.size_logits(rough))
    assert all(logits.dtype == dtype and logits.isfinite().all() for logits in heads)


def test_inference_mode_does_not_spoil_later_training(tiny_model: MoondreamModel) -> None:
    with torch.inference_mode():
        tiny_model.freeze()
        tiny_model.token_logits(torch.randn(1, 32), (0, 7))
        tiny_model.embed_coords(torch.tensor([2]))
    tiny_model.train().requires_grad_(True)
    loss = tiny_model.token_logits(torch.randn(1, 32), (0, 7)).sum()
    loss = loss + tiny_model.embed_coords(torch.tensor([2])).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert math.isfinite(float(loss.detach()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_decoding_and_heads_never_wait_for_the_device(tiny_model: MoondreamModel) -> None:
    model = tiny_model.to("cuda")
    model.freeze()
    x = torch.randn(3, 1, 32, device="cuda")
    positions = torch.full((3, 1), 30, device="cuda")
    bins = torch.tensor([1, 2, 3], device="cuda")

    def step() -> None:
        hidden = model.decode(x, positions, lambda layer, q, k, v: v)[:, 0]
        model.token_logits(hidden, (0, 7))
        model.vocab_logits(hidden)
        model.coord_logits(hidden)
        model.size_logits(hidden)
        model.embed_tokens(bins)
        model.embed_coords(bins)
        model.embed_sizes(torch.stack((bins, bins), dim=-1))

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
