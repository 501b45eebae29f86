"""The joint loss: what comes next, where, how large, and where to look."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from photon_ros.models.nano import vocabulary
from training.network import Network
from training.packing import NONE, PREFIX_LEN, Packed
from training.softlabels import COORD_SIGMA_BINS, SIZE_SIGMA_BINS, soft_cross_entropy

# A bin of a corner is 1/256 of its box: far finer than an outline need be.
CORNER_SIGMA_BINS = 3.0
# At 0.5 stars and triangles were drawn round: a mean IoU of 0.55 and 0.62, of 0.85 for a door.
CORNER_WEIGHT = 1.5
# An outline has sixteen corners after its box; where to look, and that one more comes, is easy
# by then and must not drown what is said of boxes and points.
_DRAWING_WEIGHT = 0.1
# Heads by layer that are taught to look at the object being answered. One head passes on 32
# numbers; three tell more exactly where it is.
LOOKING_HEADS = {2: (0, 1), 3: (0,)}


class BlockAttend:
    """Attention of questions packed behind a shared image: an ``Attend`` for training.

    The image looks at itself; a question looks at the image and at its own past.

    Args:
        allowed: (F, 1, S, PREFIX_LEN + S) bool as from :meth:`Packed.allowed`.
    """

    def __init__(self, allowed: Tensor) -> None:
        self._allowed = allowed
        self.looking: list[Tensor] = []  # (F, S, P) logits of each taught head

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Return the attended values (B, T, H, E)."""
        q, k, v = (x.to(v_BTGE.dtype).transpose(1, 2) for x in (q_BTHE, k_BTGE, v_BTGE))
        prefix = slice(None, PREFIX_LEN)
        image = F.scaled_dot_product_attention(q[:, :, prefix], k[:, :, prefix], v[:, :, prefix])
        asking = q[:, :, PREFIX_LEN:]
        answers = F.scaled_dot_product_attention(asking, k, v, attn_mask=self._allowed)
        for head in LOOKING_HEADS.get(layer, ()):
            seen = k[:, head, 1:PREFIX_LEN].float()
            scale = seen.shape[-1] ** -0.5
            self.looking.append(asking[:, head].float() @ seen.transpose(1, 2) * scale)
        return torch.cat((image, answers), dim=2).transpose(1, 2)


def embed(network: Network, packed: Packed) -> Tensor:
    """Return (F, S, D): tokens through the vocabulary, values through the region model."""
    ids = packed.ids
    x = network.text.embed(ids)
    # Half precision would lose the phase of the faster waves, and with it the position.
    with torch.autocast("cpu", enabled=False):
        coords = network.region.embed_coords(packed.coords[..., None])
        sizes = network.region.embed_sizes(packed.sizes)
    x = torch.where((ids == vocabulary.COORD_ID)[..., None], coords, x)
    return torch.where((ids == vocabulary.SIZE_ID)[..., None], sizes, x)


def run_questions(
    network: Network, embeds_FPD: Tensor, packed: Packed
) -> tuple[Tensor, BlockAttend]:
    """Return the hidden states (F, S, D) of the questions, and the attention that made them."""
    num = len(embeds_FPD)
    bos = network.text.embed(torch.full((num, 1), vocabulary.BOS_ID))
    x = torch.cat((bos, embeds_FPD.to(bos.dtype), embed(network, packed)), dim=1)
    prefix = torch.arange(PREFIX_LEN).expand(num, -1)
    attend = BlockAttend(packed.allowed())
    positions = torch.cat((prefix, packed.positions), dim=1)
    return network.text.decode(x, positions, attend)[:, PREFIX_LEN:], attend


def question_losses(network: Network, embeds_FPD: Tensor, packed: Packed) -> dict[str, Tensor]:
    """Return the losses of a batch of questions by name: token, coord, size, look.

    "coord" holds the corners of outlines, too.
    """
    hidden, attend = run_questions(network, embeds_FPD, packed)
    zero = hidden.sum() * 0.0
    losses = {"token": zero, "coord": zero, "size": zero, "look": zero}
    weights = torch.where(packed.draws, _DRAWING_WEIGHT, 1.0)
    boundary = packed.next_id != NONE
    logits = network.text.logits(hidden[boundary])
    token_losses = F.cross_entropy(logits.float(), packed.next_id[boundary], reduction="none")
    losses["token"] = _weighted_mean(token_losses, weights[boundary])
    for drawn, sigma, weight in (
        (False, COORD_SIGMA_BINS, 1.0),
        (True, CORNER_SIGMA_BINS, CORNER_WEIGHT),
    ):
        placed = (packed.coord_target != NONE) & (packed.draws == drawn)
        if bool(placed.any()):
            logits = network.region.coord_logits(hidden[placed])
            loss = soft_cross_entropy(logits, packed.coord_target[placed], sigma)
            losses["coord"] = losses["coord"] + weight * loss.mean()
    sized = packed.size_target[..., 0] != NONE
    if bool(sized.any()):
        logits = network.region.size_logits(hidden[sized]).flatten(0, 1)
        target = packed.size_target[sized].flatten()
        losses["size"] = soft_cross_entropy(logits, target, SIZE_SIGMA_BINS).mean()
    looking = packed.looks_at.any(-1)
    if bool(looking.any()):
        logs = F.log_softmax(torch.stack([head[looking] for head in attend.looking]), dim=-1)
        hits = logs.masked_fill(~packed.looks_at[looking], -torch.inf)
        missed = -torch.logsumexp(hits, dim=-1).mean(0)
        losses["look"] = _weighted_mean(missed, weights[looking])
    return losses


def _weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    return (losses * weights).sum() / weights.sum()
