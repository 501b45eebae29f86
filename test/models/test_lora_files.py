"""Adapters in PEFT's layout: loaded, applied, refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from photon_ros.core.errors import ModelError
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.lora import LoraBank
from photon_ros.models.moondream.lora_files import load_adapter
from photon_ros.models.moondream.model import MoondreamModel

CONFIG = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "bias": "none"}
SHAPES = {"attn.qkv": (32, 96), "attn.proj": (32, 32), "mlp.fc1": (32, 48), "mlp.fc2": (48, 32)}


def factors(rank: int = 3, prefix: str = "base_model.model.text.blocks") -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for layer in range(2):
        for module, (inputs, outputs) in SHAPES.items():
            key = f"{prefix}.{layer}.{module}"
            tensors[f"{key}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.2
            tensors[f"{key}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.2
    return tensors


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


class CausalAttend:
    """Plain causal attention over the rows' own tokens."""

    def __call__(self, layer, q, k, v):
        out = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return out.transpose(1, 2)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_an_adapter_equals_the_model_with_the_difference_added_to_its_weights(
    tmp_path: Path, tiny_model: MoondreamModel, is_frozen: bool
) -> None:
    tensors = factors()
    adapter = load_adapter(write(tmp_path, tensors), "mine")
    assert (adapter.name, adapter.rank) == ("mine", 3)
    merged = MoondreamModel(tiny_model.config)
    merged.load_state_dict(tiny_model.state_dict())
    with torch.no_grad():
        for name, parameter in merged.named_parameters():
            key = f"base_model.model.{name.removesuffix('.weight')}"
            if f"{key}.lora_A.weight" in tensors:
                down, up = tensors[f"{key}.lora_A.weight"], tensors[f"{key}.lora_B.weight"]
                parameter += 2.0 * up @ down  # alpha / r
        if is_frozen:
            tiny_model.freeze()
        bank = LoraBank(CpuDevice(), tiny_model.spec, 2, 8)
        bank.load(2, adapter)
        x = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(2))
        positions = torch.arange(5).expand(3, -1)
        slots = torch.tensor([2, 0, 2])
        mixed = tiny_model.decode(x, positions, CausalAttend(), partial(bank.adapt, slots))
        plain = tiny_model.decode(x, positions, CausalAttend())
        adapted = merged.decode(x, positions, CausalAttend())
    torch.testing.assert_close(mixed[1], plain[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mixed[::2], adapted[::2], atol=1e-4, rtol=1e-4)
    assert (plain[0] - adapted[0]).abs().max() > 0.01


def test_rank_stabilised_adapters_scale_by_the_root_of_the_rank(tmp_path: Path) -> None:
    tensors = factors(rank=4)
    plain = load_adapter(write(tmp_path, tensors, lora_alpha=4))
    stabilised = load_adapter(write(tmp_path, tensors, lora_alpha=4, use_rslora=True))
    up, up_stabilised = (a.factors[0, "qkv"][1] for a in (plain, stabilised))
    torch.testing.assert_close(up_stabilised, 2 * up)


def test_names_of_the_other_key_layout_are_understood(tmp_path: Path) -> None:
    prefix = "base_model.model.text_model.transformer.h.1"
    tensors = {
        f"{prefix}.mixer.Wqkv.lora_A.weight": torch.zeros(2, 32),
        f"{prefix}.mixer.Wqkv.lora_B.weight": torch.zeros(96, 2),
        f"{prefix}.mlp.fc2.lora_A.default.weight": torch.zeros(2, 48),
        f"{prefix}.mlp.fc2.lora_B.default.weight": torch.zeros(32, 2),
    }
    assert set(load_adapter(write(tmp_path, tensors)).factors) == {(1, "qkv"), (1, "fc2")}


def test_a_folder_without_a_name_is_called_by_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "forklifts"
    folder.mkdir()
    assert load_adapter(write(folder, factors())).name == "forklifts"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type must be 'LORA', got 'IA3'"),
        ({"lora_alpha": "six"}, "lora_alpha must be a number, got 'six'"),
        ({"use_dora": True}, "DoRA and trained biases are not supported"),
        ({"bias": "all"}, "DoRA and trained biases are not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"alpha_pattern": {"qkv": 3}}, "alpha_pattern is not supported"),
    ],
)
def test_adapters_of_another_kind_are_refused(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_adapter(write(tmp_path, factors(), **config))


def test_a_factor_without_its_partner_is_refused_by_name(tmp_path: Path) -> None:
    tensors = factors()
    del tensors["base_model.model.text.blocks.1.mlp.fc1.lora_B.weight"]
    with pytest.raises(ModelError, match="fc1 of layer 1 lacks lora_B"):
        load_adapter(write(tmp_path, tensors))


def test_factors_that_do_not_fit_together_are_refused_with_their_shapes(tmp_path: Path) -> None:
    tensors = factors()
    tensors["base_model.model.text.blocks.0.attn.qkv.lora_B.weight"] = torch.zeros(96, 5)
    with pytest.raises(ModelError, match=r"lora_A \(3, 32\) and lora_B \(96, 5\) do not fit"):
        load_adapter(write(tmp_path, tensors))


def test_factors_of_other_modules_are_refused_by_name(tmp_path: Path) -> None:
    tensors = {"base_model.model.vision.blocks.0.attn.qkv.lora_A.weight": torch.zeros(1, 4)}
    with pytest.raises(ModelError, match=r"vision\.blocks\.0\.attn\.qkv"):
        load_adapter(write(tmp_path, tensors))


def test_what_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no adapter_config\.json"):
        load_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        load_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors.*only safetensors"):
        load_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be read"):
        load_adapter(tmp_path)
    save_file({}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="holds no LoRA factors"):
        load_adapter(tmp_path)
