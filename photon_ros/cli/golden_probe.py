"""What the engine asked a model, written down as it happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from photon_ros.engine.interfaces import Adapt, Attend, Model, ModelSpec


@dataclass(slots=True)
class FrameRecording:
    """The encoding of one frame.

    Attributes:
        crops: (num_crops, crop, crop, 3) uint8.
        prefix_embeds: (P, D), BOS first.
        prefix_hidden: (P, D) after the last block.
    """

    crops: Tensor
    tiling: tuple[int, int]
    prefix_embeds: Tensor
    prefix_hidden: Tensor | None = None


@dataclass(slots=True)
class Recording:
    """Everything computed for one request, from its prompt on.

    Positions are absolute. A step that ran ahead of the end of a phase is overwritten by what
    the next phase computes at its position, as in the cache.

    Attributes:
        frame: the frame asked about; None without one.
        prompts: (position, ids) of the prompt, and of what started each later phase.
        step_inputs, step_hiddens: (D,) of each forward of a single token, by position.
        first_hidden: (D,) that the first token was chosen from.
        vocab_logits: (V,) by the position of the token that they follow.
        pair_logits: {token id: logit} of each choice between two tokens, in order.
        coord_logits, size_logits: each call's logits, in order.
    """

    frame: FrameRecording | None
    prompts: list[tuple[int, tuple[int, ...]]]
    step_inputs: dict[int, Tensor] = field(default_factory=dict)
    step_hiddens: dict[int, Tensor] = field(default_factory=dict)
    first_hidden: Tensor | None = None
    vocab_logits: dict[int, Tensor] = field(default_factory=dict)
    pair_logits: list[dict[int, float]] = field(default_factory=list)
    coord_logits: list[Tensor] = field(default_factory=list)
    size_logits: list[Tensor] = field(default_factory=list)


class RecordingModel:
    """A Model that passes every call on and keeps what went in and out.

    It tells requests apart as long as they come one after the other, each about a new frame or
    about none.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.recordings: list[Recording] = []
        self._frame: FrameRecording | None = None
        self._prompt_ids: tuple[int, ...] | None = None
        self._position = 0  # of the last token that went through the decoder

    @property
    def spec(self) -> ModelSpec:
        """Sizes and ids."""
        return self._model.spec

    def __getattr__(self, name: str) -> Any:
        """Give whatever else the real model has."""
        return getattr(self._model, name)

    def encode_frames(self, crops: Sequence[Tensor], tilings: Sequence[tuple[int, int]]) -> Tensor:
        """Pass on; the next request is about the last of these frames."""
        embeds_FPD = self._model.encode_frames(crops, tilings)
        self._frame = FrameRecording(_kept(crops[-1]), tilings[-1], _kept(embeds_FPD[-1]))
        return embeds_FPD

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Pass on; keeps the prompt, (rows, positions), and not single sampled tokens."""
        if ids.ndim > 1:
            self._prompt_ids = tuple(ids[0].tolist())
        return self._model.embed_tokens(ids)

    def embed_coords(self, bins_R: Tensor) -> Tensor:
        """Pass on."""
        return self._model.embed_coords(bins_R)

    def embed_sizes(self, bins_R2: Tensor) -> Tensor:
        """Pass on."""
        return self._model.embed_sizes(bins_R2)

    def embed_coord_values(self, values_N1: Tensor) -> Tensor:
        """Pass on."""
        return self._model.embed_coord_values(values_N1)

    def embed_size_values(self, values_N2: Tensor) -> Tensor:
        """Pass on."""
        return self._model.embed_size_values(values_N2)

    def decode(
        self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        """Pass on; keeps the prefix's hidden states and every single-token step."""
        hidden_BTD = self._model.decode(x_BTD, positions_BT, attend, adapt)
        start, self._position = int(positions_BT[0, 0]), int(positions_BT[0, -1])
        if self._frame is not None and self._frame.prefix_hidden is None:
            self._frame.prefix_hidden = _kept(hidden_BTD[0])
        elif self._prompt_ids is not None:
            self._keep_prompt(start, self._prompt_ids)
        elif x_BTD.shape[1] == 1:
            self.recordings[-1].step_inputs[start] = _kept(x_BTD[0, 0])
            self.recordings[-1].step_hiddens[start] = _kept(hidden_BTD[0, 0])
        return hidden_BTD

    def _keep_prompt(self, start: int, ids: tuple[int, ...]) -> None:
        self._prompt_ids = None
        if start in (0, self.spec.prefix_len):
            self.recordings.append(Recording(self._frame, [(start, ids)]))
            self._frame = None
        else:
            self.recordings[-1].prompts.append((start, ids))

    def vocab_logits(self, hidden_RD: Tensor) -> Tensor:
        """Pass on; keeps the logits."""
        logits_RV = self._model.vocab_logits(hidden_RD)
        ids = (self.spec.eos_id, self.spec.coord_id)
        self._keep_choice(hidden_RD, ids, logits_RV[:, list(ids)])
        self.recordings[-1].vocab_logits[self._position] = _kept(logits_RV[0])
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
