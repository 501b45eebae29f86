"""The joint loss: packed questions answer as they would alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from photon_ros.models.nano import vocabulary
from training.architecture import CONFIG
from training.dense import DenseTarget, dense_accuracy, dense_loss
from training.losses import (
    COORD_SIGMA_BINS,
    CORNER_SIGMA_BINS,
    CORNER_WEIGHT,
    BlockAttend,
    question_losses,
    run_questions,
    soft_cross_entropy,
)
from training.network import Network
from training.packing import NONE, PREFIX_LEN, Packed, pack
from training.pool import Mix, Renderer
from training.questions import ANY, Question, ask


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    return Network(CONFIG).eval()


@pytest.fixture(scope="module")
def samples() -> list:
    renderer = Renderer(21, Mix(1, 0, 0, 0), None)
    return [s for s in map(renderer.sample, range(20)) if len(s.kinds) >= 3][:2]


def image_embeds(network: Network, samples: list) -> Tensor:
    crops = torch.from_numpy(np.concatenate([s.crops() for s in samples]))
    return network.embed_image(crops, [1] * len(samples), [(1, 1)] * len(samples))


@torch.no_grad()
def test_a_packed_question_is_answered_as_if_asked_alone(network: Network, samples: list) -> None:
    embeds = image_embeds(network, samples)
    asked = [
        [Question("detect", ANY, ANY, (0, 1)), Question("point", ANY, ANY, (0, 1, 2))],
        [Question("point", 1, 2, ()), Question("segment", ANY, ANY, (1,), (0.3, 0.4))],
    ]
    packed = pack(samples, asked, np.random.default_rng(0), jitter_bins=0.0)
    together, _ = run_questions(network, embeds, packed)
    for scene, question, start in ((0, 0, 0), (0, 1, 10), (1, 0, 0), (1, 1, 4)):
        only = [[asked[scene][question]]]
        lone = pack([samples[scene]], only, np.random.default_rng(0), jitter_bins=0.0)
        alone, _ = run_questions(network, embeds[scene : scene + 1], lone)
        end = start + asked[scene][question].num_tokens
        assert torch.allclose(together[scene, start:end], alone[0], atol=1e-4)


@torch.no_grad()
def test_block_attention_equals_one_big_mask(network: Network, samples: list) -> None:
    rng = np.random.default_rng(0)
    packed = pack(samples, [ask(s, rng, 4, 60) for s in samples], rng)
    length = PREFIX_LEN + packed.ids.shape[1]
    q, k, v = (torch.randn(2, length, 4, 32) for _ in range(3))
    whole = torch.zeros(2, 1, length, length, dtype=torch.bool)
    whole[:, :, :PREFIX_LEN, :PREFIX_LEN] = True
    whole[:, :, PREFIX_LEN:] = packed.allowed()
    heads = (x.transpose(1, 2) for x in (q, k, v))
    expected = F.scaled_dot_product_attention(*heads, attn_mask=whole).transpose(1, 2)
    assert torch.allclose(BlockAttend(packed.allowed())(0, q, k, v), expected, atol=1e-5)


def test_every_trained_weight_gets_a_gradient(samples: list) -> None:
    torch.manual_seed(0)
    network = Network(CONFIG)
    rng = np.random.default_rng(0)
    embeds = image_embeds(network, samples)
    questions = [
        [Question("detect", ANY, ANY, (0, 1)), Question("point", ANY, ANY, (0,))],
        [Question("segment", 0, 0, (1,), (0.4, 0.5))],
    ]
    losses = question_losses(network, embeds, pack(samples, questions, rng))
    losses["dense"] = dense_loss(network.dense(embeds), DenseTarget(samples))
    assert set(losses) == {"token", "coord", "size", "look", "dense"}
    assert all(float(loss.detach()) > 0 for loss in losses.values())
    torch.stack(list(losses.values())).sum().backward()
    without = {name for name, p in network.named_parameters() if p.grad is None}
    # These heads teach the patches and ask no questions.
    assert all(name.startswith(("place.", "outline.")) for name in without)


def test_an_outline_does_not_drown_what_is_said_of_boxes(network: Network, samples: list) -> None:
    """Its thirty-two numbers together weigh half more than those of all boxes."""
    embeds = image_embeds(network, samples).detach()
    boxes = [[Question("detect", ANY, ANY, (0, 1))], [Question("detect", ANY, ANY, (0,))]]
    with_outline = [[*boxes[0], Question("segment", ANY, ANY, (0,))], boxes[1]]

    def losses_of(asked: list[list[Question]]) -> tuple[dict[str, Tensor], Packed]:
        packed = pack(samples, asked, np.random.default_rng(0), jitter_bins=0.0)
        with torch.no_grad():
            return question_losses(network, embeds, packed), packed

    plain, _ = losses_of(boxes)
    outlined, packed = losses_of(with_outline)
    with torch.no_grad():
        hidden, _ = run_questions(network, embeds, packed)
        placed, drawn = packed.coord_target != NONE, packed.draws
        assert int((placed & drawn).sum()) == 32
        centres, corners = (
            soft_cross_entropy(
                network.region.coord_logits(hidden[placed & where]),
                packed.coord_target[placed & where],
                sigma,
            ).mean()
            for where, sigma in ((~drawn, COORD_SIGMA_BINS), (drawn, CORNER_SIGMA_BINS))
        )
        boundary = packed.next_id != NONE
        logits = network.text.logits(hidden[boundary]).float()
        each = F.cross_entropy(logits, packed.next_id[boundary], reduction="none")
        light = drawn[boundary]
    assert float(outlined["coord"]) == pytest.approx(
        float(centres + CORNER_WEIGHT * corners), rel=1e-5
    )
    assert float(plain["coord"]) < float(outlined["coord"])
    expected = (each[~light].sum() + 0.1 * each[light].sum()) / ((~light).sum() + 0.1 * light.sum())
    assert float(outlined["token"]) == pytest.approx(float(expected), rel=1e-5)
    assert int(light.sum()) == 17


def test_without_outlines_the_losses_are_plain_means(network: Network, samples: list) -> None:
    embeds = image_embeds(network, samples).detach()
    asked = [[Question("detect", ANY, ANY, (0, 1))], [Question("point", ANY, ANY, (0,))]]
    packed = pack(samples, asked, np.random.default_rng(0))
    with torch.no_grad():
        losses = question_losses(network, embeds, packed)
        hidden, _ = run_questions(network, embeds, packed)
        boundary, placed = packed.next_id != NONE, packed.coord_target != NONE
        logits = network.text.logits(hidden[boundary]).float()
        token = F.cross_entropy(logits, packed.next_id[boundary])
        coord = soft_cross_entropy(
            network.region.coord_logits(hidden[placed]),
            packed.coord_target[placed],
            COORD_SIGMA_BINS,
        ).mean()
    assert float(losses["token"]) == pytest.approx(float(token), rel=1e-5)
    assert float(losses["coord"]) == pytest.approx(float(coord), rel=1e-5)


def test_a_batch_of_absent_things_has_no_spatial_loss(network: Network, samples: list) -> None:
    embeds = image_embeds(network, samples)
    packed = pack(samples, [[Question("detect", 0, 0, ())]] * 2, np.random.default_rng(0))
    losses = {k: v.detach() for k, v in question_losses(network, embeds, packed).items()}
    assert float(losses["coord"]) == float(losses["size"]) == float(losses["look"]) == 0
    assert float(losses["token"]) > 0


def test_soft_labels_prefer_the_true_bin_and_forgive_its_neighbours() -> None:
    target = torch.tensor([40.0])

    def loss_at(peak: int) -> float:
        logits = torch.full((1, 256), -10.0)
        logits[0, peak] = 0.0
        return float(soft_cross_entropy(logits, target, sigma=1.3))

    assert loss_at(40) < loss_at(41) < loss_at(43) < loss_at(60)
    assert loss_at(39) == pytest.approx(loss_at(41), rel=1e-4)


def test_a_perfect_dense_head_has_almost_no_loss(samples: list) -> None:
    target = DenseTarget(samples)
    kinds = 20.0 * F.one_hot(target.kinds, 1 + len(vocabulary.CLASSES))
    colours = 20.0 * F.one_hot(target.colours.clamp(min=0), len(vocabulary.COLOURS))
    perfect = torch.cat((kinds, colours, target.boxes), dim=-1)
    assert float(dense_loss(perfect, target)) < 1e-3
    assert dense_accuracy(perfect, target) == (1.0, 1.0)
    worse = perfect.roll(1, dims=-1)
    assert float(dense_loss(worse, target)) > 1
    assert dense_accuracy(worse, target)[0] < 0.5


def test_dense_cells_lie_where_their_patch_is(network: Network) -> None:
    embeds = torch.zeros(1, 144, 128)
    base = network.dense(embeds)
    embeds[0, 5 * 12 + 7] = 1.0
    changed = (network.dense(embeds) - base).abs().sum(-1)[0] > 0
    rows, columns = torch.nonzero(changed, as_tuple=True)
    assert (int(rows.min()), int(rows.max())) == (20, 23)
    assert (int(columns.min()), int(columns.max())) == (28, 31)
