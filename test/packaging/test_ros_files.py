"""Interface, parameter, launch and rviz files agree with the code that reads them."""

from __future__ import annotations

import ast
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from photon_ros.ros.camera_params import camera_specs
from photon_ros.ros.params import NodeConfig, specs

ROOT = Path(__file__).parents[2]
# As the tables write the parameters of one camera.
ONE_CAMERA = "<name>"
# rclpy comes with the first, and the generated packages of photon_ros itself with the last two.
NO_PACKAGE_OF_THEIR_OWN = {"ament_index_python", "photon_ros"}


def flat(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


@pytest.mark.parametrize("name", ["default", "jetson", "multi_camera"])
def test_every_parameter_file_is_allowed(name: str) -> None:
    text = (ROOT / "config" / f"{name}.yaml").read_text(encoding="utf-8")
    given = dict(flat(yaml.safe_load(text)["/**"]["ros__parameters"]))
    assert NodeConfig().changed(given)
    if name != "default":
        assert NodeConfig().changed(given) != NodeConfig(), "it changes nothing"
        defaults = NodeConfig().values()
        same = [key for key, value in given.items() if value == defaults.get(key)]
        # A value that is repeated has to be worth saying.
        assert len(same) < len(given) / 2 + 1


def test_every_field_of_services_and_actions_is_explained() -> None:
    for kind in ("srv", "action"):
        for path in (ROOT / kind).glob(f"*.{kind}"):
            for line in path.read_text(encoding="utf-8").splitlines():
                if line.strip() and line != "---" and not line.startswith("#"):
                    assert "#" in line, f"{path.name}: {line}"


def test_package_xml_names_every_ros_package_that_is_imported() -> None:
    package = ElementTree.parse(ROOT / "package.xml").getroot()
    named = {item.text for item in package if item.tag.endswith("depend")}
    imported = set()
    for path in [*(ROOT / "photon_ros" / "ros").glob("*.py"), *(ROOT / "launch").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                imported.add(node.module.split(".")[0])
    endings = ("_msgs", "_interfaces", "_srvs")
    plain = ("rclpy", "launch", "launch_ros", "cv_bridge")
    ros = {name for name in imported if name in plain or name.endswith(endings)}
    assert ros - NO_PACKAGE_OF_THEIR_OWN <= named
    assert {"cv_bridge", "vision_msgs"} <= named, "imported where they are there"
    generated = re.search(r"DEPENDENCIES ([a-z_ ]+)", (ROOT / "CMakeLists.txt").read_text())
    assert generated is not None
    for name in generated.group(1).split():
        assert f"find_package({name} REQUIRED)" in (ROOT / "CMakeLists.txt").read_text()
        assert name in named


def test_rviz_shows_topics_that_the_node_publishes() -> None:
    shown = yaml.safe_load((ROOT / "rviz" / "photon.rviz").read_text(encoding="utf-8"))
    topics = {
        display["Topic"]["Value"]
        for display in shown["Visualization Manager"]["Displays"]
        if "Topic" in display
    }
    assert topics == {"/photon/overlay", "/photon/markers"}
    source = (ROOT / "photon_ros" / "ros" / "camera_outputs.py").read_text(encoding="utf-8")
    launch = (ROOT / "launch" / "perception.launch.py").read_text(encoding="utf-8")
    for topic in topics:
        name = topic.removeprefix("/photon/")
        assert f'"{{prefix}}/{name}"' in source
        assert f'"{name}"' in launch, "the launch file remaps it"


def test_cameras_file_of_the_package_is_an_example_of_the_multi_camera_parameters() -> None:
    cameras = yaml.safe_load((ROOT / "config" / "cameras.yaml").read_text(encoding="utf-8"))
    text = (ROOT / "config" / "multi_camera.yaml").read_text(encoding="utf-8")
    parameters = yaml.safe_load(text)["/**"]["ros__parameters"]
    assert list(cameras) == parameters["cameras"] == list(parameters["camera"])
    config = NodeConfig().changed(dict(flat(parameters)))
    assert len({config.questions(name) for name in cameras}) == len(cameras), "all ask the same"


def test_launch_files_evaluate_and_download_nothing() -> None:
    for path in (ROOT / "launch").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        called = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & {"eval", "exec", "compile", "__import__"}, path.name
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|\bpip\b|shell=True|PythonExpression|urllib", text)


def table_rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table after a heading."""
    lines = text[text.index(heading) :].splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def written(value: object) -> str:
    """A default as the tables write it."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(value)}]`" if value else "(empty)"
    return "(empty)" if value == "" else f"`{value}`"


def test_the_tuning_table_holds_every_parameter_with_its_default() -> None:
    text = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    rows = table_rows(text, "## Every parameter")
    wanted = [
        [f"`{spec.name}`", written(spec.default), "start" if spec.read_only else "live"]
        for spec in (*specs(), *camera_specs(ONE_CAMERA))
    ]
    assert [row[:3] for row in rows] == wanted
    assert all(len(row) == 4 and row[3] for row in rows)


def test_parameters_in_the_prose_exist() -> None:
    names = {spec.name for spec in (*specs(), *camera_specs(ONE_CAMERA))}
    groups = {name.split(".")[0] for name in names if "." in name}
    for name in ("install", "tuning", "security"):
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        for word in re.findall(r"`([a-z_]+\.[a-z_0-9.<>]+)`", text):
            if word.split(".")[0] in groups:
                assert word in names, f"{name}.md speaks of {word}"


def test_the_readme_tables_give_the_defaults_that_hold() -> None:
    by_name = {spec.name: spec for spec in (*specs(), *camera_specs(ONE_CAMERA))}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| ((?:`[a-z_.<>]+`(?:, )?)+) \| (`[^`|]*`|\(empty\)) \|", text, re.MULTILINE
    )
    told = [(name, default) for names, default in rows for name in re.findall(r"`([^`]+)`", names)]
    assert len(told) >= 5, "the table of parameters is gone"
    for name, default in told:
        assert name in by_name, f"README.md speaks of {name}"
        assert default == written(by_name[name].default), name


def test_security_policy_names_what_the_node_publishes_and_serves() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    policy = ElementTree.fromstring(re.search(r"<policy.*</policy>", text, re.DOTALL).group(0))
    allowed = {item.text for item in policy.iter() if item.tag in ("topic", "service", "action")}
    source = "\n".join(
        (ROOT / "photon_ros" / "ros" / f"{name}.py").read_text(encoding="utf-8")
        for name in ("camera_outputs", "controls", "desk")
    )
    published = set(re.findall(r'\{prefix\}/([a-z_0-9/]+)"', source))
    served = set(re.findall(r'"~/([a-z_]+)"', source))
    assert {"overlay", "mask", "detections"} <= published
    assert {"infer", "ask", "flush"} <= served
    assert {f"photon/{name}" for name in published | served} <= allowed


def test_dockerfiles_copy_what_is_there_and_start_what_is_installed() -> None:
    for path in (ROOT / "docker").glob("*.Dockerfile"):
        text = path.read_text(encoding="utf-8")
        for copied in re.findall(r"^COPY (docker/\S+)", text, re.MULTILINE):
            assert (ROOT / copied).is_file()
        (launched,) = set(re.findall(r"(\w+\.launch\.py)", text))
        assert (ROOT / "launch" / launched).is_file()
        assert "photon_ros" in text
