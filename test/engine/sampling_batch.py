"""A batch to sample: hidden states in a slot, chosen logits, and a relay to look at."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from grammars import TextGrammar
from hash_model import SPEC, HashModel
from torch import Tensor

from photon_ros.engine.config import EngineConfig
from photon_ros.engine.decode_slot import DecodeSlot
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.engine.sampler import plan_sampling, stage_sampling
from photon_ros.engine.sampling import sample
from photon_ros.engine.sequence import SamplingParams, Sequence

EOS, COORD, SIZE = SPEC.eos_id, SPEC.coord_id, SPEC.size_id
OBJECT_OR_END = Constraint(allowed=(0, 5), spatial=True)
X = Constraint(allowed=(5,), spatial=True)
WH = Constraint(allowed=(6,), spatial=True)
END = Constraint(allowed=(0,), spatial=True)
SPATIAL = [OBJECT_OR_END, X, WH, END]


class TableModel(HashModel):
    """Gives chosen logits: row r's hidden state is r."""

    def __init__(self, logits_RV: Tensor) -> None:
        super().__init__()
        self.table = logits_RV

    def vocab_logits(self, hidden_RD: Tensor) -> Tensor:
        return self.table[hidden_RD[:, 0].long()]

    def token_logits(self, hidden_RD: Tensor, ids: tuple[int, ...]) -> Tensor:
        return self.vocab_logits(hidden_RD)[:, list(ids)]


@dataclass
class Batch:
    """A slot with hidden states, and the relay that sampling writes to."""

    model: HashModel
    hidden: Tensor
    lanes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = len(self.hidden)
        self.lanes = self.lanes or list(range(rows))
        self.slot = DecodeSlot(0, CpuDevice(), SPEC, EngineConfig(max_rows=rows))
        self.slot.hidden[:rows] = self.hidden
        self.relay = torch.full((max(self.lanes) + 1, SPEC.dim), -1.0)

    def run(
        self,
        constraints: list[Constraint],
        params: list[SamplingParams] | None = None,
        positions: list[int] | None = None,
        *,
        may_use_pair: bool = True,
    ) -> list[SampledToken]:
        rows = len(constraints)
        params = params or [SamplingParams()] * rows
        sequences = [
            Sequence((1,), TextGrammar(), lambda *_: None, sampling=p, num_launched=position)
            for p, position in zip(params, positions or [0] * rows, strict=True)
        ]
        plan = plan_sampling(constraints, sequences, SPEC)
        if not may_use_pair:
            plan = replace(plan, pair=None)
        self.plan = plan
        stage_sampling(self.slot, plan, constraints, sequences, SPEC.prefix_len)
        sample(self.model, self.slot, plan, self.relay, torch.tensor(self.lanes[:rows]))
        self.slot.landed.to_host(rows)
        return self.slot.landed_tokens(rows)


def hash_batch(rows: int, seed: int = 0) -> Batch:
    random = torch.Generator().manual_seed(seed)
    return Batch(HashModel(), torch.randint(0, 4000, (rows, SPEC.dim), generator=random).float())


def table_batch(logits_RV: Tensor) -> Batch:
    hidden = torch.arange(len(logits_RV)).float()[:, None].expand(-1, SPEC.dim)
    return Batch(TableModel(logits_RV), hidden)


def logits_of(*rows: dict[int, float]) -> Tensor:
    table = torch.zeros(len(rows), SPEC.vocab_size)
    for number, row in enumerate(rows):
        for token, value in row.items():
            table[number, token] = value
    return table
