"""The sizes of an engine are checked when they are given, each by its name."""

from __future__ import annotations

from dataclasses import fields

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
