"""Teach one head of the vision encoder to look at the object a patch belongs to.

Colours are learned from single patches; class and extent need all patches of an object
together. Left alone the encoder finds that out late, so one head is shown.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from photon_ros.models.moondream.layers import linear, norm
from photon_ros.models.moondream.vision import VisionBlock, VisionEncoder
from training.cutting import Sample

GROUPING_LAYER, GROUPING_HEAD = 2, 0
# Cells of an object, of sixteen, that make a patch belong to it.
MIN_CELLS = 4


class Grouping:
    """Listens to one block of a vision encoder while it runs.

    Use as a context manager around the forward pass; afterwards :meth:`loss` has what it
    needs.
    """

    def __init__(self, vision: VisionEncoder) -> None:
        block = vision.blocks[GROUPING_LAYER]
        assert isinstance(block, VisionBlock)
        self._block = block
        self._input: Tensor | None = None

    def __enter__(self) -> Grouping:
        self._hook = self._block.register_forward_pre_hook(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _listen(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        self._input = args[0]

    def loss(self, samples: list[Sample], num_crops: list[int]) -> Tensor:
        """Return the mean of -log(attention on other patches of the same object).

        Of the global crops only. Looking at oneself is left out, as it teaches nothing.
        """
        assert self._input is not None, "the encoder has not run"
        first = np.cumsum([0, *num_crops[:-1]])
        owner = torch.from_numpy(np.stack([sample.owners(MIN_CELLS) for sample in samples]))
        itself = torch.eye(owner.shape[1], dtype=torch.bool)
        same = (owner[:, :, None] == owner[:, None, :]) & ~itself
        taught = (owner > 0) & same.any(-1)
        if not bool(taught.any()):
            return self._input.sum() * 0.0
        seen = norm(self._input[torch.from_numpy(first)], self._block.ln1)
        qkv = linear(seen, self._block.attn.qkv).float()
        heads = qkv.view(*qkv.shape[:2], 3, self._block.num_heads, -1)
        q, k = heads[:, :, 0, GROUPING_HEAD], heads[:, :, 1, GROUPING_HEAD]
        scores = (q @ k.transpose(1, 2)) * q.shape[-1] ** -0.5
        logs = F.log_softmax(scores.masked_fill(itself, -torch.inf), dim=-1)
        hits = logs.masked_fill(~same, -torch.inf)[taught]
        return -torch.logsumexp(hits, dim=-1).mean()
