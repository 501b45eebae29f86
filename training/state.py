"""The state of a run on disk: everything needed to go on exactly where it stopped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from photon_ros.core.errors import InputError

_NAME = "state.pt"


def has_state(folder: Path) -> bool:
    """Return True if a run was begun in ``folder``."""
    return (folder / _NAME).exists()


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Replace the state of a run; a crash while writing leaves the old one."""
    partial = folder / (_NAME + ".partial")
    torch.save(state, partial)
    os.replace(partial, folder / _NAME)


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state of a run.

    Raises:
        InputError: there is none in ``folder``.
    """
    if not has_state(folder):
        raise InputError(f"no run in {folder}: {_NAME} is missing")
    state: dict[str, Any] = torch.load(folder / _NAME, map_location="cpu", weights_only=True)
    return state


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return exported weights under the family's names.

    Raises:
        InputError: ``folder`` holds none, or a file that is not safetensors.
    """
    path = folder / "model.safetensors"
    if not path.exists():
        raise InputError(f"no weights in {folder}: {path.name} is missing")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
