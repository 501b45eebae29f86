"""LoRA adapters from disk: a folder in the layout of Hugging Face PEFT.

``adapter_config.json`` gives rank and scale, ``adapter_model.safetensors`` the factors under
``base_model.model.<module>.lora_A.weight`` and ``...lora_B.weight``.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from photon_ros.core.errors import ModelError
from photon_ros.engine.lora import LoraAdapter

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

# Module paths of both key layouts of the family, behind whatever prefix a trainer put there.
_LINEARS = {
    "attn.qkv": "qkv", "attn.proj": "proj", "mlp.fc1": "fc1", "mlp.fc2": "fc2",
    "mixer.Wqkv": "qkv", "mixer.out_proj": "proj",
}  # fmt: skip
_KEY = re.compile(
    r"(?:^|\.)(?:text\.blocks|transformer\.h)\.(\d+)\."
    r"(attn\.qkv|attn\.proj|mlp\.fc1|mlp\.fc2|mixer\.Wqkv|mixer\.out_proj)"
    r"\.lora_(A|B)(?:\.\w+)?\.weight$"
)


def load_adapter(folder: str | os.PathLike[str], name: str | None = None) -> LoraAdapter:
    """Open a PEFT folder.

    Args:
        folder: holds ``adapter_config.json`` and ``adapter_model.safetensors``.
        name: what to call the adapter; None takes the folder's name.

    Raises:
        ModelError: a file is missing or broken, the adapter is not LoRA, or it changes modules
            that are not the text decoder's linears.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise ModelError(f"an adapter is a folder, got {folder!r}")
    if not isinstance(name, str | None):
        raise ModelError(f"an adapter's name must be a string, got {name!r}")
    path = Path(folder)
    config = _read_config(path / CONFIG_FILE)
    tensors = _read_tensors(path / WEIGHTS_FILE)
    pairs: dict[tuple[int, str], dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.search(key)
        if match is None:
            raise ModelError(
                f"{path / WEIGHTS_FILE}: {key!r} is no LoRA factor of a text decoder linear "
                f"({', '.join(sorted(set(_LINEARS.values())))})"
            )
        layer, module, side = int(match[1]), match[2], match[3]
        pairs.setdefault((layer, _LINEARS[module]), {})[side] = tensor
    factors = {place: _scaled(path, place, pair, config) for place, pair in pairs.items()}
    if not factors:
        raise ModelError(f"{path / WEIGHTS_FILE} holds no LoRA factors")
    rank = max(down.shape[0] for down, _ in factors.values())
    return LoraAdapter(name or path.resolve().name, rank, factors)


def _scaled(
    path: Path, place: tuple[int, str], pair: dict[str, Tensor], config: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return (A, B) with PEFT's scale, alpha / r or alpha / sqrt(r), in B."""
    where = f"{path / WEIGHTS_FILE}: {place[1]} of layer {place[0]}"
    missing = {"A", "B"} - pair.keys()
    if missing:
        raise ModelError(f"{where} lacks lora_{missing.pop()}")
    down, up = pair["A"].float(), pair["B"].float()
    if down.ndim != 2 or up.ndim != 2 or down.shape[0] != up.shape[1]:
        raise ModelError(
            f"{where}: lora_A {tuple(down.shape)} and lora_B {tuple(up.shape)} do not fit together"
        )
    rank = down.shape[0]
    divisor = math.sqrt(rank) if config.get("use_rslora") else rank
    return down, up * (config["lora_alpha"] / divisor)


def _read_config(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise ModelError(f"no {CONFIG_FILE} in {file.parent}: not a PEFT folder") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else None
        raise ModelError(f"{file}: peft_type must be 'LORA', got {kind!r}")
    if not isinstance(config.get("lora_alpha"), int | float):
        raise ModelError(f"{file}: lora_alpha must be a number, got {config.get('lora_alpha')!r}")
    if config.get("use_dora") or config.get("bias", "none") != "none":
        raise ModelError(f"{file}: DoRA and trained biases are not supported, plain LoRA is")
    for name in ("alpha_pattern", "modules_to_save"):
        if config.get(name):
            raise ModelError(f"{file}: {name} is not supported")
    return config


def _read_tensors(file: Path) -> dict[str, Tensor]:
    if not file.is_file():
        raise ModelError(f"no {WEIGHTS_FILE} in {file.parent}; only safetensors are read")
    try:
        with safe_open(file, framework="pt") as opened:
            return {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read: {error}") from error
