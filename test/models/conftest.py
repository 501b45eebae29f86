"""Shared material: the reference outputs, and a small checkpoint made on the spot."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from photon_ros.models.moondream.checkpoint import Checkpoint, load_checkpoint
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.model import MoondreamModel

TINY: dict[str, Any] = {
    "text": {
        "dim": 32, "ff_dim": 48, "n_layers": 2, "vocab_size": 300, "max_context": 64, "n_heads": 4,
    },
    "vision": {
        "enc_dim": 24, "enc_patch_size": 4, "enc_n_layers": 2, "enc_ff_dim": 40, "enc_n_heads": 3,
        "proj_out_dim": 32, "proj_inner_dim": 20, "crop_size": 20, "max_crops": 5,
        "overlap_margin": 1,
    },
    "region": {
        "dim": 32, "coord_feat_dim": 12, "coord_out_dim": 16, "size_feat_dim": 10,
        "size_out_dim": 22, "inner_dim": 28,
    },
    "tokenizer": {
        "bos_id": 2, "eos_id": 0, "coord_id": 7, "size_id": 4,
        "templates": {
            "point": {"prefix": [1, 9], "suffix": [3]},
            "detect": {"prefix": [1, 8], "suffix": [3]},
        },
    },
}  # fmt: skip


@pytest.fixture
def tiny() -> dict[str, Any]:
    """A configuration that differs from the released ones in every number, to change at will."""
    return copy.deepcopy(TINY)


@pytest.fixture
def tiny_model() -> MoondreamModel:
    """Random weights of the tiny configuration, not frozen."""
    torch.manual_seed(5)
    return MoondreamModel(MoondreamConfig.from_dict(TINY))


@pytest.fixture(scope="session")
def tokenizer_json() -> str:
    """A byte-level tokenizer whose special ids are 0 to 9."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", *(f"<|reserved_{i}|>" for i in range(9))]
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=[AddedToken(token, special=True) for token in specials],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["red cup"] * 9 + ["a person on a chair"] * 9, trainer)
    text: str = tokenizer.to_str()
    return text


@pytest.fixture
def tiny_folder(tmp_path: Path, tiny_model: MoondreamModel, tokenizer_json: str) -> Path:
    """The tiny model as a folder: weights in the released layout, config and tokenizer."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    tensors = {f"model.{name}": tensor for name, tensor in tiny_model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TINY))
    (folder / "tokenizer.json").write_text(tokenizer_json)
    return folder


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    shared = os.environ.get("PHOTON_SHARED")
    if not shared:
        pytest.skip("PHOTON_SHARED does not name a folder with reference outputs")
    folder = Path(shared) / "golden" / "moondream"
    if not (folder / "golden.json").is_file():
        pytest.skip(f"no reference outputs in {folder}")
    return folder


@pytest.fixture(scope="session")
def golden(golden_folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((golden_folder / "golden.json").read_text())
    return data


@pytest.fixture(scope="session")
def expected(golden_folder: Path) -> dict[str, Tensor]:
    return load_file(golden_folder / "expected.safetensors")


@pytest.fixture(scope="session")
def golden_checkpoint(golden_folder: Path) -> Checkpoint:
    return load_checkpoint(golden_folder)


class DenseCache:
    """An ``Attend`` of one sequence that is slow and obvious: keys and values in plain lists.

    The first ``prefix_len`` positions see each other; every other one sees what came before.
    """

    def __init__(self, prefix_len: int) -> None:
        self.prefix_len = prefix_len
        self.keys: dict[int, list[Tensor]] = {}
        self.values: dict[int, list[Tensor]] = {}

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        keys = self.keys.setdefault(layer, [])
        values = self.values.setdefault(layer, [])
        start = len(keys)
        keys.extend(k_BTGE[0].unbind(0))
        values.extend(v_BTGE[0].unbind(0))
        k, v, q = torch.stack(keys), torch.stack(values), q_BTHE[0]
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        query_at = torch.arange(start, start + len(q))[:, None]
        key_at = torch.arange(len(k))[None, :]
        seen = (key_at <= query_at) | ((query_at < self.prefix_len) & (key_at < self.prefix_len))
        scores = torch.einsum("qhe,khe->hqk", q, k) / q.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khe->qhe", weights, v)[None]


@pytest.fixture(scope="session")
def dense_cache() -> Callable[[int], DenseCache]:
    return DenseCache
