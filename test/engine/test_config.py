"""The sizes of an engine are checked when they are given, each by its name."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from photon_ros.core.errors import InputError
from photon_ros.engine.config import EngineConfig

SIZES = [field.name for field in fields(EngineConfig) if isinstance(field.default, int)]
SIZES = [name for name in SIZES if not isinstance(getattr(EngineConfig(), name), bool)]


def test_every_whole_number_is_a_size() -> None:
    assert set(SIZES) == {
        "max_rows", "max_prefixes", "page_size", "num_private_pages", "max_prefixes_per_step",
        "num_lora_slots", "max_lora_rank",
    }  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_a_size_below_its_least_is_refused_and_the_least_is_taken(name: str) -> None:
    least = 0 if name == "num_lora_slots" else 1
    assert getattr(EngineConfig(**{name: least}), name) == least
    for value in (least - 1, -7):
        with pytest.raises(InputError, match=f"^{name} must be >= {least}, got {value}$"):
            EngineConfig(**{name: value})


@pytest.mark.parametrize("is_on", [True, False])
def test_a_mode_is_no_size(is_on: bool) -> None:
    config = EngineConfig(pipelined=is_on, hold_constrained=is_on)
    assert config.max_inflight_steps == (2 if is_on else 1)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [2.5, 2.0, True, "3", None, math.nan, math.inf])
def test_a_size_that_is_no_whole_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} must be a whole number, got "):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("name", ["pipelined", "hold_constrained"])
@pytest.mark.parametrize("value", [1, 0, "no", None])
def test_a_mode_is_on_or_off(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{name} must be True or False, got "):
        EngineConfig(**{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0, -1.0, 1e30])
def test_a_time_that_nobody_can_wait_for_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"^stall_warning_s must be > 0 and at most 1e"):
        EngineConfig(stall_warning_s=value)


def test_a_time_must_be_a_number() -> None:
    with pytest.raises(InputError, match=r"^stall_warning_s must be a number, got '10'"):
        EngineConfig(stall_warning_s="10")  # type: ignore[arg-type]
