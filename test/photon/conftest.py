"""A small Moondream with random weights and a byte tokenizer, made on the spot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from photon_ros.core.frame import Frame
from photon_ros.core.prompting import Prompting, PromptTemplate
from photon_ros.engine.config import EngineConfig
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.moondream.region import coord_values, size_values
from photon_ros.photon import Photon

CONFIG = MoondreamConfig.from_dict(
    {
        "text": {
            "dim": 32, "ff_dim": 48, "n_layers": 2, "vocab_size": 300, "max_context": 128,
            "n_heads": 2,
        },
        "vision": {
            "enc_dim": 24, "enc_patch_size": 4, "enc_n_layers": 1, "enc_ff_dim": 32,
            "enc_n_heads": 2, "proj_out_dim": 32, "proj_inner_dim": 20, "crop_size": 20,
            "max_crops": 4, "overlap_margin": 1,
        },
        "region": {
            "dim": 32, "coord_feat_dim": 12, "coord_out_dim": 64, "size_feat_dim": 10,
            "size_out_dim": 64, "inner_dim": 28,
        },
        "tokenizer": {
            "bos_id": 0, "eos_id": 0, "coord_id": 5, "size_id": 6,
            "templates": {"point": {"prefix": [1], "suffix": [3]}},
        },
    }
)  # fmt: skip


class ByteTokenizer:
    """Each byte of the text is one id, after the special ones."""

    def encode(self, text: str) -> list[int]:
        return [20 + byte for byte in text.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes((i - 20) % 256 for i in ids if i >= 20).decode(errors="replace")


# Tokens that mean something are made likelier, so that a random model says them now and then.
LIKELIER = {0: 1.0, 3: 1.5, 5: 4.0, 6: 2.0, 7: 1.5, 9: 1.5}


def lively_model(config: MoondreamConfig, seed: int, likelier: dict[int, float]) -> MoondreamModel:
    """Return a model whose random weights give varied answers, with places and ends."""
    torch.manual_seed(seed)
    model = MoondreamModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln" in name:
                continue
            is_embedding = name in ("text.wte", "vision.pos_emb")
            std = 1.0 if parameter.ndim == 1 or is_embedding else 1.6 / parameter.shape[-1] ** 0.5
            parameter.normal_(std=std * (0.3 if parameter.ndim == 1 else 1.0))
            if "attn" in name:  # a prompt matters as much as the token before
                parameter *= 2.0
        model.text.lm_head.weight[list(likelier)] *= 1.3
        model.text.lm_head.bias[list(likelier)] += torch.tensor(list(likelier.values()))
    return model.freeze()


def make_checkpoint(seed: int = 6) -> Checkpoint:
    """Return a checkpoint with every skill."""
    model = lively_model(CONFIG, seed, LIKELIER)
    prompting = Prompting(
        model_name="tiny",
        tokenizer=ByteTokenizer(),
        templates={
            "point": PromptTemplate((1, 8), (3,)),
            "detect": PromptTemplate((1, 9), (3,)),
            "segment": PromptTemplate((1, 10), (3,), ""),
            "query": PromptTemplate((1, 11), (3, 3), "", single_suffix=(3,)),
            "caption_short": PromptTemplate((1, 12, 3), (), ""),
            "caption_normal": PromptTemplate((1, 13, 3), (), ""),
        },
        bos_id=0,
        eos_id=0,
        coord_id=5,
        size_id=6,
        max_context=128,
        prefix_len=CONFIG.prefix_len,
        coord_values=coord_values(64),
        size_values=size_values(32),
        answer_id=3,
        thinking_id=4,
        start_ground_id=7,
        end_ground_id=9,
        peers={"segment": ("mighty",)},
    )
    return Checkpoint(model, prompting, CONFIG, "tiny")


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return make_checkpoint()


@pytest.fixture
def point_only(checkpoint: Checkpoint) -> Checkpoint:
    templates = {"point": checkpoint.prompting.templates["point"]}
    return replace(checkpoint, prompting=replace(checkpoint.prompting, templates=templates))


@pytest.fixture
def photon(checkpoint: Checkpoint) -> Iterator[Photon]:
    with Photon(checkpoint, config=EngineConfig(max_rows=4, num_private_pages=64)) as opened:
        yield opened


@pytest.fixture
def frame() -> Frame:
    rng = np.random.default_rng(3)
    return Frame(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8), stamp_ns=5)
