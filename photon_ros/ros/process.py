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


@contextmanager
def ros_process(
    arguments: Sequence[str] | None, *, end_within_s: float | None = None
) -> Iterator[threading.Event]:
    """Initialise ROS; yield an event that SIGINT and SIGTERM set.

    rclpy's own handlers would shut the context down at once, and nothing could be published after
    that: neither the last answers nor the last account.

    Args:
        end_within_s: time after the signal when the process ends whatever it is doing, with the
            code 128 + the signal's number; None waits for it.
    """
    rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    stop = threading.Event()
    timers: list[threading.Timer] = []

    def on_signal(number: int, _frame: object) -> None:
        if end_within_s is not None and not stop.is_set():
            timers.append(threading.Timer(end_within_s, _end_now, (number,)))
            timers[0].daemon = True
            timers[0].start()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        rclpy.try_shutdown()
        for timer in timers:
            timer.cancel()


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
