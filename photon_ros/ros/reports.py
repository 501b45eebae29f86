"""Reports: ~/stats each second, and /diagnostics at its own period."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.timer import Timer

STATS_PERIOD_S = 1.0


class Reports:
    """Publishes for as long as the node lives, by the steady clock: also when time stands still.

    Args:
        publish_stats: publishes every account.
        statuses: gives what /diagnostics is to say.
    """

    def __init__(
        self,
        node: Node,
        publish_stats: Callable[[], None],
        statuses: Callable[[], Sequence[DiagnosticStatus]],
        period_s: float,
    ) -> None:
        self._node = node
        self._statuses = statuses
        # Nodes of several robots, or several of one, meet on /diagnostics.
        self._name = node.get_fully_qualified_name().lstrip("/")
        self._clock = Clock(clock_type=ClockType.STEADY_TIME)
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._failing: set[str] = set()
        node.create_timer(
            STATS_PERIOD_S, lambda: self._tried("statistics", publish_stats), clock=self._clock
        )
        self._timer = self._new_timer(period_s)
        self._period_s = period_s

    def set_period(self, period_s: float) -> None:
        """Publish diagnostics every ``period_s`` from now on."""
        if period_s != self._period_s:
            self._node.destroy_timer(self._timer)
            self._timer = self._new_timer(period_s)
            self._period_s = period_s

    def _new_timer(self, period_s: float) -> Timer:
        return self._node.create_timer(
            period_s,
            lambda: self._tried("diagnostics", self._publish_diagnostics),
            clock=self._clock,
        )

    def _tried(self, what: str, publish: Callable[[], None]) -> None:
        """Publish, or log once why not: a GPU that cannot be read must not end the node."""
        try:
            publish()
        except Exception as error:
            if what not in self._failing:
                self._node.get_logger().error(f"the {what} cannot be gathered: {error!r}")
            self._failing.add(what)
        else:
            self._failing.discard(what)

    def _publish_diagnostics(self) -> None:
        array = DiagnosticArray(status=self._statuses())
        for status in array.status:
            status.name = f"{self._name}: {status.name}"
        array.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(array)
