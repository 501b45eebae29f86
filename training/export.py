"""Write what a trained network needs to be used: weights, config, tokenizer.

``python -m training.export --run runs/nano [--out photon_ros/models/nano/weights]``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import WhitespaceSplit

from photon_ros.models.nano import vocabulary
from training.architecture import CONFIG
from training.network import Network
from training.state import read_state

WEIGHTS = Path(__file__).resolve().parent.parent / "photon_ros" / "models" / "nano" / "weights"


def build_tokenizer() -> Tokenizer:
    """Return the word-level tokenizer of nano's closed vocabulary."""
    ids = vocabulary.special_tokens() | vocabulary.word_ids()
    tokenizer = Tokenizer(WordLevel(ids, unk_token=vocabulary.END))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(vocabulary.special_tokens()))
    return tokenizer


def export(network: Network, folder: Path) -> str:
    """Write model.safetensors (fp16), config.json and tokenizer.json; return the hash.

    Each file appears whole or not at all, so that a reader never sees half of one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.half().contiguous() for key, value in network.checkpoint().items()}
    partial = folder / "model.safetensors.partial"
    save_file(tensors, str(partial), metadata={"format": "pt"})
    partial.chmod(0o644)  # the library writes for the owner alone
    digest = hashlib.sha256(partial.read_bytes()).hexdigest()
    os.replace(partial, folder / "model.safetensors")
    _replace(
        folder / "config.json", json.dumps({"name": "nano"} | CONFIG.to_dict(), indent=2) + "\n"
    )
    _replace(folder / "tokenizer.json", build_tokenizer().to_str(pretty=True) + "\n")
    return digest


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def main() -> None:
    """Export the newest state of a run."""
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder to write to")
    arguments = parser.parse_args()
    network = Network(CONFIG)
    state = read_state(arguments.run)
    network.load_state_dict(state["network"])
    with torch.no_grad():
        digest = export(network, arguments.out)
    size_mb = (arguments.out / "model.safetensors").stat().st_size / 1e6
    print(f"step {state['step']}: {size_mb:.1f} MB, sha256 {digest}")


if __name__ == "__main__":
    main()
