"""Outlines as data: a stream of tokens, and the path, polygon and mask that it means.

    segment.json   "cases": [{"id", "width", "height", "stream": [{"t": "coord", "bin"} |
                   {"t": "size", "w_bin", "h_bin"} | {"t": "text", "id"} | {"t": "eos"}],
                   "path_tokens", "path", "parse_error", "bbox", "polygons_unit", "mask"}]
    segment/*.png  the masks

Paths and their pieces must be equal, boxes to 1e-9, points of polygons to 1e-5; masks must
overlap by 97 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from photon_ros.cli.golden_folder import read_json
from photon_ros.core.errors import InputError
from photon_ros.core.mask import mask_of
from photon_ros.core.prompting import Prompting
from photon_ros.core.result import Outline
from photon_ros.engine.interfaces import SampledToken
from photon_ros.picture_files import load_image
from photon_ros.skills.outlined import polygon_of
from photon_ros.skills.segment import SegmentState
from photon_ros.skills.svg_path import rings_of

BOX_ATOL: Final = 1e-9
POLYGON_ATOL: Final = 1e-5
MIN_OVERLAP: Final = 0.97
MIN_MASK_PX: Final = 50  # a smaller mask is mostly edge
MAX_TOKENS: Final = 768


def check_outlines(folder: Path, prompting: Prompting) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each case, and what is wrong with it; no case without segment.json.

    Raises:
        InputError: segment.json or a mask cannot be read, or lacks something.
    """
    path = folder / "segment.json"
    if not path.exists():
        return
    document = read_json(path)
    try:
        for case in document["cases"]:
            yield case["id"], list(_problems(case, folder, prompting))
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"golden folder: {path} lacks something: {type(error).__name__} {error}"
        ) from error


def _problems(case: Mapping[str, Any], folder: Path, prompting: Prompting) -> Iterator[str]:
    state = SegmentState(prompting, "", MAX_TOKENS)
    has_ended = False
    for token in case["stream"]:
        has_ended = state.advance(_token(token, prompting))
    if not has_ended:
        yield "the end token did not end the answer"
    outline = state.outline()
    if state.pieces != case["path_tokens"]:
        yield f"pieces {state.pieces}, expected {case['path_tokens']}"
    if outline.path != case["path"]:
        yield f"path {outline.path!r}, expected {case['path']!r}"
    if bool(outline.parse_error) != case["parse_error"]:
        yield f"parse error {outline.parse_error!r}, expected {case['parse_error']}"
    yield from _check_box(outline, case["bbox"])
    if case.get("polygons_unit") is not None:
        yield from _check_polygon(outline, case["polygons_unit"])
    if case.get("mask") is not None and case["mask"]["area_px"] >= MIN_MASK_PX:
        yield from _check_mask(outline, case, folder / case["mask"]["file"])


def _token(token: Mapping[str, Any], prompting: Prompting) -> SampledToken:
    if token["t"] == "coord":
        return SampledToken(prompting.coord_id, coord_bin=token["bin"])
    if token["t"] == "size":
        return SampledToken(prompting.size_id, size_bins=(token["w_bin"], token["h_bin"]))
    return SampledToken(token["id"] if token["t"] == "text" else prompting.eos_id)


def _check_box(outline: Outline, wanted: Mapping[str, float]) -> Iterator[str]:
    if outline.box is None:
        yield "no box"
        return
    for name, value in zip(("x_min", "y_min", "x_max", "y_max"), outline.box, strict=True):
        if abs(value - wanted[name]) > BOX_ATOL:
            yield f"{name} is {value:.12f}, expected {wanted[name]:.12f}"


def _check_polygon(outline: Outline, wanted: list[list[list[float]]]) -> Iterator[str]:
    rings = rings_of(outline.path)
    sizes, wanted_sizes = [len(ring) for ring in rings], [len(ring) for ring in wanted]
    if sizes != wanted_sizes:
        yield f"rings of {sizes} points, expected {wanted_sizes}"
        return
    for number, (ring, other) in enumerate(zip(rings, wanted, strict=True)):
        error = np.abs(np.asarray(ring) - np.asarray(other)).max()
        if not error <= POLYGON_ATOL:
            yield f"ring {number} is off by up to {error:.3g}"


def _check_mask(outline: Outline, case: Mapping[str, Any], file: Path) -> Iterator[str]:
    wanted = load_image(file)[:, :, 0] > 127
    mask = mask_of(polygon_of(outline), width_px=case["width"], height_px=case["height"])
    if mask.shape != wanted.shape:
        yield f"mask of shape {mask.shape}, expected {wanted.shape}"
        return
    overlap = np.sum(mask & wanted) / np.sum(mask | wanted)
    if overlap < MIN_OVERLAP:
        yield f"the masks overlap by {overlap:.3f}, expected at least {MIN_OVERLAP}"
