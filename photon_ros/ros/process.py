"""What the ROS processes of this package share: start, signals, spin, and a bounded end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

# Python runs a signal's handler only between two waits of the executor.
SPIN_WAIT_S = 0.1


class Stop(threading.Event):
    """Set by SIGINT and SIGTERM.

    Args:
        notice_within_s: time after the signal in which whoever runs has to notice; then the
            process ends whatever it is doing, with the code 128 + the signal's number. None waits.
    """

    def __init__(self, notice_within_s: float | None) -> None:
        super().__init__()
        self._notice_within_s = notice_within_s
        self._timer: threading.Timer | None = None

    def on_signal(self, number: int, _frame: object) -> None:
        """Handle a signal."""
        if self._notice_within_s is not None and not self.is_set():
            self._timer = threading.Timer(self._notice_within_s, _end_now, (number,))
            self._timer.daemon = True
            self._timer.start()
        self.set()

    def notice(self) -> None:
        """Say that the end has begun, in good order."""
        if self._timer is not None:
            self._timer.cancel()


@contextmanager
def ros_process(
    arguments: Sequence[str] | None, *, notice_within_s: float | None = None
) -> Iterator[Stop]:
    """Initialise ROS; yield what SIGINT and SIGTERM set.

    rclpy's own handlers would shut the context down at once, and nothing could be published after
    that: neither the last answers nor the last account.
    """
    rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    stop = Stop(notice_within_s)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop.on_signal)
    try:
        yield stop
    finally:
        stop.notice()
        rclpy.try_shutdown()


def _end_now(number: int) -> None:
    print(
        "stopped in the middle of what takes longer than that, such as loading a model",
        file=sys.stderr,
    )
    exit_now(128 + number)


def spin(node: Node, is_done: Callable[[], bool]) -> None:
    """Serve the node's callbacks until ``is_done``, asked at least every :data:`SPIN_WAIT_S`."""
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        while not is_done():
            executor.spin_once(timeout_sec=SPIN_WAIT_S)
    finally:
        executor.remove_node(node)
        executor.shutdown(timeout_sec=0.1)


def exit_now(code: int) -> None:
    """End the process without waiting for threads that are inside a long step of a model."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
