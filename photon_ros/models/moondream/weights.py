"""Weights from disk: safetensors files only, read through memory maps.

Each part of a model (a block, a head) is read through a map of its own, which goes as soon as
nothing of the part is in it any more. So converting, moving or rearranging weights never keeps
more of the file in memory than one part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from photon_ros.core.errors import ModelError
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.key_names import canonical_name, refuse_unsupported
from photon_ros.models.moondream.model import MoondreamModel

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_NUM_NAMED = 5  # missing tensors that an error spells out
_SMALL_BYTES = 1 << 16
_PART = re.compile(r"\w+\.blocks\.\d+")


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where one tensor is."""

    file: Path
    name: str
    transposed: bool


class WeightFiles:
    """The tensors of a checkpoint by their name here, wherever and however they are stored."""

    def __init__(self, path: Path) -> None:
        """Open ``path``: a folder, or one .safetensors file.

        Raises:
            ModelError: there are no weights, or they are unreadable, of an unsupported kind or
                ambiguous.
        """
        self.path = path
        self._handles: dict[Path, Any] = {}
        self._stored: dict[str, _Stored] = {}
        for file in find_weight_files(path):
            self._handles[file] = _open(file)
            names = list(self._handles[file].keys())
            refuse_unsupported(names, str(file))
            for name in names:
                self._add(file, name)

    def _add(self, file: Path, name: str) -> None:
        canonical, transposed = canonical_name(name)
        if canonical in self._stored:
            first = self._stored[canonical]
            raise ModelError(
                f"{self.path} holds the tensor {canonical} twice: as {first.name} in "
                f"{first.file.name} and as {name} in {file.name}"
            )
        self._stored[canonical] = _Stored(file, name, transposed)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def names(self) -> list[str]:
        """Return the names here of all tensors."""
        return list(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it."""
        stored = self._stored[name]
        shape = tuple(self._handles[stored.file].get_slice(stored.name).get_shape())
        return shape[::-1] if stored.transposed else shape

    def read(
        self, names: Sequence[str], device: torch.device, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Return tensors by name; on the CPU and in their stored type they stay memory mapped."""
        handles: dict[Path, Any] = {}
        tensors = {}
        for name in names:
            stored = self._stored[name]
            if stored.file not in handles:
                handles[stored.file] = _open(stored.file)
            tensor = _tensor(handles[stored.file], stored)
            if tensor.nbytes < _SMALL_BYTES:  # not worth a whole part's map
                tensor = tensor.clone()
            tensors[name] = tensor.to(device=device, dtype=dtype)
        return tensors


def _tensor(handle: Any, stored: _Stored) -> Tensor:
    try:
        tensor: Tensor = handle.get_tensor(stored.name)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{stored.file}: cannot read {stored.name}: {error}") from error
    if not tensor.is_floating_point():
        raise ModelError(f"{stored.file}: {stored.name} is {tensor.dtype}, not a float type")
    return tensor.t().contiguous() if stored.transposed else tensor


def find_weight_files(path: Path) -> list[Path]:
    """Return the files that hold the weights of ``path``: a folder, or one .safetensors file."""
    if path.is_file():
        if path.suffix != ".safetensors":
            raise ModelError(f"{path}: weights must be a .safetensors file{_pickle_note([path])}")
        return [path]
    if not path.is_dir():
        raise ModelError(f"no model at {path}: neither a folder nor a .safetensors file")
    if (path / SINGLE_FILE).is_file():
        return [path / SINGLE_FILE]
    if (path / INDEX_FILE).is_file():
        return _shards(path / INDEX_FILE)
    others = sorted(path.glob("*.safetensors"))
    if len(others) == 1:
        return others
    if others:
        names = ", ".join(file.name for file in others)
        raise ModelError(f"{path} holds several weight files ({names}) but no {INDEX_FILE}")
    raise ModelError(
        f"no weights in {path}: looked for {SINGLE_FILE}, {INDEX_FILE} and *.safetensors"
        f"{_pickle_note(sorted(path.iterdir()))}"
    )


def _pickle_note(files: list[Path]) -> str:
    names = [file.name for file in files if file.suffix in _PICKLE_SUFFIXES]
    if not names:
        return ""
    return (
        f"; {', '.join(names)} can run code when opened and is not read: convert it to safetensors"
    )


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: not an index of weight files ({error!r})") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"{index}: {name!r} is not a file name in the same folder")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing or not names:
        raise ModelError(f"{index} names files that are not there: {', '.join(missing) or 'none'}")
    return [index.parent / name for name in names]


def _open(file: Path) -> Any:
    if file.stat().st_size == 0:
        raise ModelError(f"{file} is empty (0 bytes)")
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file} is not a complete safetensors file: {error}") from error


def load_model(
    config: MoondreamConfig, files: WeightFiles, device: torch.device, dtype: torch.dtype
) -> MoondreamModel:
    """Build a frozen model of ``config`` with the weights of ``files``.

    Raises:
        ModelError: a tensor is missing or of the wrong shape. Tensors that the model does not
            have are ignored.
    """
    with torch.device("meta"):
        model = MoondreamModel(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    missing = [name for name in expected if name not in files]
    if missing:
        named = ", ".join(missing[:_NUM_NAMED])
        more = f" and {len(missing) - _NUM_NAMED} more" if len(missing) > _NUM_NAMED else ""
        raise ModelError(
            f"{files.path} lacks {len(missing)} of {len(expected)} tensors: {named}{more}"
        )
    for name, shape in expected.items():
        if files.shape(name) != shape:
            raise ModelError(
                f"{files.path}: {name} must have shape {shape}, found {files.shape(name)}"
            )
    for names in _parts(expected):
        model.load_state_dict(files.read(names, device, dtype), assign=True, strict=False)
    model.reset_tables(device)
    return model.freeze()


def _parts(names: Iterable[str]) -> list[list[str]]:
    """Return the names by the part of the model that they belong to."""
    parts: dict[str, list[str]] = {}
    for name in names:
        part = _PART.match(name)
        parts.setdefault(name if part is None else part.group(), []).append(name)
    return list(parts.values())
