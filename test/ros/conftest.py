"""Real rclpy and DDS for the tests of this folder, in a domain of their own."""

import os
from collections.abc import Iterator

import pytest

# Before rclpy reads them; child processes inherit them.
os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
os.environ.setdefault("ROS_DOMAIN_ID", str(1 + os.getpid() % 100))


@pytest.fixture(scope="session")
def ros() -> Iterator[None]:
    """An initialised rclpy."""
    rclpy = pytest.importorskip("rclpy")
    pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")
    from rclpy.signals import SignalHandlerOptions

    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    yield
    rclpy.try_shutdown()
