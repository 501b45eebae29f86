"""What loading keeps in memory, on a checkpoint of half a gigabyte with random weights."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from photon_ros.models.moondream.builtin import BUILTIN
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.model import MoondreamModel

REPOSITORY = Path(__file__).resolve().parents[2]

# The peak while loading, and after every weight was read once, above what the process needed
# before; a file's mapped pages count like any others.
MEASURE = """
import sys, torch
from photon_ros.models.moondream.checkpoint import load_checkpoint
from photon_ros.models.moondream.model import MoondreamModel

def peak_kib(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

class NoTokenizer:
    encode = decode = None

folder, small, dtype = sys.argv[1:]
load_checkpoint(small, dtype=dtype, tokenizer=NoTokenizer())  # what the libraries take once
before = peak_kib("VmRSS")
model = load_checkpoint(folder, dtype=dtype, tokenizer=NoTokenizer()).model
loaded = peak_kib("VmHWM") - before
total = sum(float(tensor.flatten()[::64].sum()) for tensor in model.state_dict().values()
            if tensor.is_contiguous())
print(loaded, peak_kib("VmHWM") - before, total)
"""


def write(folder: Path, config: dict[str, Any]) -> int:
    """Write a checkpoint of random bfloat16 weights; return the file's size in bytes."""
    folder.mkdir()
    with torch.device("meta"):
        model = MoondreamModel(MoondreamConfig.from_dict(config))
    noise = torch.randn(1 << 16).to(torch.bfloat16) * 0.02
    tensors = {
        f"model.{name}": noise.repeat(value.numel() // len(noise) + 1)[: value.numel()]
        .view(value.shape)
        .contiguous()
        for name, value in model.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return (folder / "model.safetensors").stat().st_size


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_loading_needs_little_more_memory_than_the_file_is_large(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    config = {name: copy.deepcopy(part) for name, part in BUILTIN["moondream-0.5b"].items()}
    config["text"]["n_layers"], config["vision"]["enc_n_layers"] = 6, 2
    size_kib = write(tmp_path / "large", config) / 1024
    write(tmp_path / "small", tiny)
    assert size_kib > 400_000
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path / "large", tmp_path / "small", "bfloat16"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
    )
    loaded_kib, used_kib, _ = map(float, done.stdout.split())
    assert loaded_kib < 1.25 * size_kib
    assert used_kib < 1.25 * size_kib
    # Not because nothing was read: the weights were.
    assert used_kib > 0.7 * size_kib
