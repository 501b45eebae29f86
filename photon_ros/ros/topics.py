"""Names of topics that belong together."""

from __future__ import annotations

from rclpy.node import Node


def compressed_topic(node: Node, name: str) -> str:
    """Return the topic of the compressed images beside ``name``, as image_transport has it.

    Remapping ``name`` moves it along, unless it has a remapping of its own.
    """
    compressed = f"{name}/compressed"
    resolved: str = node.resolve_topic_name(compressed)
    if resolved != node.resolve_topic_name(compressed, only_expand=True):
        return resolved
    return f"{node.resolve_topic_name(name)}/compressed"
