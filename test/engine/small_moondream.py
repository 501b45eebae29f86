"""A small Moondream with random weights, and an engine over it that answers a bit of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from grammars import OnePhase

from photon_ros.core.result import EndReason
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import Constraint, FrameCrops, SampledToken
from photon_ros.engine.lora import LoraAdapter
from photon_ros.engine.sequence import Outcome, PrefixSource, SamplingParams, Sequence
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.model import MoondreamModel

SIZES: dict[str, Any] = {
    "text": {
        "dim": 32, "ff_dim": 48, "n_layers": 2, "vocab_size": 60, "max_context": 96, "n_heads": 4,
        "n_kv_heads": 2,
    },
    "vision": {
        "enc_dim": 24, "enc_patch_size": 4, "enc_n_layers": 2, "enc_ff_dim": 40, "enc_n_heads": 3,
        "proj_out_dim": 32, "proj_inner_dim": 20, "crop_size": 20, "max_crops": 4,
        "overlap_margin": 1,
    },
    "region": {
        "dim": 32, "coord_feat_dim": 12, "coord_out_dim": 16, "size_feat_dim": 10,
        "size_out_dim": 22, "inner_dim": 28,
    },
    "tokenizer": {
        "bos_id": 2, "eos_id": 0, "coord_id": 5, "size_id": 6,
        "templates": {"detect": {"prefix": [1, 8], "suffix": [3]}},
    },
}  # fmt: skip
SLOTS: dict[str, Any] = {
    "max_rows": 4, "max_prefixes": 4, "page_size": 4, "num_private_pages": 80,
    "num_lora_slots": 2, "max_lora_rank": 3,
}  # fmt: skip


class Steady(OnePhase):
    """A grammar whose answers have a set length, so that every round does the same work.

    What follows an end token is only defined where ``ends`` lets it end the answer.
    """

    length_reason = EndReason.MAX_TOKENS
    ends = False

    def __init__(self, num_tokens: int, constraint: Callable[[int], Constraint | None]) -> None:
        self.max_new_tokens = num_tokens
        self._constraint = constraint
        self.tokens: list[SampledToken] = []

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        if num_ahead > 0 and self._constraint(-1) is None:
            return None
        return self._constraint(len(self.tokens) + num_ahead)

    def advance(self, token: SampledToken) -> bool:
        self.tokens.append(token)
        return self.ends and token.id == 0


def detect() -> Steady:
    states = [Constraint((0, 5), spatial=True), Constraint((5,), spatial=True),
              Constraint((6,), spatial=True)]  # fmt: skip
    return Steady(9, lambda place: states[place % 3])


def text() -> Steady:
    return Steady(7, lambda place: Constraint(forbidden=(0, 3)))


def held() -> Steady:
    return Steady(5, lambda place: None if place < 0 else Constraint(allowed=(7, 8 + place)))


def small_model(device: str = "cpu") -> MoondreamModel:
    torch.manual_seed(3)
    model = MoondreamModel(MoondreamConfig.from_dict(SIZES)).to(device)
    model.reset_tables(torch.device(device))
    return model.freeze()


def picture(number: int, num_crops: int) -> PrefixSource:
    pixels = np.random.default_rng(number).integers(0, 255, (num_crops, 20, 20, 3))
    tiling = {1: (1, 1), 3: (1, 2), 5: (2, 2)}[num_crops]
    return PrefixSource(number, FrameCrops(pixels.astype(np.uint8), tiling))


def adapter(model: MoondreamModel, seed: int) -> LoraAdapter:
    """Return factors for every linear that adapters may change, in the first layer."""
    random = torch.Generator().manual_seed(seed)
    factors = {
        (0, linear.name): (
            torch.randn((3, linear.num_inputs), generator=random),
            torch.randn((linear.num_outputs, 3), generator=random),
        )
        for linear in model.spec.adapted_linears
    }
    return LoraAdapter(f"adapter {seed}", 3, factors)


class CapturingCpu(CpuDevice):
    """Decodes in steps of fixed shape; a replay does again what was captured."""

    can_capture = True


class Run:
    """An engine over the real model, and the outcomes it gave."""

    def __init__(self, model: MoondreamModel, device: Any, **modes: bool) -> None:
        self.engine = Engine(model, device, EngineConfig(**SLOTS, **modes))
        self.adapters = [adapter(model, seed) for seed in (1, 2)]
        self.outcomes: list[Outcome] = []
        self.num_frames = 0

    def submit(
        self,
        state: Any,
        source: PrefixSource | None,
        prompt: tuple[int, ...] = (1, 9, 3),
        temperature: float = 0.0,
        adapter_number: int | None = None,
        values: tuple[tuple[int, tuple[float, ...]], ...] = (),
    ) -> None:
        sequence = Sequence(
            prompt,
            state,
            lambda _, outcome: self.outcomes.append(outcome),
            source=source,
            prompt_values=values,
            adapter=None if adapter_number is None else self.adapters[adapter_number],
            sampling=SamplingParams(temperature, 0.9, 1),
        )
        self.engine.submit(sequence)

    def submit_round(self) -> None:
        """One of everything; the frames are new, so that they are encoded in every round."""
        self.num_frames += 3
        one, three = picture(self.num_frames, 3), picture(self.num_frames + 1, 1)
        self.submit(detect(), one)
        self.submit(detect(), one, prompt=(1, 9, 9, 9, 3))
        self.submit(text(), three, temperature=1.0)
        self.submit(text(), None, prompt=(2, 4))
        self.submit(detect(), three)
        self.submit(held(), one)
        self.submit(text(), picture(self.num_frames + 2, 1), adapter_number=0)
        values = ((1, (0.25,)), (2, (0.5, 0.75)))
        self.submit(detect(), None, (1, 5, 6, 3), adapter_number=1, values=values)

    def finish(self) -> None:
        while self.engine.has_work:
            self.engine.tick()
        errors = [outcome.error for outcome in self.outcomes if outcome.error is not None]
        assert not errors, errors
