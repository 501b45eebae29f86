"""ClockWatch: tells when ROS time jumps backward, as it does when a simulation starts again.

A step back of at most MAX_BACKWARD_S is none: messages on /clock may overtake one another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.clock import JumpThreshold
from rclpy.duration import Duration
from rclpy.node import Node

from photon_ros.ros.intake import MAX_BACKWARD_S


class ClockWatch:
    """Counts backward jumps of a node's clock.

    Args:
        on_jump: called by the executor, soon after a jump.
    """

    def __init__(self, node: Node, on_jump: Callable[[], None]) -> None:
        self.num_jumps = 0
        # The clock calls while it is locked, where nothing may be done but to say so.
        self._jumped = node.create_guard_condition(on_jump)
        threshold = JumpThreshold(
            min_forward=None,
            min_backward=Duration(nanoseconds=-round(MAX_BACKWARD_S * 1e9)),
            on_clock_change=False,
        )
        self._handle = node.get_clock().create_jump_callback(threshold, post_callback=self._jump)

    def _jump(self, jump: Any) -> None:
        del jump
        self.num_jumps += 1
        self._jumped.trigger()

    def close(self) -> None:
        """Listen no more."""
        self._handle.unregister()
