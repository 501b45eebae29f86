"""The perception node: a lifecycle node that wires cameras, engine and topics together.

    image -> mailbox -> feeder (own thread) -> Photon (own threads) -> outbox -> ~/detections

Image callbacks only fill a mailbox and answers are published by the executor, so parameters and
services are served while the engine works.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.serialization import deserialize_message

from photon_ros.core.errors import InputError, PhotonError
from photon_ros.engine.config import EngineConfig
from photon_ros.photon import Photon
from photon_ros.ros.answer import Answer
from photon_ros.ros.arrival import Arrival, BadFrame, Decoded
from photon_ros.ros.camera_port import CameraPort
from photon_ros.ros.conversions import decode_message, message_type
from photon_ros.ros.diagnostics import camera_status, engine_status
from photon_ros.ros.feeder import Feeder, LiveConfig
from photon_ros.ros.mailbox import FrameCounts, Taken
from photon_ros.ros.params import NodeConfig
from photon_ros.ros.process import exit_now, ros_process, spin
from photon_ros.ros.ros_parameters import declare_config, set_callback

STATS_PERIOD_S = 1.0
# Together well below the 2 s within which the node ends with work in flight.
DRAIN_S = 0.5
FLUSH_S = 0.3
CLOSE_S = 0.5

SUCCESS = TransitionCallbackReturn.SUCCESS


class PerceptionNode(LifecycleNode):
    """The node ``photon``.

    Args:
        load: makes the engine from the parameters; raises PhotonError.
        cli_arguments: ROS arguments beside those of the process, for a node among others.

    Raises:
        InputError: a parameter given at the start is unknown or not allowed.
    """

    def __init__(
        self,
        load: Callable[[NodeConfig], Photon] | None = None,
        *,
        cli_arguments: Sequence[str] | None = None,
    ) -> None:
        super().__init__("photon", cli_args=cli_arguments)
        self._load = load or load_photon
        self._live = LiveConfig(declare_config(self), 0)
        self._photon: Photon | None = None
        self._feeder: Feeder | None = None
        self._is_shut_down = False
        self._ports: dict[str, CameraPort] = {}
        self._outbox: deque[Answer] = deque()
        self._answers_wait = self.create_guard_condition(self._publish_answers)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.add_on_set_parameters_callback(
            set_callback(lambda: self._live.config, self._check_config, self._apply_config)
        )
        self.create_timer(
            STATS_PERIOD_S, self._report, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    @property
    def config(self) -> NodeConfig:
        """The parameters in force."""
        return self._live.config

    def counts(self, camera: str) -> FrameCounts:
        """Return the account of one camera ("" for the only one) since it was configured."""
        return self._ports[camera].mailbox.counts()

    # Parameters

    def _check_config(self, config: NodeConfig) -> None:
        if self._photon is not None:
            for skill, prompt in config.asked():
                self._photon.validate(skill, prompt)

    def _apply_config(self, config: NodeConfig) -> None:
        changed = config.asked() != self._live.config.asked()
        # One assignment: a frame sees all of a change or nothing of it.
        self._live = LiveConfig(config, self._live.version + int(changed))

    # Transitions

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the model; FAILURE with the reason in the log when it cannot be."""
        del state
        began_s = time.monotonic()
        try:
            self._photon = self._load(self.config)
            self._check_config(self.config)
        except PhotonError as error:
            self.get_logger().error(f"cannot configure: {error}")
            self._close_photon()
            return TransitionCallbackReturn.FAILURE
        self._ports = {name: CameraPort(self, name) for name in self.config.cameras or ("",)}
        self.get_logger().info(
            f"loaded {self._photon.model_name} on {self.config.device} "
            f"in {time.monotonic() - began_s:.1f} s"
        )
        return SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open the input."""
        assert self._photon is not None
        self._feeder = Feeder(
            self._photon,
            {name: port.mailbox for name, port in self._ports.items()},
            decode=self._decode,
            live_config=lambda: self._live,
            deliver=self._deliver,
            on_bad_frame=self._on_bad_frame,
            # A second frame in the engine overlaps with the first one on a GPU. On the CPU they
            # share the cores, and both answers would come later.
            max_in_engine=1 if self.config.device == "cpu" else 2,
        )
        for name, port in self._ports.items():
            topic = port.subscribe(self.config, partial(self._on_image, name))
            self.get_logger().info(f"listening to {topic} ({self.config.qos_reliability})")
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the input, answer what is in flight, and publish the account that closes."""
        for port in self._ports.values():
            port.unsubscribe()
        if self._feeder is not None:
            self._drain(self._feeder)
            self._feeder = None
        for port in self._ports.values():
            port.publish_stats()
            port.flush(FLUSH_S / len(self._ports))
        return super().on_deactivate(state)

    def _drain(self, feeder: Feeder) -> None:
        feeder.close()
        deadline_s = time.monotonic() + DRAIN_S
        # The executor is busy with this transition, so the answers are published from here.
        while not feeder.wait_idle(0.02) and time.monotonic() < deadline_s:
            self._publish_answers()
        feeder.cancel()
        self._publish_answers()

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the model and the topics."""
        del state
        self._close_photon()
        for port in self._ports.values():
            port.destroy()
        self._ports = {}
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End from any state."""
        self._is_shut_down = True
        return self.on_error(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything after an unexpected error; the node can be configured again."""
        if self._feeder is not None:
            self.on_deactivate(state)
        return self.on_cleanup(state)

    def _close_photon(self) -> None:
        photon, self._photon = self._photon, None
        if photon is None:
            return
        # Closing waits for the step that runs, which takes seconds with a large model on a CPU.
        closing = threading.Thread(target=photon.close, name="photon-close", daemon=True)
        closing.start()
        closing.join(timeout=CLOSE_S)

    # The path of a frame

    def _on_image(self, camera: str, serialised: bytes) -> None:
        now_s = time.monotonic()
        arrival = Arrival(serialised, now_s, self.get_clock().now().nanoseconds)
        rate_hz = self.config.rate_limit_hz
        port = self._ports[camera]
        port.last_arrival_s = now_s
        port.mailbox.put(arrival, now_s=now_s, min_period_s=1.0 / rate_hz if rate_hz > 0 else 0.0)
        if self._feeder is not None:
            self._feeder.notify()

    def _decode(self, camera: str, taken: Taken[Arrival], config: NodeConfig) -> Decoded:
        kind = message_type(config.image_transport)
        try:
            message = deserialize_message(taken.item.serialised, kind)
        except Exception as error:
            raise BadFrame(f"not a serialised {kind.__name__}: {error}") from error
        return decode_message(
            message,
            camera=camera,
            sequence=taken.sequence,
            receive_stamp_ns=taken.item.receive_stamp_ns,
            config=config,
        )

    def _on_bad_frame(self, camera: str, reason: str) -> None:
        self._ports[camera].note_bad(reason)
        self.get_logger().warning(f"bad frame dropped: {reason}", throttle_duration_sec=5.0)

    def _deliver(self, answer: Answer) -> None:
        self._outbox.append(answer)
        self._answers_wait.trigger()

    def _publish_answers(self) -> None:
        while self._outbox:
            answer = self._outbox.popleft()
            try:
                self._ports[answer.job.camera].publish_answer(answer)
            except Exception as error:  # one bad answer must not end the node
                self.get_logger().error(f"an answer could not be published: {error!r}")

    def _report(self) -> None:
        is_active = self._feeder is not None
        for port in self._ports.values() if is_active else ():
            port.publish_stats()
        statuses = [engine_status(self.config, self._photon, is_active=is_active)]
        statuses += [camera_status(port, self.config) for port in self._ports.values()]
        array = DiagnosticArray(status=statuses)
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)

    # Start and end of the process

    def start(self) -> bool:
        """Configure and activate; return False when either failed."""
        return all(step() == SUCCESS for step in (self.trigger_configure, self.trigger_activate))

    def finish(self) -> None:
        """Deactivate, clean up and shut down, whatever the state."""
        if self._feeder is not None:
            self.trigger_deactivate()
        if self._photon is not None:
            self.trigger_cleanup()
        if not self._is_shut_down:
            self.trigger_shutdown()


def load_photon(config: NodeConfig) -> Photon:
    """Load the model named by the parameters; raises PhotonError."""
    return Photon(
        config.model_path,
        revision=config.model_revision or None,
        device=config.device,
        dtype=None if config.dtype == "auto" else config.dtype,
        config=EngineConfig(
            max_rows=config.max_streams,
            num_private_pages=config.kv_pages,
            pipelined=config.pipelined,
        ),
    )


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; return the exit code."""
    with ros_process(arguments) as stop:
        try:
            node = PerceptionNode()
        except InputError as error:
            print(f"photon_node: {error}", file=sys.stderr)
            return 2
        if node.config.autostart and not node.start():
            return 2
        spin(node, stop.is_set)
        node.finish()
        return 0


def main() -> None:
    """Entry point of the process."""
    exit_now(run())


if __name__ == "__main__":
    main()
