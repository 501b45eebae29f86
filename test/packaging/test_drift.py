"""What is written down twice is the same in both places."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import photon_ros
from photon_ros.ros.camera_params import camera_specs
from photon_ros.ros.params import NodeConfig, specs

ROOT = Path(__file__).parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def tracked_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def setup_keywords() -> dict[str, Any]:
    """The arguments of setup() that are plain values."""
    (call,) = (
        node
        for node in ast.walk(ast.parse(text("setup.py")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setup"
    )
    plain = (ast.Constant, ast.List, ast.Dict)
    return {
        str(keyword.arg): ast.literal_eval(keyword.value)
        for keyword in call.keywords
        if isinstance(keyword.value, plain)
    }


def test_every_interface_file_is_generated() -> None:
    cmake = text("CMakeLists.txt")
    listed = set(re.findall(r'"((?:msg|srv|action)/\w+\.\w+)"', cmake))
    present = {
        str(path.relative_to(ROOT))
        for kind in ("msg", "srv", "action")
        for path in (ROOT / kind).glob(f"*.{kind}")
    }
    assert listed == present


def test_every_message_field_and_constant_is_explained() -> None:
    for path in (ROOT / "msg").glob("*.msg"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip() and not line.startswith("#"):
                assert "#" in line, f"{path.name}: {line}"


def test_versions_agree() -> None:
    package = ElementTree.fromstring(text("package.xml"))
    version = package.findtext("version")
    assert setup_keywords()["version"] == version == photon_ros.__version__
    newest = re.search(r"^(\d+\.\d+\.\d+) \(", text("CHANGELOG.rst"), re.MULTILINE)
    assert newest is not None
    assert newest.group(1) == version


def test_licences_and_maintainers_agree() -> None:
    package = ElementTree.fromstring(text("package.xml"))
    keywords = setup_keywords()
    assert package.findtext("license") == keywords["license"] == "Apache-2.0"
    assert "Apache License" in text("LICENSE")
    maintainer = package.find("maintainer")
    assert maintainer is not None
    assert maintainer.get("email") == keywords["author_email"]
    assert maintainer.text == keywords["author"]


def test_default_yaml_holds_every_parameter_with_its_default() -> None:
    parameters = yaml.safe_load(text("config/default.yaml"))["/**"]["ros__parameters"]

    def flat(prefix: str, node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for key, value in node.items():
            if isinstance(value, dict):
                yield from flat(f"{prefix}{key}.", value)
            else:
                yield prefix + key, value

    given = dict(flat("", parameters))
    # A ROS parameter file cannot hold an empty list: shown as a comment.
    names = {spec.name for spec in specs()} - {"cameras"}
    assert "# cameras: [" in text("config/default.yaml")
    assert set(given) == names
    assert NodeConfig().changed(given) == NodeConfig()


def test_the_example_of_one_cameras_lists_is_allowed_and_holds_each_of_them() -> None:
    lines = text("config/default.yaml").splitlines()
    start = lines.index("    # camera:")
    example = itertools.takewhile(lambda line: line.startswith("    #   "), lines[start + 1 :])
    nested = yaml.safe_load("\n".join(line[6:] for line in example))["front"]
    given = {f"prompts.{name}": words for name, words in nested.pop("prompts").items()} | nested
    named = {f"camera.front.{name}": words for name, words in given.items()}
    assert set(named) == {spec.name for spec in camera_specs("front")}
    assert NodeConfig().changed({"cameras": ["front"], **named}).asked()


def test_default_yaml_explains_each_parameter_as_the_config_does() -> None:
    words = " ".join(text("config/default.yaml").replace("#", " ").split())
    for spec in (*specs(), *camera_specs("front")):
        mark = "[start] " if spec.read_only else ""
        assert mark + spec.description in words, spec.name


def test_constraints_hold_every_requirement_and_the_wheels() -> None:
    pinned = {
        re.split(r"[=;]", line)[0].strip()
        for line in text("constraints.txt").splitlines()
        if line and not line.startswith("#")
    }
    required = {re.split(r"[><=]", item)[0] for item in setup_keywords()["install_requires"]}
    assert required <= pinned
    script = text("scripts/setup_env")
    wheels = set(re.findall(r"\bros-[a-z0-9-]+\b", script)) - {"ros-wheels"}
    assert len(wheels) > 20
    assert wheels <= pinned


# The packages of Ubuntu 22.04, by the names and numbers of the package index (OpenCV is 4.5.4).
UBUNTU_22_04 = {
    "jinja2": "3.0.3", "numpy": "1.21.5", "opencv-python-headless": "4.5.4.58", "pillow": "9.0.1",
    "pyyaml": "5.4.1", "rich": "11.2.0",
}  # fmt: skip
# Without a version that pip could install there; what is used of it is the same in both.
NOT_TRIED = {"pyyaml"}


@pytest.mark.parametrize(
    "name", ["docs/install.md", "docker/desktop.Dockerfile", "docker/jetson.Dockerfile"]
)
def test_pip_brings_what_the_oldest_ubuntu_has_not_or_has_too_old(name: str) -> None:
    lines = text(name).replace("\\\n", " ").splitlines()
    command = " ".join(line for line in lines if "pip install" in line and "-c " in line)
    for item in setup_keywords()["install_requires"]:
        requirement = Requirement(item)
        if requirement.name in NOT_TRIED:
            continue
        if requirement.name not in UBUNTU_22_04:
            assert requirement.name in command.lower(), item
        elif UBUNTU_22_04[requirement.name] not in requirement.specifier:
            assert f"'{requirement.name}>=" in command, item


def test_the_least_version_of_everything_is_named_to_the_last_digit() -> None:
    for item in setup_keywords()["install_requires"]:
        assert re.fullmatch(r"[\w-]+>=\d+(\.\d+)+", item), item


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_python_gets_one_version_of_everything(python: str) -> None:
    lines = text("constraints.txt").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    here = {"python_version": python, "python_full_version": f"{python}.0"}
    taken = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(here)]
    assert sorted(taken) == sorted({pin.name for pin in pins})
    assert all(re.fullmatch(r"==[0-9.]+", str(pin.specifier)) for pin in pins)


def test_supported_pythons_agree() -> None:
    assert setup_keywords()["python_requires"] == ">=3.10,<3.14"
    assert 'target-version = "py310"' in text("pyproject.toml")
    assert 'python_version = "3.10"' in text("pyproject.toml")
    assert "(3, 10) <= sys.version_info < (3, 14)" in text("scripts/find_python")


def test_every_make_target_is_described() -> None:
    makefile = text("Makefile")
    phony = {
        name for line in re.findall(r"^\.PHONY: (.*)$", makefile, re.M) for name in line.split()
    }
    described = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.M))
    assert described == phony


def test_no_tracked_file_names_a_machine_or_a_package_host() -> None:
    this_machine = "|".join("/" + name + "/" for name in ("work", "root", "home/[a-z]+", "farm"))
    hosts = "|".join(
        (
            "pypi" + r"\.org",
            "files" + r"\.pythonhosted",
            "registry" + r"\.npmjs",
            "download" + r"\.pytorch",
        )
    )
    pattern = re.compile(f"(?<![\\w.])(?:{this_machine})|{hosts}")
    offenders = []
    for name in tracked_files():
        data = (ROOT / name).read_bytes()
        if b"\0" in data[:4096] or name.startswith("photon_ros/models/nano/weights/"):
            continue
        for number, line in enumerate(data.decode("utf-8").splitlines(), start=1):
            if pattern.search(line):
                offenders.append(f"{name}:{number}: {line.strip()[:80]}")
    assert not offenders


def test_package_xml_is_what_ros_tools_accept() -> None:
    catkin_pkg = pytest.importorskip("catkin_pkg.package")
    package = catkin_pkg.parse_package(str(ROOT / "package.xml"))
    warnings: list[str] = []
    package.validate(warnings)
    assert not warnings
    assert package.get_build_type() == "ament_cmake"
