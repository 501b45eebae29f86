"""A golden folder: a small checkpoint, pictures, and the exact answers of the reference.

    golden.json            "images": [{"id", "file", ...}], "cases": [{"id", "skill", "image",
                           "object", "max_objects", "prompt_token_ids", "expected": {...}}]
    expected.safetensors   tensors named <case>.<what> and <image>.<what>; may be absent
    model.safetensors, tokenizer.json

Only point and detect cases are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from photon_ros.cli.images import load_image
from photon_ros.core.errors import InputError
from photon_ros.pixels import Pixels

SKILLS: Final = ("point", "detect")
_DEFAULT_MAX_OBJECTS: Final = 50


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One question and what the reference answered.

    Attributes:
        facts: the picture's record: tiling, digests, which rows of its tensors are kept.
        expected: objects, n, ended_by, steps, decode_forwards.
        tensors: the case's and the picture's tensors by their name without the prefix.
    """

    name: str
    skill: str
    prompt: str
    max_objects: int
    prompt_ids: tuple[int, ...]
    image: Pixels
    facts: Mapping[str, Any]
    expected: Mapping[str, Any]
    tensors: Mapping[str, NDArray[Any]]


def read_golden(folder: Path) -> list[GoldenCase]:
    """Return the point and detect cases; raise InputError naming what is wrong."""
    path = folder / "golden.json"
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"golden folder: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"golden folder: {path} is not JSON: {error}") from error
    tensors = _tensors(folder / "expected.safetensors")
    try:
        records = {record["id"]: record for record in document["images"]}
        chosen = [case for case in document["cases"] if case["skill"] in SKILLS]
        used = {case["image"] for case in chosen}
        images = {name: load_image(folder / records[name]["file"]) for name in used}
        cases = [
            _case(case, images[case["image"]], records[case["image"]], tensors) for case in chosen
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"golden folder: {path} lacks something: {type(error).__name__} {error}"
        ) from error
    if not cases:
        raise InputError(f"golden folder: {path} has no point or detect case")
    return cases


def _case(
    case: Mapping[str, Any],
    image: Pixels,
    facts: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
) -> GoldenCase:
    own = {
        name.removeprefix(prefix): tensor
        for prefix in (f"{case['id']}.", f"{case['image']}.")
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    max_objects = case.get("max_objects")
    return GoldenCase(
        name=case["id"],
        skill=case["skill"],
        prompt=case["object"],
        max_objects=_DEFAULT_MAX_OBJECTS if max_objects is None else max_objects,
        prompt_ids=tuple(case["prompt_token_ids"]),
        image=image,
        facts=facts,
        expected=case["expected"],
        tensors=own,
    )


def _tensors(path: Path) -> dict[str, NDArray[Any]]:
    if not path.exists():
        return {}
    try:
        with safe_open(path, "np") as file:
            return {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InputError(f"golden folder: {path} cannot be read: {error}") from error
