"""One camera or several, one perception node.

    ros2 launch photon_ros perception.launch.py image_topic:=/image_raw prompts:="person, cup"
    ros2 launch photon_ros perception.launch.py cameras_file:=cameras.yaml

An argument left empty keeps the value of params_file. Nothing is downloaded or evaluated.
"""

from __future__ import annotations

import os
import re
from typing import Any

import yaml
from ament_index_python.packages import get_package_share_directory
from launch import LaunchContext, LaunchDescription
from launch.actions import ExecuteProcess, OpaqueFunction, SetEnvironmentVariable
from launch_ros.actions import Node

from photon_ros.ros.launching import (
    NODE_ARGUMENTS,
    Arguments,
    bag_player,
    camera_info_beside,
    declared,
    given_values,
    node_name,
)

ARGUMENTS: Arguments = {
    **NODE_ARGUMENTS,
    "cameras_file": ("", "YAML file with several cameras, in place of the two topics"),
    "use_sim_time": ("", "true or false: take the time from /clock, and play a bag with its time"),
    "autostart": ("", "true or false: configure and activate at the start"),
    "overlay": ("", "true or false: draw the overlay topics while anybody subscribes them"),
    "respawn": ("false", "start the node again when it ends by itself"),
    "bag": ("", "bag whose images of image_topic are played into the node"),
}
RESPAWN_DELAY_S = 2.0
CAMERA_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Humble's Fast DDS reads the profile from a variable of its old name.
PROFILE_VARIABLE = (
    "FASTRTPS_DEFAULT_PROFILES_FILE"
    if os.environ.get("ROS_DISTRO") == "humble"
    else "FASTDDS_DEFAULT_PROFILES_FILE"
)


def generate_launch_description() -> LaunchDescription:
    """Return the arguments and what they start."""
    profile = os.path.join(_share(), "config", "fastdds.xml")
    return LaunchDescription(
        [
            *declared(ARGUMENTS),
            # Images larger than the default shared memory segment are lost without a word.
            SetEnvironmentVariable(PROFILE_VARIABLE, os.environ.get(PROFILE_VARIABLE, profile)),
            OpaqueFunction(function=_start),
        ]
    )


def _share() -> str:
    return str(get_package_share_directory("photon_ros"))


def _start(context: LaunchContext) -> list[Node | ExecuteProcess]:
    given = given_values(context, ARGUMENTS)
    cameras = _cameras(given["cameras_file"])
    started: list[Node | ExecuteProcess] = [_photon(given, cameras)]
    if given["bag"]:
        started.append(bag_player(given, has_clock=_is_simulated(given)))
    if _flag("rviz", given["rviz"]):
        started.append(_rviz(given, cameras))
    return started


def _photon(given: dict[str, str], cameras: dict[str, dict[str, str]]) -> Node:
    overrides = _overrides(given)
    if cameras:
        overrides["cameras"] = list(cameras)
    return Node(
        package="photon_ros",
        executable="photon_node",
        name="photon",
        namespace=given["namespace"],
        # An empty mapping is no parameter file that launch accepts.
        parameters=[_params_file(given), *([overrides] if overrides else [])],
        remappings=_remappings(given, cameras),
        arguments=["--ros-args", "--log-level", given["log_level"]],
        respawn=_flag("respawn", given["respawn"]),
        respawn_delay=RESPAWN_DELAY_S,
        output="screen",
    )


def _remappings(given: dict[str, str], cameras: dict[str, dict[str, str]]) -> list[tuple[str, str]]:
    """Return the node's inputs by name, and the topics that they are on."""
    if cameras:
        return [
            (f"{name}/{kind}", topic)
            for name, topics in cameras.items()
            for kind, topic in topics.items()
        ]
    image_topic = given["image_topic"]
    info_topic = given["camera_info_topic"] or camera_info_beside(image_topic)
    return [("image", image_topic), ("camera_info", info_topic)]


def _cameras(path: str) -> dict[str, dict[str, str]]:
    """Return the topics of each camera in a cameras file by "image" and "camera_info"."""
    if not path:
        return {}
    with open(path, encoding="utf-8") as file:
        cameras: Any = yaml.safe_load(file)
    if not isinstance(cameras, dict) or not cameras:
        raise ValueError(f"{path} must map camera names to their topics")
    for name, topics in cameras.items():
        if not isinstance(name, str) or not CAMERA_NAME.fullmatch(name):
            raise ValueError(f"{path}: {name!r} is not a valid camera name")
        allowed = {"image", "camera_info"}
        if not isinstance(topics, dict) or not {"image"} <= set(topics) <= allowed:
            raise ValueError(f"{path}: {name} needs image, may have camera_info, and nothing else")
        if not all(isinstance(topic, str) for topic in topics.values()):
            raise ValueError(f"{path}: the topics of {name} must be strings")
        topics.setdefault("camera_info", camera_info_beside(topics["image"]))
    return cameras


def _overrides(given: dict[str, str]) -> dict[str, bool | str | list[str]]:
    """Return the parameters that the arguments set, by their ROS names."""
    overrides: dict[str, bool | str | list[str]] = {
        name: _flag(name, given[name]) for name in ("use_sim_time", "autostart") if given[name]
    }
    for name in ("image_transport", "device"):
        if given[name]:
            overrides[name] = given[name]
    if given["model_path"]:
        overrides["model.path"] = given["model_path"]
    if given["overlay"]:
        overrides["overlay.enable"] = _flag("overlay", given["overlay"])
    skills = _words(given["skills"])
    if skills:
        overrides["skills"] = skills
    if given["prompts"]:
        for skill in skills or ["point", "detect", "segment"]:
            overrides[f"prompts.{skill}"] = _words(given["prompts"])
    return overrides


def _params_file(given: dict[str, str]) -> str:
    """Return the parameter file that the node gets."""
    return given["params_file"] or os.path.join(_share(), "config", "default.yaml")


def _is_simulated(given: dict[str, str]) -> bool:
    """Return whether the node takes the time from /clock: by the argument, or else its file."""
    if given["use_sim_time"]:
        return _flag("use_sim_time", given["use_sim_time"])
    with open(_params_file(given), encoding="utf-8") as file:
        content: Any = yaml.safe_load(file)
    for nodes in (node_name(given), "photon", "/**"):
        section = content.get(nodes) if isinstance(content, dict) else None
        parameters = section.get("ros__parameters") if isinstance(section, dict) else None
        if isinstance(parameters, dict) and "use_sim_time" in parameters:
            return parameters["use_sim_time"] is True
    return False


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, got {text!r}")
    return text.lower() == "true"


def _rviz(given: dict[str, str], cameras: dict[str, dict[str, str]]) -> Node:
    """Return rviz on the node's overlay and markers, of the first camera when there are several."""
    node = node_name(given)
    prefix = f"{node}/{next(iter(cameras))}" if cameras else node
    return Node(
        package="rviz2",
        executable="rviz2",
        arguments=["-d", os.path.join(_share(), "rviz", "photon.rviz")],
        remappings=[
            (f"/photon/{name}", f"{prefix}/{name}")
            for name in ("overlay", "overlay/compressed", "markers")
        ],
        parameters=[{"use_sim_time": _is_simulated(given)}],
        output="screen",
    )
