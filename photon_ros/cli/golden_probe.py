"""What the engine asked a model, written down as it happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from photon_ros.engine.interfaces import Attend, Model, ModelSpec


@dataclass(slots=True)
class Recording:
    """Everything computed from the encoding of one frame to that of the next.

    Attributes:
        crops: (num_crops, crop, crop, 3) uint8 of the frame.
        prompt_ids: what follows the prefix, from the first prompt embedded.
        prefix_embeds: (P, D), BOS first.
        prefix_hidden: (P, D) after the last block.
        step_inputs, step_hiddens: (D,) of each forward of a single token, in order.
        first_hidden: (D,) that the first token was chosen from.
        pair_logits: {token id: logit} of each choice between two tokens, in order.
        coord_logits, size_logits: each call's logits, in order.
    """

    crops: Tensor
    tiling: tuple[int, int]
    prefix_embeds: Tensor
    prompt_ids: tuple[int, ...] | None = None
    prefix_hidden: Tensor | None = None
    step_inputs: list[Tensor] = field(default_factory=list)
    step_hiddens: list[Tensor] = field(default_factory=list)
    first_hidden: Tensor | None = None
    pair_logits: list[dict[int, float]] = field(default_factory=list)
    coord_logits: list[Tensor] = field(default_factory=list)
    size_logits: list[Tensor] = field(default_factory=list)


class RecordingModel:
    """A Model that passes every call on and keeps what went in and out.

    A recording begins when a frame is encoded, so it holds one request as long as requests
    with new frames come one after the other.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.recordings: list[Recording] = []

    @property
    def spec(self) -> ModelSpec:
        """Sizes and ids."""
        return self._model.spec

    def __getattr__(self, name: str) -> Any:
        """Give whatever else the real model has."""
        return getattr(self._model, name)

    def encode_frames(self, crops: Sequence[Tensor], tilings: Sequence[tuple[int, int]]) -> Tensor:
        """Pass on; begins a recording for each frame."""
        embeds_FPD = self._model.encode_frames(crops, tilings)
        for frame_crops, tiling, embeds_PD in zip(crops, tilings, embeds_FPD, strict=True):
            self.recordings.append(Recording(_kept(frame_crops), tiling, _kept(embeds_PD)))
        return embeds_FPD

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Pass on; keeps the prompt, (rows, positions), and not single sampled tokens."""
        if self.recordings and self.recordings[-1].prompt_ids is None and ids.ndim > 1:
            self.recordings[-1].prompt_ids = tuple(ids[0].tolist())
        return self._model.embed_tokens(ids)

    def embed_coords(self, bins_R: Tensor) -> Tensor:
        """Pass on."""
        return self._model.embed_coords(bins_R)

    def embed_sizes(self, bins_R2: Tensor) -> Tensor:
        """Pass on."""
        return self._model.embed_sizes(bins_R2)

    def decode(self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend) -> Tensor:
        """Pass on; keeps the prefix's hidden states and every single-token step."""
        hidden_BTD = self._model.decode(x_BTD, positions_BT, attend)
        current = self.recordings[-1]
        num_tokens = x_BTD.shape[1]
        if num_tokens == self.spec.prefix_len and current.prefix_hidden is None:
            current.prefix_hidden = _kept(hidden_BTD[0])
        elif num_tokens == 1:
            current.step_inputs.append(_kept(x_BTD[0, 0]))
            current.step_hiddens.append(_kept(hidden_BTD[0, 0]))
        return hidden_BTD

    def vocab_logits(self, hidden_RD: Tensor) -> Tensor:
        """Pass on; keeps the logits of end and object."""
        logits_RV = self._model.vocab_logits(hidden_RD)
        ids = (self.spec.eos_id, self.spec.coord_id)
        self._keep_choice(hidden_RD, ids, logits_RV[:, list(ids)])
        return logits_RV

    def token_logits(self, hidden_RD: Tensor, ids: tuple[int, ...]) -> Tensor:
        """Pass on; keeps the logits."""
        logits = self._model.token_logits(hidden_RD, ids)
        self._keep_choice(hidden_RD, ids, logits)
        return logits

    def coord_logits(self, hidden_RD: Tensor) -> Tensor:
        """Pass on; keeps the logits."""
        logits = self._model.coord_logits(hidden_RD)
        self.recordings[-1].coord_logits.append(_kept(logits[0]))
        return logits

    def size_logits(self, hidden_RD: Tensor) -> Tensor:
        """Pass on; keeps the logits."""
        logits = self._model.size_logits(hidden_RD)
        self.recordings[-1].size_logits.append(_kept(logits[0]))
        return logits

    def _keep_choice(self, hidden_RD: Tensor, ids: tuple[int, ...], logits: Tensor) -> None:
        current = self.recordings[-1]
        if current.first_hidden is None:
            current.first_hidden = _kept(hidden_RD[0])
        current.pair_logits.append(dict(zip(ids, logits[0].tolist(), strict=True)))


def _kept(tensor: Tensor) -> Tensor:
    """Return a copy: the engine writes its buffers again."""
    return tensor.detach().to("cpu", copy=True)
