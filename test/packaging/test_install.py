"""What pip and colcon install is complete, and runs without the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
from email import message_from_string
from pathlib import Path

import pytest

import photon_ros

ROOT = Path(__file__).parents[2]
WEIGHTS = "models/nano/weights"


def run(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


def source_files() -> set[str]:
    """Every file of the package that belongs into an installation."""
    package = ROOT / "photon_ros"
    return {
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def without_sources(**changes: str) -> dict[str, str]:
    """The environment of this process, the source tree taken off the Python path."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and Path(path).resolve() != ROOT]
    kept = [path for path in kept if not (Path(path) / "photon_ros").is_dir()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept), **changes}


def test_pip_installs_every_file_and_the_command(tmp_path: Path) -> None:
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    # A copy, so that nothing is built inside the source tree.
    copy = tmp_path / "source"
    copy.mkdir()
    for name in ("photon_ros", "setup.py", "pyproject.toml", "README.md"):
        result = run(["cp", "-r", str(ROOT / name), str(copy / name)])
        assert result.returncode == 0, result.stderr
    options = ["--no-build-isolation", "--target", str(target), str(copy)]
    result = run([*command, *options])
    assert result.returncode == 0, result.stderr
    package = target / "photon_ros"
    installed = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert source_files() <= installed
    assert any(name.startswith(WEIGHTS) for name in installed)
    environment = without_sources()
    environment["PYTHONPATH"] = str(target)
    script = target / "bin" / "photon-ros"
    result = run([sys.executable, str(script), "--help"], env=environment, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "detect" in result.stdout
    result = run([sys.executable, str(script), "--version"], env=environment, cwd=tmp_path)
    assert result.stdout == f"photon-ros {photon_ros.__version__}\n"
    (metadata,) = (
        message_from_string(path.read_text(encoding="utf-8"))
        for path in target.glob("photon_ros-*.dist-info/METADATA")
    )
    assert metadata["Version"] == photon_ros.__version__
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).strip().startswith("# photon_ros")
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert any(line.startswith("torch>=") for line in needed)
    assert not any("matplotlib" in line for line in needed), "only the trainer draws with it"


@pytest.mark.ros
@pytest.mark.timeout(600)
def test_colcon_installs_the_node_the_messages_and_the_data(tmp_path: Path) -> None:
    pytest.importorskip("rclpy")
    install = tmp_path / "install"
    result = run(
        [
            "colcon", "--log-base", str(tmp_path / "log"), "build",
            "--base-paths", str(ROOT), "--packages-select", "photon_ros",
            "--build-base", str(tmp_path / "build"), "--install-base", str(install),
            "--cmake-args", f"-DPython3_EXECUTABLE={sys.executable}", "-DBUILD_TESTING=OFF",
        ],
        cwd=tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    (package,) = install.glob("photon_ros/lib/python3*/site-packages/photon_ros")
    installed = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert source_files() <= installed
    assert not any(path.is_symlink() for path in package.rglob("*.py"))
    share = install / "photon_ros" / "share" / "photon_ros"
    for name in ("launch/perception.launch.py", "config/default.yaml", "config/fastdds.xml"):
        assert (share / name).is_file()
    check = (
        "import photon_ros, photon_ros.msg, photon_ros.core.frame, rclpy;"
        "print(photon_ros.core.frame.__file__); print(photon_ros.msg.__file__)"
    )
    shell = f'source "{install}/local_setup.bash" && cd / && '
    result = run(["bash", "-c", shell + f"python -c '{check}'"], env=without_sources())
    assert result.returncode == 0, result.stderr
    assert all(line.startswith(str(install)) for line in result.stdout.splitlines())
    executables = install / "photon_ros" / "lib" / "photon_ros"
    result = run(["bash", "-c", shell + f"{executables}/photon-ros --help"], env=without_sources())
    assert result.returncode == 0, result.stderr
    command = f"{executables}/photon_node --ros-args -p max_objects:=0"
    result = run(["bash", "-c", shell + command], env=without_sources())
    assert result.returncode == 2
    assert "max_objects" in result.stderr
    assert "Traceback" not in result.stderr
