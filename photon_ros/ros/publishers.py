"""Who publishes a topic right now, and whether a subscription of ours can hear them."""

from __future__ import annotations

from dataclasses import dataclass

from rclpy.node import Node
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible


@dataclass(frozen=True, slots=True)
class PublisherReading:
    """Publishers of one topic as the graph shows them; those that are gone count no more.

    Attributes:
        num_seen: all of them.
        num_incompatible: those whose QoS a subscription cannot accept, so nothing arrives.
    """

    num_seen: int = 0
    num_incompatible: int = 0

    @property
    def is_unheard(self) -> bool:
        """True while somebody publishes and nobody of them can be heard."""
        return 0 < self.num_seen == self.num_incompatible


def read_publishers(node: Node, topic: str, qos: QoSProfile) -> PublisherReading:
    """Return what the graph shows of a topic to a subscription of ``qos``."""
    verdicts = [
        qos_check_compatible(endpoint.qos_profile, qos)[0]
        for endpoint in node.get_publishers_info_by_topic(topic)
    ]
    return PublisherReading(len(verdicts), verdicts.count(QoSCompatibility.ERROR))
