"""The paths baked into the wheels' CMake files are replaced, and only they."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fix_ros_wheels.py"
BAKED = """\
set_target_properties(std_msgs::std_msgs__rosidl_generator_py PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "{python};{numpy}"
  INTERFACE_LINK_LIBRARIES "Python3::Module;${{_IMPORT_PREFIX}}/lib/libstd_msgs.so"
)
"""
OLD_PYTHON = "/opt/python/cp311-cp311/include/python3.11"
OLD_NUMPY = "/opt/python/cp311-cp311/lib/python3.11/site-packages/numpy/_core/include"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    for package in ("std_msgs", "sensor_msgs"):
        folder = tmp_path / "share" / package / "cmake"
        folder.mkdir(parents=True)
        name = f"export_{package}__rosidl_generator_pyExport.cmake"
        (folder / name).write_text(BAKED.format(python=OLD_PYTHON, numpy=OLD_NUMPY))
        (folder / "other.cmake").write_text(OLD_PYTHON)
    return tmp_path


def exported(prefix: Path) -> list[str]:
    return [path.read_text() for path in sorted(prefix.glob("share/*/cmake/export_*.cmake"))]


def test_both_folders_are_those_of_this_interpreter(prefix: Path) -> None:
    result = run(str(prefix))
    assert result.returncode == 0
    assert result.stdout == "2 files now name this interpreter\n"
    wanted = BAKED.format(python=sysconfig.get_path("include"), numpy=numpy.get_include())
    assert exported(prefix) == [wanted, wanted]
    other = prefix / "share" / "std_msgs" / "cmake" / "other.cmake"
    assert other.read_text() == OLD_PYTHON


def test_a_second_run_changes_nothing(prefix: Path) -> None:
    run(str(prefix))
    before = exported(prefix)
    assert run(str(prefix)).stdout == "0 files now name this interpreter\n"
    assert exported(prefix) == before


@pytest.mark.parametrize("arguments", [(), ("nowhere",), ("a", "b")])
def test_anything_but_a_prefix_is_refused(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert "usage" in result.stderr
