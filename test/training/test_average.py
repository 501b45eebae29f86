"""The mean of several weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from photon_ros.models.nano import load_nano
from photon_ros.models.nano.checkpoint import WEIGHTS
from training.architecture import CONFIG
from training.average import averaged, main
from training.export import export
from training.network import Network


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("others")
    torch.manual_seed(4)
    export(Network(CONFIG), folder)
    return folder


def test_every_number_is_the_mean() -> None:
    parts = [{"a": torch.tensor([1.0, 4.0]), "b": torch.tensor([[k]])} for k in (2.0, 4.0, 9.0)]
    mean = averaged(parts)
    assert mean["a"].tolist() == [1.0, 4.0]
    assert mean["b"].tolist() == [[5.0]]


def test_what_is_written_loads_and_lies_in_the_middle(
    others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(WEIGHTS), str(others), "--out", str(tmp_path)]) == 0
    assert "sha256" in capsys.readouterr().out
    first, second, mean = (
        load_file(folder / "model.safetensors") for folder in (WEIGHTS, others, tmp_path)
    )
    assert first.keys() == mean.keys()
    for key, value in mean.items():
        expected = ((first[key].float() + second[key].float()) / 2).half()
        assert torch.equal(value, expected), key
    assert load_nano(folder=tmp_path).name == "nano"


def test_one_set_of_weights_stays_what_it_is(tmp_path: Path) -> None:
    assert main([str(WEIGHTS), "--out", str(tmp_path)]) == 0
    before = (WEIGHTS / "model.safetensors").read_bytes()
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_folder_without_weights_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(WEIGHTS), str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "average: no weights in" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
