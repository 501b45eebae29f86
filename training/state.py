"""What a run goes on from: its state, exactly where it stopped, or weights of another one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from photon_ros.core.errors import InputError
from photon_ros.models.moondream.weights import WeightFiles, load_model
from training.architecture import CONFIG

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
    """Return exported weights by the names of a network's state dict, float32.

    Raises:
        InputError: ``folder`` holds no weights, damaged ones, or those of another model.
    """
    files = WeightFiles(folder)
    state = load_model(CONFIG, files, torch.device("cpu"), torch.float32).state_dict()
    foreign = sorted(set(files.names()) - state.keys())
    if foreign:
        raise InputError(
            f"{folder} holds another model: nano has no {foreign[0]!r}, one of {len(foreign)}"
        )
    return dict(state)
