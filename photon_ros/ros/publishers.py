"""Who publishes a topic right now, and whether a subscription of ours can hear them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible


@dataclass(frozen=True, slots=True)
class PublisherReading:
    """Publishers of one topic as the graph shows them; those that are gone count no more.

    Attributes:
        num_seen: all of them.
        num_incompatible: those whose QoS a subscription cannot accept, so nothing arrives.
        other_types: of those that publish another message than is subscribed, its type.
        heard: full names of the nodes of all others, one for each publisher.
    """

    num_seen: int = 0
    num_incompatible: int = 0
    other_types: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()


def type_name(kind: type[Any]) -> str:
    """Return a message class's name as ROS tools write it, sensor_msgs/msg/Image."""
    return f"{kind.__module__.partition('.')[0]}/msg/{kind.__name__}"


def read_publishers(node: Node, topic: str, kind: type[Any], qos: QoSProfile) -> PublisherReading:
    """Return what the graph shows of a topic to a subscription of ``kind`` and ``qos``."""
    endpoints = node.get_publishers_info_by_topic(topic)
    wanted = type_name(kind)
    alike = [item for item in endpoints if item.topic_type == wanted]
    heard = [
        item
        for item in alike
        if qos_check_compatible(item.qos_profile, qos)[0] != QoSCompatibility.ERROR
    ]
    return PublisherReading(
        num_seen=len(endpoints),
        num_incompatible=len(alike) - len(heard),
        other_types=tuple(item.topic_type for item in endpoints if item.topic_type != wanted),
        heard=tuple(_full_name(item.node_namespace, item.node_name) for item in heard),
    )


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace.rstrip('/')}/{name}"
