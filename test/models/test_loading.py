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


@pytest.mark.parametrize("name", [5, None, b"nano", ["nano"]])
def test_what_is_no_name_is_refused(name: object) -> None:
    with pytest.raises(ModelError, match="model must be nano, a folder or an id on the hub, got "):
        load_model(name)  # type: ignore[arg-type]


def test_the_embedded_model_has_no_revisions() -> None:
    with pytest.raises(ModelError, match="nano is not on a hub, so it has no revision 'x y'"):
        load_model("nano", revision="x y")


def test_a_revision_is_a_word() -> None:
    with pytest.raises(ModelError, match="revision must be a commit, tag or branch, got 5"):
        load_model("owner/model", revision=5)  # type: ignore[arg-type]
