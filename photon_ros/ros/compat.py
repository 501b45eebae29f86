"""The only place that knows how one ROS distribution differs from another (Humble to Lyrical)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node

try:
    from rclpy.event_handler import SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import SubscriptionEventCallbacks


def given_parameter_names(node: Node) -> list[str]:
    """Return the names given to the node at its start, whether declared or not.

    rclpy drops an undeclared one without a word and has no public way to see it.
    """
    return sorted(getattr(node, "_parameter_overrides", {}))


def event_callbacks(on_incompatible_qos: Callable[[Any], None]) -> SubscriptionEventCallbacks:
    """Return subscription callbacks with ours for a publisher whose QoS does not match."""
    return SubscriptionEventCallbacks(incompatible_qos=on_incompatible_qos)
