"""A perception node and a client beside it, both spinning, in a namespace of their own."""

from __future__ import annotations

import array
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from fake_photon import FakePhoton
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import DescribeParameters, SetParameters, SetParametersAtomically
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image

from photon_ros.action import Ask
from photon_ros.msg import PerceptionStats, PhotonDetectionArray
from photon_ros.ros.node import PerceptionNode

_numbers = itertools.count()
# Time for what comes at once on an idle machine; tests wait for it and for no longer than it takes.
PATIENCE_S = 60.0
RELIABLE = QoSProfile(depth=100, reliability=ReliabilityPolicy.RELIABLE)
BEST_EFFORT = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)


def wait_until(
    condition: Callable[[], Any], timeout_s: float = PATIENCE_S, what: str = "it"
) -> Any:
    """Return the condition's first true value; fail when none comes in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline_s, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.005)


def wait_until_quiet(kept: list[Any], quiet_s: float = 0.5) -> None:
    """Return, and forget what came, when nothing more has come for a while."""
    deadline_s = time.monotonic() + PATIENCE_S
    seen, changed_s = len(kept), time.monotonic()
    while time.monotonic() < changed_s + quiet_s:
        assert time.monotonic() < deadline_s, f"{len(kept)} came, and there is no end of it"
        if len(kept) != seen:
            seen, changed_s = len(kept), time.monotonic()
        time.sleep(0.005)
    kept.clear()


def image_message(
    pixels: np.ndarray, *, stamp_ns: int = 1_000_000_007, frame_id: str = "camera_optical"
) -> Image:
    """An rgb8 Image of (height, width, 3) uint8."""
    message = Image(
        height=pixels.shape[0], width=pixels.shape[1], encoding="rgb8", step=pixels.shape[1] * 3
    )
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
    message.header.frame_id = frame_id
    data = array.array("B")
    data.frombytes(pixels.tobytes())
    message.data = data
    return message


def plain_image(red: int, green: int = 0, blue: int = 0, **header: Any) -> Image:
    """A small image of one colour."""
    return image_message(np.full((6, 8, 3), (red, green, blue), np.uint8), **header)


class World:
    """What a test sees: the node, what it published, and a client that talks to it."""

    def __init__(self, photon: Any, parameters: dict[str, Any], arguments: list[str]) -> None:
        self.photon = photon
        self.namespace = f"/test_{next(_numbers)}"
        given = [*arguments, "-r", f"__ns:={self.namespace}"]
        for name, value in parameters.items():
            given += ["-p", f"{name}:={value}"]
        self.load_error: Exception | None = None
        self.node = PerceptionNode(self._load, cli_arguments=["--ros-args", *given])
        self.client = Node("client", namespace=self.namespace)
        # Before anything spins: an executor may look at an action client that is half made.
        self.ask_client = ActionClient(self.client, Ask, "photon/ask")
        self.arrays: list[PhotonDetectionArray] = []
        self.stats: list[PerceptionStats] = []
        self.statuses: list[DiagnosticStatus] = []
        self._executors: list[SingleThreadedExecutor] = []
        self._threads: list[threading.Thread] = []
        self._is_closing = False
        for node in (self.node, self.client):
            executor = SingleThreadedExecutor()
            executor.add_node(node)
            thread = threading.Thread(target=self._spin, args=(executor,), daemon=True)
            self._executors.append(executor)
            self._threads.append(thread)

    def _load(self, config: Any, device: str) -> FakePhoton:
        if self.load_error is not None:
            raise self.load_error
        return self.photon

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def listen(self, camera: str = "") -> None:
        """Collect the node's output of one camera and its diagnostics."""
        prefix = f"photon/{camera}" if camera else "photon"
        for kind, topic, kept in (
            (PhotonDetectionArray, f"{prefix}/detections", self.arrays),
            (PerceptionStats, f"{prefix}/stats", self.stats),
        ):
            subscription = self.client.create_subscription(kind, topic, kept.append, RELIABLE)
            wait_until(
                lambda name=subscription.topic_name: self.client.count_publishers(name),
                what=f"a publisher of {subscription.topic_name}",
            )
        self.listen_diagnostics()

    def listen_diagnostics(self) -> None:
        """Collect the statuses of /diagnostics."""
        self.client.create_subscription(
            DiagnosticArray,
            "/diagnostics",
            lambda message: self.statuses.extend(message.status),
            10,
        )

    def statuses_of(self, name: str) -> list[DiagnosticStatus]:
        """What came of one status: "engine", or a camera."""
        full_name = f"{self.node.get_fully_qualified_name()[1:]}: {name}"
        return [status for status in list(self.statuses) if status.name == full_name]

    def publisher(self, topic: str = "image", kind: Any = Image, qos: QoSProfile = RELIABLE) -> Any:
        """A publisher that the node's subscription has matched, seen from both sides."""
        publisher = self.client.create_publisher(kind, topic, qos)
        name = publisher.topic_name
        wait_until(lambda: publisher.get_subscription_count() == 1, what=f"a match on {name}")
        wait_until(
            lambda: any(
                item.topic_name == name and item.get_publisher_count()
                for item in list(self.node.subscriptions)
            ),
            what=f"the node's match on {name}",
        )
        return publisher

    def ask(self, publisher: Any, message: Any) -> PhotonDetectionArray:
        """Publish one image and return its answer."""
        num_before = len(self.arrays)
        publisher.publish(message)
        wait_until(lambda: len(self.arrays) > num_before, what="an answer")
        return self.arrays[num_before]

    def call(self, kind: Any, name: str, request: Any, timeout_s: float = PATIENCE_S) -> Any:
        """Call a service of the node and return the response."""
        future = self.begin(kind, name, request)
        wait_until(future.done, timeout_s, f"an answer of {name}")
        return future.result()

    def begin(self, kind: Any, name: str, request: Any) -> Any:
        """Call a service of the node and return the future of the response."""
        client = self.client.create_client(kind, f"photon/{name}")
        assert client.wait_for_service(timeout_sec=PATIENCE_S), name
        return client.call_async(request)

    def set(self, **values: Any) -> list[Any]:
        """Set parameters one by one; return a SetParametersResult each."""
        request = SetParameters.Request(parameters=_messages(values))
        return list(self.call(SetParameters, "set_parameters", request).results)

    def set_together(self, **values: Any) -> Any:
        """Set parameters atomically; return one SetParametersResult."""
        request = SetParametersAtomically.Request(parameters=_messages(values))
        return self.call(SetParametersAtomically, "set_parameters_atomically", request).result

    def describe(self, *names: str) -> list[Any]:
        """Return the descriptors of parameters."""
        request = DescribeParameters.Request(names=list(names))
        return list(self.call(DescribeParameters, "describe_parameters", request).descriptors)

    def change_state(self, name: str) -> bool:
        """Ask for a lifecycle transition; return whether it succeeded."""
        transition = getattr(Transition, f"TRANSITION_{name}")
        request = ChangeState.Request(transition=Transition(id=transition))
        return bool(self.call(ChangeState, "change_state", request).success)

    def _spin(self, executor: SingleThreadedExecutor) -> None:
        while not self._is_closing:
            executor.spin_once(timeout_sec=1.0)

    def close(self) -> None:
        self._is_closing = True
        for executor in self._executors:
            executor.wake()
        for thread in self._threads:
            thread.join(timeout=PATIENCE_S)
            assert not thread.is_alive(), "it spins on while its nodes are taken apart"
        # Only now: an executor that is shut down while it spins may meet its handles destroyed.
        for executor in self._executors:
            executor.shutdown(timeout_sec=2.0)
        self.node.finish()
        self.node.destroy_node()
        self.ask_client.destroy()
        self.client.destroy_node()
        self.photon.close()


def _messages(values: dict[str, Any]) -> list[Any]:
    return [
        Parameter(name.replace("__", "."), value=value).to_parameter_msg()
        for name, value in values.items()
    ]


@contextmanager
def world(
    *,
    service_s: float = 0.0,
    arguments: tuple[str, ...] = (),
    start: bool = True,
    listen: bool = True,
    photon: Any = None,
    **parameters: Any,
) -> Iterator[World]:
    """A running world; parameters with "__" for ".", as ROS arguments write them.

    Without a ``photon`` of the test's own its engine is a fake one.
    """
    names = {name.replace("__", "."): value for name, value in parameters.items()}
    built = World(photon or FakePhoton(service_s), names, list(arguments))
    try:
        if start:
            assert built.node.start()
        built.start()
        if listen:
            built.listen()
        yield built
    finally:
        built.close()
