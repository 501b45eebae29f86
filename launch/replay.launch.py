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
    EmitEvent,
    ExecuteProcess,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.launch_description_sources import PythonLaunchDescriptionSource

from photon_ros.ros.launching import (
    NODE_ARGUMENTS,
    Arguments,
    bag_player,
    declared,
    given_values,
    node_name,
)

ARGUMENTS: Arguments = {
    **NODE_ARGUMENTS,
    "bag": (None, "the recording"),
    "rate": ("1.0", "1 is the recorded pace"),
    "out": ("", "folder for the overlay pictures; empty writes none"),
}


def generate_launch_description() -> LaunchDescription:
    """Return the arguments and what they start."""
    return LaunchDescription([*declared(ARGUMENTS), OpaqueFunction(function=_start)])


def _start(context: LaunchContext) -> list[Action]:
    given = given_values(context, ARGUMENTS)
    share = get_package_share_directory("photon_ros")
    source = PythonLaunchDescriptionSource(os.path.join(share, "launch", "perception.launch.py"))
    # The included file sees this one's arguments: without an empty bag it would play it, too.
    passed = [*((name, given[name]) for name in NODE_ARGUMENTS), ("overlay", "true"), ("bag", "")]
    player = bag_player(given, given["rate"])
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


def _writer(given: dict[str, str]) -> ExecuteProcess:
    topic = f"{node_name(given)}/overlay/compressed"
    words = ["python3", "-m", "photon_ros.ros.picture_writer", "--topic", topic]
    return ExecuteProcess(cmd=[*words, "--out", given["out"]], output="screen")
