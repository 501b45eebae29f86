"""A golden folder: a small checkpoint, pictures, and the exact answers of the reference.

golden.json            "images": [{"id", "file", ...}], "cases": [{"id", "skill", "image", what
                       was asked, "prompt_token_ids", "expected": {...}}]
expected.safetensors   tensors named <case>.<what> and <image>.<what>; may be absent
model.safetensors, tokenizer.json
segment.json           outlines as data, see golden_segment.py; may be absent
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

from photon_ros.core.errors import InputError
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.picture_files import load_image

_SPATIAL: Final = ("point", "detect")
# Where a case keeps what was asked.
_PROMPT_KEYS: Final = {
    "point": "object", "detect": "object", "query": "question", "caption": "length",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One question and what the reference answered.

    Attributes:
        request: the question; cases about one picture share its Frame.
        facts: the picture's record: tiling, digests, which rows of its tensors are kept; None
            for a question about no picture.
        expected: what the reference answered, and how.
        tensors: the case's and the picture's tensors by their name without the prefix.
    """

    name: str
    request: Request
    prompt_ids: tuple[int, ...]
    facts: Mapping[str, Any] | None
    expected: Mapping[str, Any]
    tensors: Mapping[str, NDArray[Any]]

    @property
    def is_spatial(self) -> bool:
        """True when the answer is objects, False when it is words."""
        return self.request.skill in _SPATIAL

    @property
    def question(self) -> str:
        """The case in a few words."""
        where = "no image" if self.facts is None else self.facts["id"]
        return f"{self.request.skill} {self.request.prompt!r} on {where}"


def read_json(path: Path) -> Any:
    """Return what a file of a golden folder holds; raise InputError naming what is wrong."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"golden folder: {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"golden folder: {path} is not JSON: {error}") from error


def read_golden(folder: Path) -> list[GoldenCase]:
    """Return the cases; raise InputError naming what is wrong."""
    path = folder / "golden.json"
    document = read_json(path)
    tensors = _tensors(folder / "expected.safetensors")
    try:
        records = {record["id"]: record for record in document["images"]}
        used = {case["image"] for case in document["cases"]} - {None}
        frames = {name: Frame(load_image(folder / records[name]["file"])) for name in used}
        cases = [
            _case(case, frames.get(case["image"]), records.get(case["image"]), tensors)
            for case in document["cases"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"golden folder: {path} lacks something: {type(error).__name__} {error}"
        ) from error
    if not cases:
        raise InputError(f"golden folder: {path} has no case")
    return cases


def _case(
    case: Mapping[str, Any],
    frame: Frame | None,
    facts: Mapping[str, Any] | None,
    tensors: Mapping[str, NDArray[Any]],
) -> GoldenCase:
    own = {
        name.removeprefix(prefix): tensor
        for prefix in (f"{case['id']}.", f"{case['image']}.")
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    skill = case["skill"]
    if skill not in _PROMPT_KEYS:
        raise InputError(f"golden folder: {case['id']} asks for {skill!r}, which cannot be checked")
    limits = {key: case[key] for key in ("max_objects", "max_tokens") if case.get(key) is not None}
    return GoldenCase(
        name=case["id"],
        request=Request(
            skill,
            case[_PROMPT_KEYS[skill]],
            frame,
            reasoning=bool(case.get("reasoning")),
            spatial_refs=tuple(tuple(ref) for ref in case.get("spatial_refs") or ()),
            **limits,
        ),
        prompt_ids=tuple(case["prompt_token_ids"]),
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
