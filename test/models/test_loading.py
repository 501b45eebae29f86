"""Names of models that cannot name one."""

from __future__ import annotations

from pathlib import Path

import pytest

from photon_ros.core.errors import ModelError
from photon_ros.models.loading import load_model


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_said_to_be_empty(name: str) -> None:
    with pytest.raises(ModelError, match="the model's name is empty: give nano, a folder or"):
        load_model(name)


@pytest.mark.parametrize("name", ["n" * 300, Path("/") / ("n" * 300), f"owner/{'n' * 300}"])
def test_a_name_too_long_for_the_file_system_is_a_model_error(name: str | Path) -> None:
    with pytest.raises(ModelError, match="n" * 300):
        load_model(name)
