"""From whatever names a model to the model: the embedded one, a folder, or a hub id."""

from __future__ import annotations

import os

import torch

from photon_ros.models.moondream.checkpoint import Checkpoint, load_checkpoint
from photon_ros.models.moondream.hub import locate
from photon_ros.models.nano import load_nano

EMBEDDED = "nano"


def load_model(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = torch.float32,
) -> Checkpoint:
    """Load a model by name.

    Args:
        model: "nano", a folder with a checkpoint of the family, or its id on the hub.
        revision: commit, tag or branch of a hub id.
        device: where the weights go.
        dtype: what they are converted to.

    Raises:
        ModelError: nothing can be loaded from there; the message says what was looked for.
    """
    if os.fspath(model) == EMBEDDED:
        return load_nano(device=device, dtype=dtype)
    found = locate(model, revision)
    return load_checkpoint(found.folder, device=device, dtype=dtype, tokenizer=found.tokenizer)
