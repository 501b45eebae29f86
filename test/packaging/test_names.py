"""What ``import photon_ros`` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import photon_ros


def printed(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_or_its_core_loads_no_torch() -> None:
    program = "import sys, photon_ros; from photon_ros import Frame, Request, Result, PhotonError; "
    assert printed(program + "print('torch' in sys.modules)") == "False"


def test_photon_comes_from_the_package() -> None:
    program = "import photon_ros.photon as home; from photon_ros import Photon; "
    assert printed(program + "print(Photon is home.Photon)") == "True"


@pytest.mark.parametrize("name", photon_ros.__all__)
def test_every_name_is_there_and_listed(name: str) -> None:
    value = getattr(photon_ros, name)
    assert value is getattr(import_module(value.__module__), name)
    assert name in dir(photon_ros)
    assert name in photon_ros._HOMES


def test_another_name_is_missing_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'photon_ros' has no attribute 'Foton'"):
        _ = photon_ros.Foton
    with pytest.raises(ImportError, match="cannot import name 'Foton'"):
        exec("from photon_ros import Foton")


def test_a_package_that_is_missing_is_told_in_one_line() -> None:
    program = (
        "import sys\n"
        "sys.modules['safetensors'] = None\n"
        "from photon_ros.cli import main\n"
        "print(main(['detect', 'docs/scene.jpg', 'person']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "2\n", done.stderr
    assert "the Python package 'safetensors' is not installed" in done.stderr
    assert len(done.stderr.splitlines()) == 1
