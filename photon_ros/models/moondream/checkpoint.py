"""A model folder becomes a model, and what is needed to ask it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from photon_ros.core.errors import ModelError
from photon_ros.core.prompting import Prompting, Tokenizer
from photon_ros.engine.interfaces import FrameCrops, Model
from photon_ros.models.moondream.builtin import (
    END_OF_TEXT,
    KNOWN_BY_SKILL,
    builtin_config,
    recognise,
)
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.hub import takes_new_tokenizer
from photon_ros.models.moondream.image import ResizeMethod, cut
from photon_ros.models.moondream.region import coord_values, size_values
from photon_ros.models.moondream.templates import build_templates
from photon_ros.models.moondream.tokenizer import FileTokenizer
from photon_ros.models.moondream.weights import WeightFiles, load_model

TOKENIZER_FILE = "tokenizer.json"
# The second one lets a folder of reference outputs be opened like a model.
CONFIG_FILES = ("config.json", "golden.json")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, eq=False, slots=True)
class Checkpoint:
    """A loaded model, ready to be asked.

    Attributes:
        resize: how pictures are resampled for it unless somebody chooses otherwise.
    """

    model: Model
    prompting: Prompting
    config: MoondreamConfig
    name: str
    resize: ResizeMethod = "exact"

    def cut(self, image: NDArray[np.uint8], max_crops: int | None = None) -> FrameCrops:
        """Cut a picture for this model; see :func:`photon_ros.models.moondream.image.cut`."""
        return cut(image, self.config.vision, max_crops, self.resize)


def load_checkpoint(
    path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype = torch.float32,
    tokenizer: Tokenizer | None = None,
) -> Checkpoint:
    """Open a model folder.

    The configuration is that of ``config.json`` (or of ``golden.json``); without one it is that
    of the released checkpoint which the weights' sizes belong to.

    Args:
        path: folder with safetensors weights and a ``tokenizer.json``.
        device: where the weights go.
        dtype: what they are converted to: float32, bfloat16 or float16, or its name.
        tokenizer: takes the place of the folder's own.

    Raises:
        ModelError: anything that keeps the model from being loaded, named.
    """
    weights_dtype = _dtype(dtype)
    folder = Path(path)
    files = WeightFiles(folder)
    if folder.is_file():
        folder = folder.parent
    own_tokenizer = FileTokenizer(folder / TOKENIZER_FILE) if tokenizer is None else None
    config, name = _find_config(folder, files, own_tokenizer)
    if own_tokenizer is not None:
        _check_tokenizer(own_tokenizer, config, folder / TOKENIZER_FILE)
    prompting = build_prompting(config, name, tokenizer or own_tokenizer)  # type: ignore[arg-type]
    model = load_model(config, files, _device(device), weights_dtype)
    return Checkpoint(model=model, prompting=prompting, config=config, name=name)


def build_prompting(config: MoondreamConfig, name: str, tokenizer: Tokenizer) -> Prompting:
    """Return what a skill needs to know of a model.

    Raises:
        ModelError: a prompt template is of another form, or holds an id outside the vocabulary.
    """
    ids = config.tokenizer
    coord_id, size_id = ids.spatial_ids
    return Prompting(
        model_name=name,
        tokenizer=tokenizer,
        templates=build_templates(ids, config.text.vocab_size),
        bos_id=ids.bos_id,
        eos_id=ids.eos_id,
        coord_id=coord_id,
        size_id=size_id,
        max_context=config.text.max_context,
        prefix_len=config.prefix_len,
        coord_values=coord_values(config.region.num_coord_bins),
        size_values=size_values(config.region.num_size_bins),
        has_coord_token=ids.has_coord_token,
        answer_id=ids.answer_id,
        thinking_id=ids.thinking_id,
        start_ground_id=ids.start_ground_points_id,
        end_ground_id=ids.end_ground_id,
        peers=KNOWN_BY_SKILL,
    )


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    chosen = DTYPES.get(str(dtype).removeprefix("torch."))
    if chosen is None:
        raise ModelError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype}")
    return chosen


def _device(device: str | torch.device) -> torch.device:
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"device {str(device)!r} cannot be used: {reason}") from error
    return chosen


def _find_config(
    folder: Path, files: WeightFiles, tokenizer: FileTokenizer | None
) -> tuple[MoondreamConfig, str]:
    """Return the configuration of ``folder`` and the model's name."""
    for file in (folder / name for name in CONFIG_FILES):
        data = _read_json(file) if file.is_file() else {}
        stated = data.get("name")
        name = stated if isinstance(stated, str) and stated else folder.resolve().name
        if isinstance(data.get("builtin"), str):
            return builtin_config(data["builtin"]), data["builtin"]
        for layer in (data, data.get("config")):
            # A folder from a hub has a config.json that says nothing of the architecture.
            if isinstance(layer, Mapping) and {"text", "vision"} & layer.keys():
                try:
                    return MoondreamConfig.from_dict(layer), name
                except ModelError as error:
                    raise ModelError(f"{file}: {error}") from error
    shapes = {name: files.shape(name) for name in files.names()}
    end_of_text_id = None if tokenizer is None else tokenizer.id_of(END_OF_TEXT)
    try:
        name = recognise(shapes, end_of_text_id, takes_new_tokenizer(folder))
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error
    return builtin_config(name), name


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} is not readable JSON: {error}") from error
    if not isinstance(data, Mapping):
        raise ModelError(f"{file} must hold a mapping, got {type(data).__name__}")
    return data


def _check_tokenizer(tokenizer: FileTokenizer, config: MoondreamConfig, file: Path) -> None:
    """Refuse a tokenizer that belongs to another model."""
    if tokenizer.num_ids > config.text.vocab_size:
        raise ModelError(
            f"{file} has ids up to {tokenizer.num_ids - 1}, but the model's vocabulary "
            f"has {config.text.vocab_size}"
        )
    end_of_text_id = tokenizer.id_of(END_OF_TEXT)
    if end_of_text_id is not None and end_of_text_id != config.tokenizer.eos_id:
        raise ModelError(
            f"{file} has {END_OF_TEXT} at {end_of_text_id}, but the model ends its answers "
            f"with {config.tokenizer.eos_id}: it is another model's tokenizer"
        )
