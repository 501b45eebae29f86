"""Where ROS distributions differ in what a node is programmed with (Humble to Lyrical).

How they differ before a node runs is told where it matters: the name of the profile's variable in
the launch file, ``scripts/env.sh`` and ``photon_ros.replay.live``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from rclpy.executors import MultiThreadedExecutor
from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks

PROFILE_VARIABLE = (
    "FASTRTPS_DEFAULT_PROFILES_FILE"
    if os.environ.get("ROS_DISTRO") == "humble"
    else "FASTDDS_DEFAULT_PROFILES_FILE"
)
"""Names the file that Fast DDS reads its profile from."""


def given_parameters(node: Node) -> dict[str, Any]:
    """Return the values given to the node at its start by name, whether declared or not.

    rclpy drops an undeclared one without a word and has no public way to see it.
    """
    overrides = getattr(node, "_parameter_overrides", {})
    return {name: parameter.value for name, parameter in sorted(overrides.items())}


def leave_graph(node: LifecycleNode) -> None:
    """Let go of what ``destroy_node`` of a lifecycle node leaves to the garbage collector.

    Until then the node, and with it the process, is seen by everybody: for twenty seconds after
    the end of the process.
    """
    machine = getattr(node, "_state_machine", None)
    if machine is not None:
        machine.destroy_when_not_in_use()


def shut_down(executor: MultiThreadedExecutor) -> None:
    """Shut an executor down that no longer spins, without waiting for its threads."""
    try:
        executor.shutdown(timeout_sec=0.0, wait_for_threads=False)
    except TypeError:  # Humble, which never waits for them
        executor.shutdown(timeout_sec=0.0)


def event_callbacks(on_incompatible_qos: Callable[[Any], None]) -> SubscriptionEventCallbacks:
    """Return subscription callbacks with ours for a publisher whose QoS does not match."""
    return SubscriptionEventCallbacks(incompatible_qos=on_incompatible_qos)
