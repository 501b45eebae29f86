"""MoondreamModel: the three networks behind the interface that the engine calls.

Shape suffixes as in :mod:`photon_ros.engine.interfaces`. Nothing here waits for the device or
chooses by a value on it, so that every method but :meth:`MoondreamModel.encode_frames` can be
captured in a graph once it has been called with the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from photon_ros.engine.interfaces import Adapt, AdaptedLinear, Attend, ModelSpec
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.layers import norm
from photon_ros.models.moondream.region import RegionModel, coord_values, size_values
from photon_ros.models.moondream.text import TextDecoder
from photon_ros.models.moondream.vision import VisionEncoder


class MoondreamModel(nn.Module):
    """A Moondream; its state dict holds exactly the tensors of a checkpoint.

    A new model has random weights and gradients, ready to be trained; :meth:`freeze` makes it
    ready for inference. The caller decides about ``torch.inference_mode``.
    """

    coord_values: Tensor  # (num_coord_bins,) in the weights' dtype
    size_values: Tensor  # (num_size_bins,) in the weights' dtype

    def __init__(self, config: MoondreamConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionEncoder(config.vision)
        self.text = TextDecoder(config.text)
        self.region = RegionModel(config.region)
        self.register_buffer("coord_values", torch.empty(0), persistent=False)
        self.register_buffer("size_values", torch.empty(0), persistent=False)
        self.reset_tables(torch.device("cpu"))
        self._frozen_coords_CD: Tensor | None = None
        self._frozen_rows: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.text.wte.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights and of all embeddings, hidden states and logits."""
        return self.text.wte.dtype

    @property
    def spec(self) -> ModelSpec:
        """Sizes and ids."""
        text, vision, region = self.config.text, self.config.vision, self.config.region
        ids = self.config.tokenizer
        coord_id, size_id = ids.spatial_ids
        num_heads = text.n_heads + 2 * text.num_kv_heads
        return ModelSpec(
            vocab_size=text.vocab_size,
            dim=text.dim,
            num_layers=text.n_layers,
            num_heads=text.n_heads,
            num_kv_heads=text.num_kv_heads,
            head_dim=text.head_dim,
            max_context=text.max_context,
            prefix_len=self.config.prefix_len,
            bos_id=ids.bos_id,
            eos_id=ids.eos_id,
            coord_id=coord_id,
            size_id=size_id,
            num_coord_bins=region.num_coord_bins,
            num_size_bins=region.num_size_bins,
            crop_size_px=vision.crop_size,
            max_crops=vision.max_crops,
            dtype=self.dtype,
            adapted_linears=(
                AdaptedLinear("qkv", text.dim, num_heads * text.head_dim),
                AdaptedLinear("proj", text.dim, text.dim),
                AdaptedLinear("fc1", text.dim, text.ff_dim),
                AdaptedLinear("fc2", text.ff_dim, text.dim),
            ),
        )

    def reset_tables(self, device: torch.device) -> None:
        """Compute on ``device`` everything that is neither a weight nor stored with them."""
        region = self.config.region
        coords, sizes = coord_values(region.num_coord_bins), size_values(region.num_size_bins)
        self.coord_values = torch.tensor(coords, dtype=self.dtype, device=device)
        self.size_values = torch.tensor(sizes, dtype=self.dtype, device=device)
        self.text.rotary.reset(device)

    def freeze(self) -> MoondreamModel:
        """Make ready for inference: no gradients, and the embedding of every coordinate at hand.

        Call it again after changing the weights or moving the model.
        """
        self.eval().requires_grad_(False)
        self.text.fuse()
        self._frozen_rows.clear()
        with torch.no_grad():
            self._frozen_coords_CD = self.region.embed_coords(self.coord_values.unsqueeze(-1))
        return self

    def train(self, mode: bool = True) -> MoondreamModel:
        """Switch to training, which drops what :meth:`freeze` prepared, or back."""
        if mode:
            self._thaw()
        super().train(mode)
        return self

    def _thaw(self) -> None:
        self._frozen_coords_CD = None
        self._frozen_rows.clear()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> MoondreamModel:
        self._thaw()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.reset_tables(self.device)  # a value rounded twice is another value
        return self

    def encode_frames(self, crops: Sequence[Tensor], tilings: Sequence[tuple[int, int]]) -> Tensor:
        """Return prefix embeddings (F, P, D), BOS first; see ``engine.interfaces.Model``."""
        pixels = crops[0] if len(crops) == 1 else torch.cat(list(crops))
        # In float32 whatever the weights are: half precision would round each step.
        normalised = pixels.permute(0, 3, 1, 2).float().div_(255).sub_(0.5).div_(0.5)
        image_FPD = self.vision(normalised.to(self.dtype), [len(part) for part in crops], tilings)
        bos_F1D = self.text.wte[self.config.tokenizer.bos_id].expand(len(crops), 1, -1)
        return torch.cat((bos_F1D, image_FPD), dim=1)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Return the embeddings of int64 ``ids`` of any shape, with D appended."""
        return self.text.embed(ids)

    def embed_coords(self, bins_R: Tensor) -> Tensor:
        """Return (R, D): embeddings of the values of int64 coordinate bins."""
        if self._frozen_coords_CD is not None:
            return F.embedding(bins_R, self._frozen_coords_CD)
        return self.region.embed_coords(self.coord_values[bins_R].unsqueeze(-1))

    def embed_sizes(self, bins_R2: Tensor) -> Tensor:
        """Return (R, D): embeddings of the values of int64 (width, height) bins."""
        return self.region.embed_sizes(self.size_values[bins_R2])

    def embed_coord_values(self, values_N1: Tensor) -> Tensor:
        """Return (N, D): embeddings of float32 coordinates in [0, 1]."""
        return self.region.embed_coords(values_N1.to(self.dtype))

    def embed_size_values(self, values_N2: Tensor) -> Tensor:
        """Return (N, D): embeddings of float32 (width, height) in (0, 1]."""
        return self.region.embed_sizes(values_N2.to(self.dtype))

    def decode(
        self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        """Return the residual stream (B, T, D) after the last block, before the last norm."""
        return self.text.decode(x_BTD, positions_BT, attend, adapt)

    def vocab_logits(self, hidden_RD: Tensor) -> Tensor:
        """Return (R, V)."""
        return self.text.logits(hidden_RD)

    def token_logits(self, hidden_RD: Tensor, ids: tuple[int, ...]) -> Tensor:
        """Return (R, len(ids)): those columns of ``vocab_logits``, reading only their weights."""
        rows = self._frozen_rows.get(ids)
        if rows is None:
            head = self.text.lm_head
            rows = (
                torch.stack([head.weight[i] for i in ids]),
                torch.stack([head.bias[i] for i in ids]),
            )
            if self._frozen_coords_CD is not None:
                self._frozen_rows[ids] = rows
        return F.linear(norm(hidden_RD, self.text.post_ln), *rows)

    def coord_logits(self, hidden_RD: Tensor) -> Tensor:
        """Return (R, num_coord_bins)."""
        return self.region.coord_logits(hidden_RD)

    def size_logits(self, hidden_RD: Tensor) -> Tensor:
        """Return (R, 2, num_size_bins): width, then height."""
        return self.region.size_logits(hidden_RD)
