"""From whatever names a model to the model: the embedded one, a folder, or a hub id."""

from __future__ import annotations

import os

import torch

from photon_ros.core.errors import ModelError
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
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(f"model must be nano, a folder or an id on the hub, got {model!r}")
    name = os.fspath(model)
    if not isinstance(revision, str | None):
        raise ModelError(f"revision must be a commit, tag or branch, got {revision!r}")
    if not name.strip():
        raise ModelError("the model's name is empty: give nano, a folder or an id on the hub")
    if name == EMBEDDED:
        if revision is not None:
            raise ModelError(f"nano is not on a hub, so it has no revision {revision!r}")
        return load_nano(device=device, dtype=dtype)
    try:
        found = locate(model, revision)
    except OSError as error:  # such as a name that the file system finds too long
        raise ModelError(f"model {name} cannot be opened: {error.strerror or error}") from error
    return load_checkpoint(found.folder, device=device, dtype=dtype, tokenizer=found.tokenizer)
