"""The place head: patches learn where the object is that they show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.architecture import CONFIG
from training.cutting import CELLS_PER_PATCH, Sample
from training.network import Network
from training.outline import NUM_CORNERS
from training.packing import coord_bin, size_bin
from training.placing import Shown, object_beside, shown_in, shown_object
from training.pool import Mix, Renderer

SIDE = CONFIG.vision.grid_side


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    renderer = Renderer(8, Mix(0.7, 0.3, 0, 0), None)
    return [s for s in map(renderer.sample, range(30)) if len(s.kinds) >= 2][:6]


def test_a_patch_belongs_to_what_it_shows_most_of(samples: list[Sample]) -> None:
    for sample in samples:
        owner = shown_object(sample)
        assert owner.shape == (SIDE * SIDE,)
        centres = {
            int(y * SIDE) * SIDE + int(x * SIDE)
            for x, y in np.clip((sample.boxes[:, :2] + sample.boxes[:, 2:]) / 2, 0, 0.999)
        }
        for patch in range(SIDE * SIDE):
            row, column = divmod(patch, SIDE)
            block = sample.cells[
                row * CELLS_PER_PATCH : (row + 1) * CELLS_PER_PATCH,
                column * CELLS_PER_PATCH : (column + 1) * CELLS_PER_PATCH,
            ]
            counts = np.bincount(block.ravel(), minlength=len(sample.kinds) + 1)
            if counts[1:].max() >= 3:
                assert counts[owner[patch]] == counts[1:].max()
            elif patch not in centres:
                assert owner[patch] == 0


def test_an_object_smaller_than_a_cell_is_shown_by_the_patch_of_its_centre(
    samples: list[Sample],
) -> None:
    tiny = replace(
        _only(samples[0], 0),
        boxes=np.array([[0.5, 0.25, 0.51, 0.26]], np.float32),
        cells=np.zeros_like(samples[0].cells),
    )
    owner = shown_object(tiny)
    assert np.flatnonzero(owner).tolist() == [int(0.255 * SIDE) * SIDE + int(0.505 * SIDE)]


def test_an_empty_scene_shows_nothing_and_costs_nothing(samples: list[Sample]) -> None:
    empty = _only(samples[0], len(samples[0].kinds))
    assert not empty.cells.any()
    assert not shown_object(empty).any()
    assert not object_beside(empty, shown_object(empty)).any()
    first, beside = shown_in([empty])
    network = Network(CONFIG)
    embeds = torch.randn(1, SIDE * SIDE, CONFIG.vision.proj_out_dim, requires_grad=True)
    for loss in (
        network.place.loss(network.region, embeds, first, beside),
        network.outline.loss(embeds, first),
    ):
        loss.backward()
        assert float(loss.detach()) == 0.0


def _spelled_out(
    network: Network,
    maps: torch.nn.Linear,
    owners: list[NDArray[np.int64]],
    embeds: Tensor,
    samples: list[Sample],
) -> float:
    """The same loss, one patch after the other, from the formula."""
    total = weight_sum = 0.0
    dim = CONFIG.vision.proj_out_dim
    for number, (sample, owner) in enumerate(zip(samples, owners, strict=True)):
        for patch in np.flatnonzero(owner):
            box = sample.boxes[owner[patch] - 1]
            hidden = maps(embeds[number, patch])
            middle, size = coord_bin((box[:2] + box[2:]) / 2), size_bin(box[2:] - box[:2])
            sizes = network.region.size_logits(hidden[2 * dim :])
            each = [
                _cross_entropy(network.region.coord_logits(hidden[:dim]), middle[0], 1.3),
                _cross_entropy(network.region.coord_logits(hidden[dim : 2 * dim]), middle[1], 1.3),
                _cross_entropy(sizes[0], size[0], 1.0),
                _cross_entropy(sizes[1], size[1], 1.0),
            ]
            weight = float((owner == owner[patch]).sum()) ** -0.5
            total += weight * sum(each) / 4
            weight_sum += weight
    return total / weight_sum


def test_the_object_beside_is_the_one_a_patch_shows_second_most_of(samples: list[Sample]) -> None:
    num_beside = 0
    for sample in samples:
        owner, counts = shown_object(sample), sample.cells_shown()
        beside = object_beside(sample, owner)
        for patch in range(SIDE * SIDE):
            others = {
                i + 1: int(count)
                for i, count in enumerate(counts[:, patch])
                if i + 1 != owner[patch] and count >= 2
            }
            if owner[patch] == 0 or not others:
                assert beside[patch] == 0
            else:
                assert others[int(beside[patch])] == max(others.values())
                num_beside += 1
    assert num_beside > 0


def test_a_large_object_counts_the_root_of_its_patches(samples: list[Sample]) -> None:
    pair = [_only(samples[0], 0), samples[1]]
    owner = np.array([[1, 1, 1, 1, 0, 0], [0, 2, 0, 0, 0, 1]])
    shown = Shown.by(owner, pair)
    assert shown.frames.tolist() == [0, 0, 0, 0, 1, 1]
    assert shown.patches.tolist() == [0, 1, 2, 3, 1, 5]
    assert shown.weights.tolist() == [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]
    mean = shown.mean(torch.tensor([1.0, 1.0, 1.0, 1.0, 4.0, 7.0]))
    assert float(mean) == pytest.approx((4 * 0.5 + 4 + 7) / 4)


def test_what_is_shown_comes_with_the_truth_of_its_own_scene(samples: list[Sample]) -> None:
    first, beside = shown_in(samples)
    for shown, owners in (
        (first, [shown_object(s) for s in samples]),
        (beside, [object_beside(s, shown_object(s)) for s in samples]),
    ):
        assert len(shown.frames) == sum(int((owner > 0).sum()) for owner in owners) > 0
        for k, (frame, patch) in enumerate(zip(shown.frames, shown.patches, strict=True)):
            thing = owners[frame][patch] - 1
            assert np.array_equal(shown.boxes[k], samples[frame].boxes[thing])
            assert np.array_equal(shown.corners[k], samples[frame].corners[thing])


@torch.no_grad()
def test_the_outline_head_pays_for_corners_that_are_off(samples: list[Sample]) -> None:
    network = Network(CONFIG)
    lone = _only(samples[0], 0)
    first, _ = shown_in([lone])
    embeds = torch.zeros(1, SIDE * SIDE, CONFIG.vision.proj_out_dim)
    network.outline.out.weight.zero_()
    network.outline.out.bias.copy_(torch.from_numpy(lone.corners[0].reshape(-1)) - 0.5)
    assert float(network.outline.loss(embeds, first)) == pytest.approx(0, abs=1e-9)
    # Off by more than the bend, each of the 32 numbers costs its distance less half the bend.
    network.outline.out.bias.add_(0.2)
    assert float(network.outline.loss(embeds, first)) == pytest.approx(
        0.3 * 2 * NUM_CORNERS * (0.2 - 0.05 / 2), rel=1e-4
    )


def _only(sample: Sample, thing: int) -> Sample:
    """Return the sample with the truth about one object, or about none past the last."""
    part = slice(thing, thing + 1)
    return replace(
        sample,
        kinds=sample.kinds[part],
        colours=sample.colours[part],
        boxes=sample.boxes[part],
        cells=np.where(sample.cells == thing + 1, 1, 0).astype(np.uint8),
        corners=sample.corners[part],
    )


def _cross_entropy(logits: Tensor, target: float, sigma: float) -> float:
    label = torch.exp(-0.5 * ((torch.arange(len(logits)) - float(target)) / sigma) ** 2)
    return -float((label / label.sum() * torch.log_softmax(logits, 0)).sum())


@torch.no_grad()
def test_the_loss_is_the_weighted_mean_over_the_patches(samples: list[Sample]) -> None:
    torch.manual_seed(3)
    network = Network(CONFIG)
    embeds = torch.randn(len(samples), SIDE * SIDE, CONFIG.vision.proj_out_dim)
    loss = network.place.loss(network.region, embeds, *shown_in(samples))
    first = [shown_object(s) for s in samples]
    beside = [object_beside(s, owner) for s, owner in zip(samples, first, strict=True)]
    one = _spelled_out(network, network.place.maps, first, embeds, samples)
    other = _spelled_out(network, network.place.maps_beside, beside, embeds, samples)
    assert float(loss) == pytest.approx(one + other / 2, rel=1e-4)


def test_it_teaches_the_decoders_that_are_kept(samples: list[Sample]) -> None:
    network = Network(CONFIG)
    embeds = torch.randn(len(samples), SIDE * SIDE, CONFIG.vision.proj_out_dim)
    network.place.loss(network.region, embeds, *shown_in(samples)).backward()
    for decoder in (network.region.coord_decoder, network.region.size_decoder):
        for name, param in decoder.named_parameters():
            assert param.grad is not None, name
            assert float(param.grad.abs().sum()) > 0, name
    heads = ("model.place", "model.outline", "model.dense")
    assert not any(key.startswith(heads) for key in network.checkpoint())
