"""LoRA adapters through the API: added by folder, named in requests, mixed in a batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from photon_ros.core.errors import CapacityError, InputError, ModelError
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.engine.config import EngineConfig
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.photon import Photon


def write_adapter(folder: Path, seed: int, rank: int = 2) -> Path:
    """Write an adapter that changes every query, key and value of the small model."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(2):
        key = f"base_model.model.text.blocks.{layer}.attn.qkv"
        tensors[f"{key}.lora_A.weight"] = torch.randn(rank, 32, generator=generator)
        tensors[f"{key}.lora_B.weight"] = torch.randn(96, rank, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture
def adapting(checkpoint: Checkpoint, tmp_path: Path) -> Iterator[Photon]:
    config = EngineConfig(max_rows=8, num_private_pages=64, num_lora_slots=2, max_lora_rank=4)
    with Photon(checkpoint, config=config) as photon:
        assert photon.add_adapter(write_adapter(tmp_path / "forklifts", 1)) == "forklifts"
        assert photon.add_adapter(write_adapter(tmp_path / "b", 2), "pallets") == "pallets"
        yield photon


def test_requests_with_different_adapters_on_one_frame_get_what_they_get_alone(
    adapting: Photon, frame: Frame
) -> None:
    requests = [
        Request("point", f"thing {n}", frame, max_objects=4, adapter=adapter)
        for n in range(4)
        for adapter in (None, "forklifts", "pallets")
    ]
    alone = [adapting.submit(request).result().detections for request in requests]
    together = [future.result().detections for future in [adapting.submit(r) for r in requests]]
    assert [[(d.x, d.y) for d in found] for found in together] == [
        [(d.x, d.y) for d in found] for found in alone
    ]
    by_adapter = [tuple((d.x, d.y) for found in alone[n::3] for d in found) for n in range(3)]
    assert len(set(by_adapter)) == 3


def test_an_adapter_that_was_not_added_lists_those_that_were(
    adapting: Photon, frame: Frame
) -> None:
    with pytest.raises(InputError, match="no adapter 'cranes'; there are: forklifts, pallets"):
        adapting.submit(Request("point", "cup", frame, adapter="cranes"))


def test_an_engine_without_slots_says_so_when_an_adapter_is_added(
    photon: Photon, tmp_path: Path
) -> None:
    with pytest.raises(CapacityError, match="no LoRA slots"):
        photon.add_adapter(write_adapter(tmp_path / "a", 1))


def test_an_adapter_of_too_great_a_rank_is_refused(adapting: Photon, tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="rank 5; slots hold 4"):
        adapting.add_adapter(write_adapter(tmp_path / "wide", 1, rank=5))


def test_a_folder_that_is_no_adapter_is_refused(adapting: Photon, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a PEFT folder"):
        adapting.add_adapter(tmp_path)
