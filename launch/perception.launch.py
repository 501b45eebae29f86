"""One camera, one perception node.

    ros2 launch photon_ros perception.launch.py image_topic:=/image_raw prompts:="person, cup"

An argument left empty keeps the value of params_file. Nothing is downloaded.
"""

from __future__ import annotations

import os

from ament_index_python.packages import get_package_share_directory
from launch import LaunchContext, LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    SetEnvironmentVariable,
)
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

ARGUMENTS = {
    "namespace": ("", "namespace of the node and its topics"),
    "image_topic": ("image", "camera topic; with compressed transport, without /compressed"),
    "image_transport": ("", "raw or compressed"),
    "params_file": ("", "parameter file; empty takes the package's config/default.yaml"),
    "model_path": ("", "'nano', a folder with a Moondream checkpoint, or a hub id"),
    "device": ("", "cpu, cuda or cuda:N"),
    "skills": ("", "skills asked of every frame, separated by commas: detect, point"),
    "prompts": ("", "what to look for with each of the skills, separated by commas"),
    "use_sim_time": ("false", "take the time from /clock"),
    "autostart": ("true", "configure and activate at the start"),
    "respawn": ("false", "start the node again when it ends by itself"),
    "log_level": ("info", "debug, info, warn, error or fatal"),
    "bag": ("", "bag whose images of image_topic are played into the node"),
}
RESPAWN_DELAY_S = 2.0
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
            *(
                DeclareLaunchArgument(name, default_value=default, description=description)
                for name, (default, description) in ARGUMENTS.items()
            ),
            # Images larger than the default shared memory segment are lost without a word.
            SetEnvironmentVariable(PROFILE_VARIABLE, os.environ.get(PROFILE_VARIABLE, profile)),
            OpaqueFunction(function=_start),
        ]
    )


def _share() -> str:
    return str(get_package_share_directory("photon_ros"))


def _start(context: LaunchContext) -> list[Node | ExecuteProcess]:
    given = {name: str(LaunchConfiguration(name).perform(context)).strip() for name in ARGUMENTS}
    node = Node(
        package="photon_ros",
        executable="photon_node",
        name="photon",
        namespace=given["namespace"],
        parameters=[
            given["params_file"] or os.path.join(_share(), "config", "default.yaml"),
            _overrides(given),
        ],
        remappings=[("image", given["image_topic"])],
        arguments=["--ros-args", "--log-level", given["log_level"]],
        respawn=_flag("respawn", given["respawn"]),
        respawn_delay=RESPAWN_DELAY_S,
        output="screen",
    )
    return [node] if not given["bag"] else [node, _player(given)]


def _overrides(given: dict[str, str]) -> dict[str, bool | str | list[str]]:
    """Return the parameters that the arguments set, by their ROS names."""
    overrides: dict[str, bool | str | list[str]] = {
        name: _flag(name, given[name]) for name in ("use_sim_time", "autostart")
    }
    for name in ("image_transport", "device"):
        if given[name]:
            overrides[name] = given[name]
    if given["model_path"]:
        overrides["model.path"] = given["model_path"]
    skills = _words(given["skills"])
    if skills:
        overrides["skills"] = skills
    if given["prompts"]:
        for skill in skills or ["point", "detect"]:
            overrides[f"prompts.{skill}"] = _words(given["prompts"])
    return overrides


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name} must be true or false, got {text!r}")
    return text.lower() == "true"


def _player(given: dict[str, str]) -> ExecuteProcess:
    suffix = "/compressed" if given["image_transport"] == "compressed" else ""
    topic = given["image_topic"] + suffix
    return ExecuteProcess(
        cmd=["python3", "-m", "photon_ros.ros.player", given["bag"], "--topic", topic],
        output="screen",
    )
