"""What the launch files share: their common arguments, and what plays a bag into the node."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from launch import LaunchContext
from launch.actions import DeclareLaunchArgument, ExecuteProcess
from launch.substitutions import LaunchConfiguration

Arguments = Mapping[str, tuple[str | None, str]]
"""Default and description by name; a default of None makes an argument one that must be given."""

NODE_ARGUMENTS: Arguments = {
    "namespace": ("", "namespace of the node and its topics"),
    "image_topic": (
        "image",
        "camera topic; with compressed transport, with or without /compressed",
    ),
    "camera_info_topic": ("", "calibration; empty takes camera_info beside image_topic"),
    "image_transport": ("", "raw or compressed"),
    "params_file": ("", "parameter file; empty takes the package's config/default.yaml"),
    "model_path": ("", "'nano', a folder with a Moondream checkpoint, or a hub id"),
    "device": ("", "cpu, cuda or cuda:N"),
    "skills": ("", "skills asked of every frame, separated by commas: detect, point, segment"),
    "prompts": ("", "what to look for with each of the skills, separated by commas"),
    "rviz": ("false", "start rviz with the overlay and the markers"),
    "log_level": ("info", "debug, info, warn, error or fatal"),
}


def declared(arguments: Arguments) -> list[DeclareLaunchArgument]:
    """Return the declarations of a launch file's arguments."""
    return [
        DeclareLaunchArgument(name, default_value=default, description=description)
        for name, (default, description) in arguments.items()
    ]


def given_values(context: LaunchContext, arguments: Arguments) -> dict[str, str]:
    """Return the arguments' values, blanks around them removed."""
    return {name: str(LaunchConfiguration(name).perform(context)).strip() for name in arguments}


def node_name(given: Mapping[str, str]) -> str:
    """Return the node's full name."""
    namespace = given["namespace"].strip("/")
    return f"/{namespace}/photon" if namespace else "/photon"


def camera_info_beside(image_topic: str) -> str:
    """Return where camera drivers have it: /camera/camera_info beside /camera/image_raw."""
    camera = posixpath.dirname(image_topic.removesuffix("/compressed"))
    return posixpath.join(camera, "camera_info")


def bag_player(
    given: Mapping[str, str], rate: str = "1.0", *, has_clock: bool = False
) -> ExecuteProcess:
    """Return what plays ``bag`` on ``image_topic``, at a multiple of its recorded pace.

    Args:
        has_clock: the recorded time is published on /clock, too.
    """
    topic = given["image_topic"]
    if given["image_transport"] == "compressed":
        topic = topic.removesuffix("/compressed") + "/compressed"
    # A bag has full names; a relative one is that of the node, in its namespace.
    node_namespace = posixpath.dirname(node_name(given))
    words = ["python3", "-m", "photon_ros.ros.player", given["bag"]]
    words += ["--topic", posixpath.join("/", topic)]
    words += ["--remap", posixpath.join(node_namespace, topic), "--rate", rate]
    return ExecuteProcess(cmd=words + ["--clock"] * has_clock, output="screen")
