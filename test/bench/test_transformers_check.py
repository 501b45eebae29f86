"""The text decoder against transformers' Phi."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed")

from photon_ros.bench.transformers_check import (
    TOLERANCE,
    logits_difference,
    measure,
    phi_of,
    phi_weights,
)
from photon_ros.cli import main
from photon_ros.core.errors import InputError
from photon_ros.models.moondream.checkpoint import load_checkpoint
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.model import MoondreamModel

CONFIG = MoondreamConfig.from_dict(
    {
        "text": {
            "dim": 64, "ff_dim": 96, "n_layers": 3, "vocab_size": 200, "max_context": 128,
            "n_heads": 4, "n_kv_heads": 2, "rope_theta": 5000.0,
        },
        "vision": {
            "enc_dim": 24, "enc_patch_size": 4, "enc_n_layers": 1, "enc_ff_dim": 32,
            "enc_n_heads": 2, "proj_out_dim": 64, "proj_inner_dim": 20, "crop_size": 20,
            "max_crops": 4, "overlap_margin": 1,
        },
        "region": {
            "dim": 64, "coord_feat_dim": 12, "coord_out_dim": 64, "size_feat_dim": 10,
            "size_out_dim": 64, "inner_dim": 28,
        },
        "tokenizer": {"bos_id": 0, "eos_id": 0},
    }
)  # fmt: skip


@pytest.fixture
def model() -> MoondreamModel:
    """Random weights with fewer key than query heads, which no released model has."""
    torch.manual_seed(3)
    model = MoondreamModel(CONFIG)
    with torch.no_grad():
        for parameter in model.text.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("is_frozen", [False, True])
def test_logits_are_those_of_phi_with_the_same_weights(
    model: MoondreamModel, is_frozen: bool
) -> None:
    if is_frozen:
        model.freeze()
    with torch.inference_mode():
        assert logits_difference(model, phi_of(model.text)) < TOLERANCE


@pytest.mark.parametrize(
    "name",
    ["blocks.1.attn.qkv.bias", "blocks.2.mlp.fc2.weight", "blocks.0.ln.bias", "lm_head.bias"],
)
def test_any_weight_that_differs_shows(model: MoondreamModel, name: str) -> None:
    with torch.inference_mode():
        phi = phi_of(model.text)
        model.text.get_parameter(name).data = 2 * model.text.get_parameter(name)
        assert logits_difference(model, phi) > 10 * TOLERANCE


def test_every_weight_is_given_away_once_and_none_is_copied(model: MoondreamModel) -> None:
    given = phi_weights(model.text)
    own = model.text.state_dict()
    assert sum(weight.numel() for weight in given.values()) == sum(w.numel() for w in own.values())
    places = {weight.untyped_storage().data_ptr() for weight in own.values()}
    assert {weight.untyped_storage().data_ptr() for weight in given.values()} == places


def test_the_reference_checkpoint_gives_phis_logits_and_tokens() -> None:
    shared = os.environ.get("PHOTON_SHARED")
    if not shared:
        pytest.skip("PHOTON_SHARED does not name a folder with reference outputs")
    folder = Path(shared) / "golden" / "moondream"
    text = load_checkpoint(folder).model
    assert isinstance(text, MoondreamModel)
    said: list[str] = []
    figures = measure(said.append, model=str(folder), num_tokens=6)
    assert figures["max logit difference"] <= TOLERANCE
    assert figures["logits equal within 1e-4"]
    assert figures["greedy tokens equal"]
    rows = figures["generate"]
    assert [row["batch_rows"] for row in rows] == [1, 1, 1, 8, 8, 8]
    assert all(row["ms_per_step"] > 0 and row["tokens_per_s"] > 0 for row in rows)
    assert said[0] == "logits"


def test_the_command_prints_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "transformers", "--tokens", "3", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["model"] == "nano"
    assert figures["logits equal within 1e-4"]
    assert figures["greedy tokens equal"]


@pytest.mark.parametrize("num_tokens", [0, 100_000])
def test_answers_that_do_not_fit_the_context_are_refused(num_tokens: int) -> None:
    with pytest.raises(InputError, match="tokens must be between 1 and 480 for nano"):
        measure(lambda what: None, num_tokens=num_tokens)
