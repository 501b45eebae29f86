"""Initial weights and the taught head: where the vision encoder starts from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from photon_ros.models.moondream.layers import linear, norm
from photon_ros.models.moondream.vision import patchify
from photon_ros.models.nano import vocabulary
from training.architecture import CONFIG
from training.cutting import Sample
from training.grouping import GROUPING_HEAD, GROUPING_LAYER, MIN_CELLS, Grouping
from training.initial import NEIGHBOURS, align_words, num_waves, waves, whiten_patches
from training.network import Network
from training.pool import Mix, Renderer

PATCH_PX = CONFIG.vision.enc_patch_size
WAVE_CHANNELS = 4 * num_waves(CONFIG.vision)


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    renderer = Renderer(31, Mix(1, 0, 0, 0), None)
    return [s for s in map(renderer.sample, range(30)) if len(s.kinds) >= 2][:6]


def pixels_of(samples: list[Sample]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([s.crops() for s in samples]))


def patch_features(network: Network, crops: torch.Tensor) -> torch.Tensor:
    pixels = crops.permute(0, 3, 1, 2).float().div(127.5).sub(1.0)
    with torch.no_grad():
        features: torch.Tensor = network.vision.patch_emb(patchify(pixels, PATCH_PX))
    return features


def test_whitened_patches_are_uncorrelated_and_no_louder_than_one(samples: list[Sample]) -> None:
    network = Network(CONFIG)
    crops = pixels_of(samples)
    whiten_patches(network.vision, crops)
    features = patch_features(network, crops).flatten(0, 1)
    num = 128 - WAVE_CHANNELS
    assert not features[:, num:].any(), "the channels of the waves are free of the picture"
    covariance = torch.cov(features[:, :num].T)
    spread = covariance.diagonal()
    assert features.mean(0).abs().max() < 0.01
    assert float(spread.max()) < 1.05
    assert float(spread[:10].min()) > 0.7, "the strongest components are brought to one"
    off = covariance - torch.diag(spread)
    assert float(off.abs().max()) < 0.02


def test_whitening_lifts_detail_over_flat_colour(samples: list[Sample]) -> None:
    torch.manual_seed(0)
    plain, white = Network(CONFIG), Network(CONFIG)
    crops = pixels_of(samples)
    whiten_patches(white.vision, crops)
    side = crops.shape[1] // PATCH_PX
    blocks = crops.view(-1, side, PATCH_PX, side, PATCH_PX, 3).float()
    flat = blocks.mean((2, 4), keepdim=True).expand_as(blocks).reshape(crops.shape)

    def detail(network: Network) -> float:
        whole, colour = patch_features(network, crops), patch_features(network, flat)
        return float((whole - colour).square().mean() / whole.var())

    assert detail(white) > 3 * detail(plain)


def test_waves_peak_at_one_place() -> None:
    table = waves(12, 8)
    assert table.shape == (144, WAVE_CHANNELS)
    alike = table @ table.T
    assert torch.allclose(alike.diagonal(), torch.full((144,), 16.0), atol=1e-4)
    others = alike - torch.diag(alike.diagonal())
    assert float(others.max()) < 12


@pytest.mark.parametrize("layer", [0, 1])
def test_the_first_heads_start_by_looking_at_one_neighbour(
    samples: list[Sample], layer: int
) -> None:
    torch.manual_seed(0)
    network = Network(CONFIG)
    crops = pixels_of(samples)
    whiten_patches(network.vision, crops)
    with torch.no_grad():
        x = patch_features(network, crops) + network.vision.pos_emb
        for block in network.vision.blocks[:layer]:
            x = block(x)
        block = network.vision.blocks[layer]
        qkv = linear(norm(x, block.ln1), block.attn.qkv).view(len(x), 144, 3, 4, 32)
    for head, (down, right) in enumerate(NEIGHBOURS[layer]):
        scores = qkv[:, :, 0, head] @ qkv[:, :, 1, head].transpose(1, 2) * 32**-0.5
        attention = scores.softmax(-1).mean(0)
        for row, column in ((5, 6), (2, 9), (8, 3)):
            seen = attention[row * 12 + column]
            neighbour = (row + down) * 12 + column + right
            assert int(seen.argmax()) == neighbour
            assert float(seen[neighbour]) > 0.15, "about twenty times an even share"


def test_a_patch_belongs_to_the_object_that_most_of_it_shows(samples: list[Sample]) -> None:
    for sample in samples:
        owner = sample.owners(MIN_CELLS)
        assert owner.shape == (144,)
        assert owner.max() <= len(sample.kinds)
        for i, box in enumerate(sample.boxes, start=1):
            for patch in np.flatnonzero(owner == i):
                row, column = divmod(int(patch), 12)
                assert box[0] * 12 - 1 < column < box[2] * 12
                assert box[1] * 12 - 1 < row < box[3] * 12


def test_an_empty_scene_owns_nothing_and_teaches_nothing(samples: list[Sample]) -> None:
    blank = Sample(
        samples[0].whole, None, (1, 1), samples[0].kinds[:0], samples[0].colours[:0],
        samples[0].boxes[:0], np.zeros_like(samples[0].cells), False,
        samples[0].corners[:0],
    )  # fmt: skip
    assert not blank.owners(MIN_CELLS).any()
    network = Network(CONFIG)
    with Grouping(network.vision) as grouping:
        network.embed_image(pixels_of([blank]), [1], [(1, 1)])
        assert float(grouping.loss([blank], [1]).detach()) == 0


def test_the_taught_head_is_the_one_that_attends(samples: list[Sample]) -> None:
    """Forcing that head's scores through its weights moves the loss as it should."""
    torch.manual_seed(0)
    network = Network(CONFIG)
    crops, num = pixels_of(samples), len(samples)
    block = network.vision.blocks[GROUPING_LAYER]
    rows = slice(32 * GROUPING_HEAD, 32 * (GROUPING_HEAD + 1))
    with torch.no_grad():
        block.attn.qkv.weight[rows] = 0  # this head's queries: it now attends evenly

    def loss() -> torch.Tensor:
        with Grouping(network.vision) as grouping:
            network.embed_image(crops, [1] * num, [(1, 1)] * num)
            return grouping.loss(samples, [1] * num)

    even = float(loss().detach())
    expected = []
    for sample in samples:
        owner = sample.owners(MIN_CELLS)
        for patch in np.flatnonzero(owner):
            others = int((owner == owner[patch]).sum()) - 1
            if others:
                expected.append(-np.log(others / 143))
    assert even == pytest.approx(np.mean(expected), rel=1e-3)
    loss().backward()
    grad = block.attn.qkv.weight.grad
    assert grad is not None
    assert float(grad[rows].abs().max()) > 0
    assert float(grad[32:128].abs().max()) == 0, "other heads are free"


def test_words_start_as_what_they_look_like() -> None:
    torch.manual_seed(0)
    network = Network(CONFIG)
    kinds, colours = network.dense.directions()
    assert kinds.shape == (len(vocabulary.CLASSES), 128)
    assert colours.shape == (len(vocabulary.COLOURS), 128)
    before = network.text.wte.detach().clone()
    align_words(network.text, kinds, colours)
    ids = vocabulary.word_ids()
    centred = kinds - kinds.mean(0)
    for i, word in enumerate(vocabulary.CLASSES):
        cosine = torch.cosine_similarity(network.text.wte[ids[word]], centred[i], dim=0)
        assert float(cosine.detach()) > 0.999
    assert torch.equal(network.text.wte[ids["any"]], before[ids["any"]])
    assert torch.equal(network.text.wte[:21], before[:21]), "special tokens stay"


def test_a_direction_names_its_channel() -> None:
    network = Network(CONFIG)
    kinds, colours = network.dense.directions()
    out = network.dense(10 * colours[3].expand(1, 144, -1))[0, 0, 0].detach()
    plain = network.dense(torch.zeros(1, 144, 128))[0, 0, 0].detach()
    gain = (out - plain)[12:20]
    means = [float(10 * colours[3] @ colours[k]) for k in range(8)]
    assert int(gain.argmax()) == int(np.argmax(means)) == 3
    assert kinds.shape[0] == 11


def test_listening_ends_with_the_block(samples: list[Sample]) -> None:
    network = Network(CONFIG)
    block = network.vision.blocks[GROUPING_LAYER]
    with Grouping(network.vision):
        assert len(block._forward_pre_hooks) == 1
    assert len(block._forward_pre_hooks) == 0


def test_with_tiles_only_the_global_crops_teach() -> None:
    renderer = Renderer(31, Mix(0, 1, 0, 0), None)
    tiled = [s for s in map(renderer.sample, range(20)) if len(s.kinds) >= 2][:2]
    torch.manual_seed(0)
    network = Network(CONFIG)
    crops = [sample.crops() for sample in tiled]
    counts = [len(c) for c in crops]
    with Grouping(network.vision) as grouping:
        network.embed_image(
            torch.from_numpy(np.concatenate(crops)), counts, [s.tiling for s in tiled]
        )
        together = float(grouping.loss(tiled, counts).detach())
    with Grouping(network.vision) as grouping:
        network.embed_image(torch.from_numpy(np.stack([c[0] for c in crops])), [1, 1], [(1, 1)] * 2)
        alone = float(grouping.loss(tiled, [1, 1]).detach())
    assert together == pytest.approx(alone, rel=1e-4)
