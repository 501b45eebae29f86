"""What the engine calls: a model, and the grammar of one request.

Shape suffixes: B rows, T tokens of a row, D model width, H query heads, G key/value heads,
E head width, R rows, V vocabulary, F frames, P prefix positions.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from photon_ros.core.result import EndReason


@dataclass(frozen=True, slots=True)
class AdaptedLinear:
    """A linear of every decoder layer that adapters may change."""

    name: str
    num_inputs: int
    num_outputs: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The sizes and ids the engine needs to allocate buffers and to sample.

    Attributes:
        prefix_len: positions of BOS and the image, one contiguous extent per frame.
        num_coord_bins, num_size_bins: bins of a coordinate, and of a width or height.
        crop_size_px: side of the square crops.
        max_crops: most local crops a frame can have; with the global one a frame has at
            most ``max_crops + 1``.
        adapted_linears: what LoRA adapters may change.
    """

    vocab_size: int
    dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    prefix_len: int
    bos_id: int
    eos_id: int
    coord_id: int
    size_id: int
    num_coord_bins: int
    num_size_bins: int
    crop_size_px: int
    max_crops: int
    dtype: torch.dtype
    adapted_linears: tuple[AdaptedLinear, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class FrameCrops:
    """A frame cut for the vision encoder.

    Attributes:
        pixels: (num_crops, crop, crop, 3) uint8 RGB, crop 0 the whole image, then the local
            crops row by row. One crop only means "global crop only": the local features are
            then the global ones.
        tiling: (rows, columns) of the local crops; (1, 1) when there is only the global crop.
    """

    pixels: NDArray[np.uint8]
    tiling: tuple[int, int]


class Attend(Protocol):
    """Attention of one decoder layer, owned by the caller: paged in the engine, dense in tests."""

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Return the attended values (B, T, H, E); rotary is already applied to q and k."""


class Adapt(Protocol):
    """What adapters add to the linears of a batch, each row its own."""

    def __call__(self, layer: int, name: str, x_BTI: Tensor) -> Tensor:
        """Return (B, T, out), to be added to the output of linear ``name`` on ``x``."""


class Model(Protocol):
    """A vision language model of the Moondream family, as the engine sees it."""

    @property
    def spec(self) -> ModelSpec:
        """Sizes and ids."""

    def encode_frames(self, crops: Seq[Tensor], tilings: Seq[tuple[int, int]]) -> Tensor:
        """Return prefix embeddings (F, P, D), BOS first.

        Args:
            crops: per frame (num_crops, crop, crop, 3) uint8 on the model's device.
            tilings: per frame (rows, columns) of its local crops.
        """

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Return the embeddings of int64 ``ids`` of any shape, with D appended."""

    def embed_coords(self, bins_R: Tensor) -> Tensor:
        """Return (R, D): embeddings of the values of int64 coordinate bins."""

    def embed_sizes(self, bins_R2: Tensor) -> Tensor:
        """Return (R, D): embeddings of the values of int64 (width, height) bins."""

    def embed_coord_values(self, values_N1: Tensor) -> Tensor:
        """Return (N, D): embeddings of float32 coordinates in [0, 1]."""

    def embed_size_values(self, values_N2: Tensor) -> Tensor:
        """Return (N, D): embeddings of float32 (width, height) in (0, 1]."""

    def decode(
        self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        """Return the residual stream (B, T, D) after the last block, before the last norm."""

    def vocab_logits(self, hidden_RD: Tensor) -> Tensor:
        """Return (R, V)."""

    def token_logits(self, hidden_RD: Tensor, ids: tuple[int, ...]) -> Tensor:
        """Return (R, len(ids)): the same values as those columns of ``vocab_logits``."""

    def coord_logits(self, hidden_RD: Tensor) -> Tensor:
        """Return (R, num_coord_bins)."""

    def size_logits(self, hidden_RD: Tensor) -> Tensor:
        """Return (R, 2, num_size_bins): width, then height."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Which token ids may come next.

    Attributes:
        allowed: the only ids that may come, in ascending order; None allows all but
            ``forbidden``. One id means that the token is forced.
        forbidden: ids that may not come; only meaningful when ``allowed`` is None.
        spatial: True when a sampled coord or size id stands for a value decoded from the
            hidden state and is fed back as such; False treats those ids as text.
        fold_to: any id but the end token counts as this one. The boundary rule of checkpoints
            whose vocabulary has no coordinate token; only meaningful when ``allowed`` is None.
    """

    allowed: tuple[int, ...] | None = None
    forbidden: tuple[int, ...] = ()
    spatial: bool = False
    fold_to: int | None = None

    @property
    def forced_id(self) -> int | None:
        """The only id that may come, or None when there is a choice."""
        allowed = self.allowed
        return allowed[0] if allowed is not None and len(allowed) == 1 else None

    def permits(self, token_id: int) -> bool:
        """True when ``token_id`` may come."""
        if self.allowed is not None:
            return token_id in self.allowed
        return token_id == self.fold_to or token_id not in self.forbidden


class SampledToken(NamedTuple):
    """One committed token of one row; a tuple, because a step makes one for every row.

    Attributes:
        id: the token id.
        coord_bin: bin of the coordinate; -1 unless id is the spatial coord id.
        size_bins: bins of width and height; (-1, -1) unless id is the spatial size id.
        prob: probability of ``id`` among the ids its constraint allowed (1.0 when forced).
        bin_prob: product of the probabilities of the chosen bins; 1.0 for text.
    """

    id: int
    coord_bin: int = -1
    size_bins: tuple[int, int] = (-1, -1)
    prob: float = 1.0
    bin_prob: float = 1.0


class SkillState(Protocol):
    """The grammar of one request: what may come next, and what the tokens mean.

    Only the engine's thread calls it, and only with committed tokens.
    """

    @property
    def max_new_tokens(self) -> int:
        """Tokens after which the current phase ends by length, at least 1."""

    @property
    def length_reason(self) -> EndReason:
        """What an end by ``max_new_tokens`` is called."""

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        """Return the constraint of the token ``num_ahead`` places after the committed ones.

        It may assume that none of the tokens between was a stop. None means that it depends
        on their values: the engine then holds sampling until they are committed. It is never
        None for ``num_ahead == 0``.
        """

    @property
    def later_positions(self) -> int:
        """Positions that later phases may need; 0 when the answer has one phase."""

    def advance(self, token: SampledToken) -> bool:
        """Take one committed token; return True when it ends the phase."""

    def next_phase(self) -> tuple[int, ...] | None:
        """Return the ids that start the next phase, or None when the answer is over.

        Asked once after ``advance`` returned True. The token that ended the phase is never
        fed: the ids take its position.
        """
