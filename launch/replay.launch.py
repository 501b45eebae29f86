"""A bag in, the overlay out: as pictures in a folder, on its topic, and in rviz if wanted.

    ros2 launch photon_ros replay.launch.py bag:=DIR image_topic:=/camera/image_raw out:=pictures

Ends when the bag does. The node is that of perception.launch.py, with the same arguments.
"""

from __future__ import annotations

import os

from ament_index_python.packages import get_package_share_directory
from launch import LaunchContext, LaunchDescription
from launch.action import Action
from launch.actions import (
    DeclareLaunchArgument,
    EmitEvent,
    ExecuteProcess,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

# Handed on to perception.launch.py.
NODE_ARGUMENTS = {
    "namespace": ("", "namespace of the node and its topics"),
    "image_topic": ("image", "topic in the bag; with compressed transport, without /compressed"),
    "image_transport": ("", "raw or compressed"),
    "params_file": ("", "parameter file; empty takes the package's config/default.yaml"),
    "model_path": ("", "'nano', a folder with a Moondream checkpoint, or a hub id"),
    "device": ("", "cpu, cuda or cuda:N"),
    "skills": ("", "skills asked of every frame, separated by commas: detect, point, segment"),
    "prompts": ("", "what to look for with each of the skills, separated by commas"),
    "rviz": ("false", "start rviz with the overlay and the markers"),
    "log_level": ("info", "debug, info, warn, error or fatal"),
}
ARGUMENTS = {
    **NODE_ARGUMENTS,
    "bag": (None, "the recording"),
    "rate": ("1.0", "1 is the recorded pace"),
    "out": ("", "folder for the overlay pictures; empty writes none"),
}


def generate_launch_description() -> LaunchDescription:
    """Return the arguments and what they start."""
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(name, default_value=default, description=description)
                for name, (default, description) in ARGUMENTS.items()
            ),
            OpaqueFunction(function=_start),
        ]
    )


def _start(context: LaunchContext) -> list[Action]:
    given = {name: str(LaunchConfiguration(name).perform(context)).strip() for name in ARGUMENTS}
    share = get_package_share_directory("photon_ros")
    source = PythonLaunchDescriptionSource(os.path.join(share, "launch", "perception.launch.py"))
    # The included file sees this one's arguments: without an empty bag it would play it, too.
    passed = [*((name, given[name]) for name in NODE_ARGUMENTS), ("overlay", "true"), ("bag", "")]
    player = _player(given)
    started: list[Action] = [
        # First: it sets the environment of everything after it.
        IncludeLaunchDescription(source, launch_arguments=passed),
        player,
        RegisterEventHandler(
            OnProcessExit(
                target_action=player, on_exit=EmitEvent(event=Shutdown(reason="the bag ended"))
            )
        ),
    ]
    if given["out"]:
        started.append(_writer(given))
    return started


def _player(given: dict[str, str]) -> ExecuteProcess:
    suffix = "/compressed" if given["image_transport"] == "compressed" else ""
    topic = given["image_topic"] + suffix
    words = ["python3", "-m", "photon_ros.ros.player", given["bag"], "--topic", topic]
    return ExecuteProcess(cmd=[*words, "--rate", given["rate"]], output="screen")


def _writer(given: dict[str, str]) -> ExecuteProcess:
    namespace = given["namespace"].strip("/")
    topic = f"/{namespace}/photon/overlay/compressed" if namespace else "/photon/overlay/compressed"
    words = ["python3", "-m", "photon_ros.ros.picture_writer", "--topic", topic]
    return ExecuteProcess(cmd=[*words, "--out", given["out"]], output="screen")
