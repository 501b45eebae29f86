"""The weights inside the package become a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from photon_ros.core.errors import ModelError
from photon_ros.models.moondream.checkpoint import TOKENIZER_FILE, Checkpoint, load_checkpoint
from photon_ros.models.nano.tokenizer import NanoTokenizer

WEIGHTS = Path(__file__).parent / "weights"


def load_nano(
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = torch.float32,
    folder: Path = WEIGHTS,
) -> Checkpoint:
    """Open the embedded model, or another training of it in ``folder``.

    Args:
        device: where the weights go.
        dtype: what the fp16 weights are converted to.
        folder: ``model.safetensors``, ``config.json`` and ``tokenizer.json``.

    Raises:
        ModelError: a file is missing or damaged, or the device cannot be used.
    """
    tokenizer = NanoTokenizer(folder / TOKENIZER_FILE)
    checkpoint = load_checkpoint(folder, device, dtype, tokenizer=tokenizer)
    vocab_size = checkpoint.config.text.vocab_size
    if tokenizer.num_ids > vocab_size:
        raise ModelError(
            f"{folder / TOKENIZER_FILE} has ids up to {tokenizer.num_ids - 1}, but the model's "
            f"vocabulary has {vocab_size}"
        )
    # Resampling exactly takes longer than a decode step, and nothing was found to be lost.
    return replace(checkpoint, resize="fast")
