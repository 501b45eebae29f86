"""A request is checked when it is made, before anybody spends time on it."""

from __future__ import annotations

import pytest

from photon_ros.core.errors import InputError
from photon_ros.core.request import MAX_CROPS, MAX_OBJECTS, MAX_TOKENS, Request


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("max_objects", 1, MAX_OBJECTS), ("max_tokens", 1, MAX_TOKENS), ("max_crops", 0, MAX_CROPS)],
)
def test_counts_are_taken_up_to_their_bounds_and_no_further(
    name: str, least: int, most: int
) -> None:
    for value in (least, most):
        assert getattr(Request("detect", "cup", **{name: value}), name) == value
    for value in (least - 1, most + 1, -(10**9), 10**9):
        with pytest.raises(InputError, match=f"{name} must be from {least} to {most}, got {value}"):
            Request("detect", "cup", **{name: value})


def test_no_budget_of_crops_is_the_models_own() -> None:
    assert Request("detect", "cup").max_crops is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature must be >= 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\]"),
        ({"top_p": 1.5}, r"top_p must be in \(0, 1\]"),
        ({"spatial_refs": ((0.5,),)}, "a spatial reference is"),
        ({"spatial_refs": ((0.5, 1.5),)}, "normalised"),
        ({"spatial_refs": ((float("nan"), 0.5),)}, "normalised"),
        ({"spatial_refs": ((0.5, 0.1, 0.2, 0.9),)}, "minimum above its maximum"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Request("query", "what?", **arguments)
