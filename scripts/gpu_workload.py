"""What the GPU checks run: a small random model, and rounds of questions through one engine."""

from __future__ import annotations

import numpy as np
import torch

from photon_ros.core.result import EndReason
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice, CudaDevice, Device
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import Constraint, FrameCrops, SampledToken
from photon_ros.engine.sequence import Outcome, PrefixSource, Sequence
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.model import MoondreamModel

SMALL = {
    "text": {
        "dim": 128, "ff_dim": 256, "n_layers": 3, "vocab_size": 512, "max_context": 512,
        "n_heads": 2,
    },
    "vision": {
        "enc_dim": 64, "enc_patch_size": 8, "enc_n_layers": 2, "enc_ff_dim": 128,
        "enc_n_heads": 2, "proj_out_dim": 128, "proj_inner_dim": 128, "crop_size": 64,
        "max_crops": 4, "overlap_margin": 2,
    },
    "region": {
        "dim": 128, "coord_feat_dim": 64, "coord_out_dim": 128, "size_feat_dim": 64,
        "size_out_dim": 128, "inner_dim": 128,
    },
    "tokenizer": {"bos_id": 0, "eos_id": 0, "coord_id": 5, "size_id": 6, "templates": {}},
}  # fmt: skip


class Answer:
    """Text (or, with ``spatial``, objects) of a set length that never ends early."""

    length_reason = EndReason.MAX_TOKENS
    later_positions = 0

    def __init__(self, num_tokens: int, *, spatial: bool) -> None:
        self.max_new_tokens = num_tokens
        self.tokens: list[SampledToken] = []
        ids = ((5,), (5,), (6,)) if spatial else None
        self._cycle = tuple(Constraint(allowed=i, spatial=True) for i in ids) if ids else ()

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        """Return what may come; objects repeat coordinate, coordinate, size."""
        if not self._cycle:
            return _TEXT
        return self._cycle[(len(self.tokens) + num_ahead) % 3]

    def advance(self, token: SampledToken) -> bool:
        """Keep the token."""
        self.tokens.append(token)
        return False

    def next_phase(self) -> None:
        """Return None: one phase."""
        return None


class HeldAnswer(Answer):
    """Text whose next token must not be the last one: known only once that is committed."""

    def __init__(self, num_tokens: int) -> None:
        super().__init__(num_tokens, spatial=False)

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        """Return what may come, once it is known."""
        last = self.tokens[-1].id if self.tokens else 0
        return None if num_ahead else Constraint(forbidden=tuple(sorted({0, last})))


_TEXT = Constraint(forbidden=(0,))


def small_model(device: str) -> MoondreamModel:
    """Return the same small random model on any device, in float32."""
    torch.manual_seed(11)
    model = MoondreamModel(MoondreamConfig.from_dict(SMALL))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model = model.to(device)
    model.reset_tables(torch.device(device))
    return model.freeze()


class Rounds:
    """Rounds of mixed requests through one engine, and every token they gave."""

    def __init__(self, model: MoondreamModel, device: Device, *, pipelined: bool = True) -> None:
        config = EngineConfig(max_rows=8, num_private_pages=128, pipelined=pipelined)
        self.engine = Engine(model, device, config)
        self._model = model
        self.answers: list[Answer] = []
        self.errors: list[BaseException] = []

    def run(self, number: int) -> None:
        """Ask eight questions about two frames and run until all are answered."""
        spec = self._model.spec
        rng = np.random.default_rng(number)
        side = spec.crop_size_px
        for frame in range(2):
            pixels = rng.integers(0, 255, (1, side, side, 3), dtype=np.uint8)
            source = PrefixSource((number, frame), FrameCrops(pixels, (1, 1)))
            # Held rows hold their whole batch: only every other round has them.
            answers = [Answer(9 + 3 * n, spatial=n != 1) for n in range(3)]
            answers.append(HeldAnswer(8) if number % 2 else Answer(18, spatial=True))
            for prompt, answer in enumerate(answers):
                self.answers.append(answer)
                ids = (1, 7 + prompt, 20 + number % 50)
                self.engine.submit(Sequence(ids, answer, self._on_done, source=source))
        while self.engine.has_work:
            self.engine.tick()

    def tokens(self) -> list[list[tuple[int, int, tuple[int, int]]]]:
        """Return id, coordinate bin and size bins of all tokens so far."""
        return [[(t.id, t.coord_bin, t.size_bins) for t in a.tokens] for a in self.answers]

    def _on_done(self, sequence: Sequence, outcome: Outcome) -> None:
        del sequence
        if outcome.error is not None:
            self.errors.append(outcome.error)


def make_device(name: str, *, use_graphs: bool = True) -> Device:
    """Return the device under test."""
    if name == "cpu":
        device = CpuDevice()
        device.can_capture = use_graphs  # replays then run the captured closure again
        return device
    return CudaDevice(name, use_graphs=use_graphs)
