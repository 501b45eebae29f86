"""A request is checked when it is made, before anybody spends time on it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from photon_ros.core.errors import InputError
from photon_ros.core.request import (
    MAX_CROPS,
    MAX_OBJECTS,
    MAX_TEMPERATURE,
    MAX_TOKENS,
    Request,
)


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
        ({"temperature": -0.1}, "temperature must be from 0 to"),
        ({"temperature": math.nan}, "temperature must be from 0 to"),
        ({"temperature": math.inf}, "temperature must be from 0 to"),
        ({"temperature": 1e39}, "temperature must be from 0 to"),
        ({"temperature": "warm"}, "temperature must be a number, got 'warm'"),
        ({"top_p": math.nan}, r"top_p must be in \(0, 1\]"),
        ({"top_p": None}, "top_p must be a number, got None"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"max_objects": 2.5}, "max_objects must be a whole number, got 2.5"),
        ({"max_tokens": "3"}, "max_tokens must be a whole number, got '3'"),
        ({"max_tokens": True}, "max_tokens must be a whole number, got True"),
        ({"max_crops": 1.0}, "max_crops must be a whole number, got 1.0"),
        ({"deadline_s": math.nan}, "deadline_s must be a time, got nan"),
        ({"deadline_s": "soon"}, "deadline_s must be a number, got 'soon'"),
        ({"frame": np.zeros((4, 4, 3), np.uint8)}, "frame must be a Frame or None, got ndarray"),
        ({"spatial_refs": (("a", "b"),)}, "a spatial reference must be a number, got 'a'"),
        ({"spatial_refs": 5}, "spatial_refs must be a list of points and boxes, got 5"),
        ({"spatial_refs": None}, "spatial_refs must be a list of points and boxes, got None"),
        ({"spatial_refs": "ab"}, "spatial_refs must be a list of points and boxes, got 'ab'"),
        ({"spatial_refs": (0.1, 0.2)}, r"a spatial reference is \(x, y\) or .*, got 0.1"),
        ({"spatial_refs": ["ab"]}, r"a spatial reference is \(x, y\) or .*, got 'ab'"),
        ({"adapter": []}, r"adapter must be the name of one or None, got \[\]"),
        ({"reasoning": "no"}, "reasoning must be True or False, got 'no'"),
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


@pytest.mark.parametrize(("skill", "prompt"), [("query", 3), ("query", None), (None, "what?")])
def test_a_skill_and_a_prompt_are_strings(skill: object, prompt: object) -> None:
    with pytest.raises(InputError, match=r"must be a string, got (3|None)"):
        Request(skill, prompt)  # type: ignore[arg-type]


def test_numbers_of_any_kind_are_taken() -> None:
    request = Request(
        "query",
        "what?",
        max_tokens=np.int64(5),
        max_crops=np.uint8(0),
        temperature=np.float32(0.5),
        top_p=1,
        seed=2**200,
        deadline_s=math.inf,
        spatial_refs=((0, np.float64(1)),),
    )
    assert (request.max_tokens, request.temperature) == (5, 0.5)
    assert Request("query", "what?", temperature=MAX_TEMPERATURE).temperature == MAX_TEMPERATURE


def test_references_may_be_any_sequences_and_the_request_can_still_be_a_key() -> None:
    request = Request("query", "which?", spatial_refs=[[0.5, 0.25], np.array([0.0, 0.0, 1.0, 1.0])])
    assert request.spatial_refs == ((0.5, 0.25), (0.0, 0.0, 1.0, 1.0))
    assert request in {request}
