"""What the benches run: answers of a set length on frames that several prompts share."""

# ruff: noqa: ARG002 (NoModel has the methods of a model and never runs them)

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from photon_ros.core.result import EndReason
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import Device
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import (
    Adapt,
    Attend,
    Constraint,
    FrameCrops,
    ModelSpec,
    SampledToken,
)
from photon_ros.engine.sequence import Outcome, PrefixSource, Sequence

PROMPTS_PER_FRAME = 4

# moondream2's positions and vocabulary; widths of one, because nothing is computed.
SPEC = ModelSpec(
    vocab_size=51_200,
    dim=1,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    max_context=2048,
    prefix_len=730,
    bos_id=1,
    eos_id=1,
    coord_id=5,
    size_id=6,
    num_coord_bins=1024,
    num_size_bins=1024,
    crop_size_px=1,
    max_crops=0,
    dtype=torch.float32,
)
FREE = Constraint()


class NoModel:
    """Has sizes and computes nothing: its device never runs a forward."""

    spec = SPEC

    def encode_frames(self, crops: object, tilings: object) -> Tensor:
        """Never run."""
        raise AssertionError("a timed device ran a forward")

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """Never run."""
        raise AssertionError("a timed device ran a forward")

    embed_coords = embed_sizes = embed_coord_values = embed_size_values = embed_tokens
    vocab_logits = coord_logits = size_logits = embed_tokens

    def decode(
        self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        """Never run."""
        raise AssertionError("a timed device ran a forward")

    def token_logits(self, hidden_RD: Tensor, ids: tuple[int, ...]) -> Tensor:
        """Never run."""
        raise AssertionError("a timed device ran a forward")


@dataclass(slots=True)
class FixedLengthState:
    """Text that ends after ``num_tokens`` tokens, which only the last token tells.

    ``host_work_s`` is spent, awake, in the commit of the row that has it.
    """

    num_tokens: int
    host_work_s: float = 0.0
    num_taken: int = 0
    max_new_tokens: int = 1000
    length_reason: EndReason = EndReason.MAX_TOKENS

    later_positions: int = 0

    def next_phase(self) -> None:
        """Return None: one phase is the whole answer."""
        return None

    def constraint_ahead(self, num_ahead: int) -> Constraint:
        """Anything may come."""
        del num_ahead
        return FREE

    def advance(self, token: SampledToken) -> bool:
        """Count; the token is whatever the device left there."""
        del token
        self.num_taken += 1
        if self.host_work_s:
            until_s = time.perf_counter() + self.host_work_s
            while time.perf_counter() < until_s:
                pass
        return self.num_taken >= self.num_tokens


def build_engine(device: Device, rows: int, *, pipelined: bool) -> Engine:
    """Return an engine with room for ``rows`` answers up to the end of the context."""
    pages_per_row = 64
    config = EngineConfig(
        max_rows=rows,
        max_prefixes=max(2, rows),
        num_private_pages=rows * pages_per_row,
        max_prefixes_per_step=2,
        pipelined=pipelined,
    )
    return Engine(NoModel(), device, config)


def submit(engine: Engine, number: int, state: FixedLengthState) -> Sequence:
    """Queue one answer; four in a row ask about the same frame."""
    source = PrefixSource(number // PROMPTS_PER_FRAME, _NO_CROPS)
    sequence = Sequence((2, 3, 4, 5), state, _ignore, source=source)
    engine.submit(sequence)
    return sequence


def run_until_decoding(engine: Engine, rows: int, warm_up_ticks: int = 40) -> None:
    """Tick until all ``rows`` decode together and nothing is left to prefill."""
    while engine.scheduler.num_waiting or len(engine.scheduler.running) < rows:
        engine.tick()
    for _ in range(warm_up_ticks):
        engine.tick()


def _ignore(sequence: Sequence, outcome: Outcome) -> None:
    del sequence
    if outcome.error is not None:
        raise outcome.error


_NO_CROPS = FrameCrops(np.zeros((1, 1, 1, 3), dtype=np.uint8), (1, 1))
