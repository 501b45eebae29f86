"""The perception node: a lifecycle node that wires cameras, engine and topics together.

    image -> mailbox -> feeder (own thread) -> Photon (own threads) -> outbox -> ~/detections
                                               painter (own thread) -> outbox -> ~/overlay ...

Image callbacks only fill a mailbox and everything is published by the executor, so parameters and
services are served while the engine works.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock, ClockType
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.timer import Timer

from photon_ros.core.errors import InputError, PhotonError
from photon_ros.photon import Photon
from photon_ros.ros.answer import Answer, AnswerStatus
from photon_ros.ros.arrival import Arrival
from photon_ros.ros.camera_outputs import Drawn
from photon_ros.ros.camera_port import CameraPort
from photon_ros.ros.clock_watch import ClockWatch
from photon_ros.ros.controls import create_services
from photon_ros.ros.desk import QuestionDesk
from photon_ros.ros.diagnostics import NodeReading, camera_status, engine_status
from photon_ros.ros.feeder import Feeder, LiveConfig
from photon_ros.ros.frame_decoder import FrameDecoder
from photon_ros.ros.inquiry import Inquiry
from photon_ros.ros.load import load_photon, usable_device
from photon_ros.ros.loaded_engine import LoadedEngine
from photon_ros.ros.mailbox import FrameCounts
from photon_ros.ros.painter import Painter
from photon_ros.ros.params import NodeConfig
from photon_ros.ros.process import exit_now, ros_process, spin
from photon_ros.ros.ros_parameters import declare_config, set_callback

STATS_PERIOD_S = 1.0
# Together well below the 2 s within which the node ends with work in flight.
DRAIN_S = 0.5
FLUSH_S = 0.3
CLOSE_S = 0.5

SUCCESS = TransitionCallbackReturn.SUCCESS

Load = Callable[[NodeConfig, str], Photon]
"""Makes the engine from the parameters, on a device; raises PhotonError."""


class PerceptionNode(LifecycleNode):
    """The node ``photon``.

    Args:
        load: makes the engine.
        cli_arguments: ROS arguments beside those of the process, for a node among others.

    Raises:
        InputError: a parameter given at the start is unknown or not allowed.
    """

    def __init__(
        self, load: Load = load_photon, *, cli_arguments: Sequence[str] | None = None
    ) -> None:
        super().__init__("photon", cli_args=cli_arguments)
        self._load = load
        self._live = LiveConfig(declare_config(self), 0)
        self._engine: LoadedEngine | None = None
        self._feeder: Feeder | None = None
        self._painter: Painter[Drawn] | None = None
        self._ports: dict[str, CameraPort] = {}
        self._last_error = ""
        self._is_shut_down = False
        self._outbox: deque[Answer | Drawn] = deque()
        self._outbox_filled = self.create_guard_condition(self._publish_waiting)
        self._decoder = FrameDecoder(lambda: self.config, self._now_ns, self._note_format)
        self._clock_watch = ClockWatch(self, self._on_clock_jump)
        self._desk = QuestionDesk(self, self._inquiry)
        create_services(self, self)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._steady_clock = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(STATS_PERIOD_S, self._publish_stats, clock=self._steady_clock)
        self._diagnostics_timer = self._new_diagnostics_timer()
        self.add_on_set_parameters_callback(
            set_callback(lambda: self._live.config, self._check_config, self._apply_config)
        )

    @property
    def config(self) -> NodeConfig:
        """The parameters in force."""
        return self._live.config

    def counts(self, camera: str) -> FrameCounts:
        """Return the account of one camera ("" for the only one)."""
        return self._ports[camera].mailbox.counts()

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    # Parameters

    def _check_config(self, config: NodeConfig) -> None:
        if self._engine is not None:
            for skill, prompt in config.asked():
                self._engine.photon.validate(skill, prompt)

    def _apply_config(self, config: NodeConfig) -> None:
        before, changed = self.config, config.asked() != self.config.asked()
        # One assignment: a frame sees all of a change or nothing of it.
        self._live = LiveConfig(config, self._live.version + int(changed))
        if config.diagnostics_period != before.diagnostics_period:
            self.destroy_timer(self._diagnostics_timer)
            self._diagnostics_timer = self._new_diagnostics_timer()

    # Transitions

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the model; FAILURE with the reason in the log when it cannot be."""
        del state
        began_s = time.monotonic()
        device = usable_device(self.config.device)
        if device != self.config.device:
            self.get_logger().warning(
                f"device {self.config.device} is not there: this torch sees no CUDA GPU. "
                f"Running on the {device}, which is many times slower"
            )
        try:
            self._engine = LoadedEngine(self._load(self.config, device), device)
            self._check_config(self.config)
        except PhotonError as error:
            self._last_error = f"cannot configure: {error}"
            self.get_logger().error(self._last_error)
            self._close_engine()
            return TransitionCallbackReturn.FAILURE
        self._ports = {name: CameraPort(self, name) for name in self.config.cameras or ("",)}
        self.get_logger().info(
            f"{self._engine.photon.model_name} is loaded and warm on {device} "
            f"after {time.monotonic() - began_s:.1f} s"
        )
        return SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open the input."""
        assert self._engine is not None
        self._feeder = Feeder(
            self._engine,
            {name: port.mailbox for name, port in self._ports.items()},
            decode=self._decoder.taken,
            live_config=lambda: self._live,
            deliver=self._deliver,
            on_bad_frame=self._on_bad_frame,
            # A second frame in the engine overlaps with the first one on a GPU. On the CPU they
            # share the cores, and both answers would come later.
            max_in_engine=1 if self._engine.device == "cpu" else 2,
        )
        self._painter = Painter(self._deliver_drawn, self._on_drawing_failed)
        self.set_enabled(True)
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the input, answer what is in flight, and publish the account that closes."""
        for port in self._ports.values():
            port.unsubscribe()
        self._desk.give_up_all()
        if self._feeder is not None:
            self._drain(self._feeder)
            self._feeder = None
        if self._painter is not None:
            self._painter.close()
            self._painter = None
            self._publish_waiting()
        for port in self._ports.values():
            port.publish_stats()
            port.outputs.flush(FLUSH_S / len(self._ports))
        return super().on_deactivate(state)

    def _drain(self, feeder: Feeder) -> None:
        feeder.close()
        deadline_s = time.monotonic() + DRAIN_S
        # The executor is busy with this transition, so the answers are published from here.
        while not feeder.wait_idle(0.02) and time.monotonic() < deadline_s:
            self._publish_waiting()
        feeder.cancel()
        self._publish_waiting()

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the model and the topics."""
        del state
        self._close_engine()
        self._outbox.clear()
        for port in self._ports.values():
            port.destroy()
        self._ports = {}
        return SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End from any state."""
        self._is_shut_down = True
        self._desk.close()
        self._clock_watch.close()
        return self.on_error(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything after an unexpected error; the node can be configured again."""
        if self._feeder is not None:
            self.on_deactivate(state)
        return self.on_cleanup(state)

    def _close_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close(CLOSE_S)

    # Services

    def set_enabled(self, is_enabled: bool) -> str:
        """Open or close the input of an active node; what is in the engine is answered."""
        self._require_active()
        for name, port in self._ports.items():
            if not is_enabled:
                port.unsubscribe()
            elif not port.is_subscribed:
                port.subscribe(self.config, partial(self._on_image, name))
                self.get_logger().info(f"listening to {port.topic} ({self.config.qos_reliability})")
        return "enabled" if is_enabled else "disabled"

    def reset_stats(self) -> str:
        """Begin every account anew."""
        for port in self._ports.values():
            port.reset_account()
        self._last_error = ""
        return f"the accounts of {len(self._ports)} camera(s) begin anew"

    def flush(self, reason: str) -> str:
        """Drop what waits, and give up what is in the engine."""
        feeder = self._require_active()
        for name in self._ports:
            feeder.flush(name, reason)
        return reason

    def _require_active(self) -> Feeder:
        if self._feeder is None:
            raise PhotonError(f"the node is {self._state()}, not active")
        return self._feeder

    def _inquiry(self) -> Inquiry:
        self._require_active()
        assert self._engine is not None
        return Inquiry(
            photon=self._engine.photon,
            submit_request=self._engine.submit,
            decoder=self._decoder,
            now_ns=self._now_ns,
            latest={name: port.latest for name, port in self._ports.items()},
            live=self._live,
        )

    # The path of a frame

    def _on_image(self, camera: str, serialised: bytes) -> None:
        now_s = time.monotonic()
        port = self._ports[camera]
        if port.intake.add(serialised, now_s=now_s) and self._feeder is not None:
            self.get_logger().warning(
                f"the stamps of {port.topic} jumped backward", throttle_duration_sec=5.0
            )
            self._feeder.flush(camera, "the camera's stamps jumped backward")
        port.latest = Arrival(serialised, now_s, self._now_ns())
        rate_hz = self.config.rate_limit_hz
        min_period_s = 1.0 / rate_hz if rate_hz > 0 else 0.0
        port.mailbox.put(port.latest, now_s=now_s, min_period_s=min_period_s)
        if self._feeder is not None:
            self._feeder.notify()

    def _on_clock_jump(self) -> None:
        if self._feeder is not None:
            self.get_logger().warning("ROS time jumped backward")
            self.flush("ROS time jumped backward")

    def _note_format(self, camera: str, encoding: str, width_px: int, height_px: int) -> None:
        self._ports[camera].note_format(encoding, width_px, height_px)

    def _on_bad_frame(self, camera: str, reason: str) -> None:
        self._ports[camera].note_bad(reason)
        self.get_logger().warning(f"bad frame dropped: {reason}", throttle_duration_sec=5.0)

    def _deliver(self, answer: Answer) -> None:
        self._outbox.append(answer)
        self._outbox_filled.trigger()

    def _deliver_drawn(self, drawn: Sequence[Drawn]) -> None:
        self._outbox.extend(drawn)
        self._outbox_filled.trigger()

    def _on_drawing_failed(self, error: Exception) -> None:
        self.get_logger().warning(f"cannot draw: {error}", throttle_duration_sec=5.0)

    def _publish_waiting(self) -> None:
        while self._outbox:
            item = self._outbox.popleft()
            try:
                if isinstance(item, Drawn):
                    item.publisher.publish(item.message)
                else:
                    self._publish_answer(item)
            except Exception as error:  # one bad answer must not end the node
                self.get_logger().error(f"an answer could not be published: {error!r}")

    def _publish_answer(self, answer: Answer) -> None:
        if answer.status is AnswerStatus.ERROR:
            self._last_error = f"{answer.skill}: {answer.error}"
        camera = answer.job.camera
        draw = self._ports[camera].publish_answer(answer, self.config)
        if draw is not None and self._painter is not None:
            self._painter.put(camera, draw)

    # Reports

    def _publish_stats(self) -> None:
        for port in self._ports.values() if self._feeder is not None else ():
            port.publish_stats()

    def _new_diagnostics_timer(self) -> Timer:
        period_s = self.config.diagnostics_period
        return self.create_timer(period_s, self._publish_diagnostics, clock=self._steady_clock)

    def _publish_diagnostics(self) -> None:
        engine = self._engine
        reading = NodeReading(
            state=self._state(),
            model=self.config.model_path if engine is None else engine.photon.model_name,
            device=self.config.device,
            actual_device="" if engine is None else engine.device,
            num_clock_jumps=self._clock_watch.num_jumps,
            last_error=self._last_error,
        )
        statuses = [engine_status(reading, None if engine is None else engine.reading())]
        statuses += [
            camera_status(port, self.config, is_active=port.is_subscribed)
            for port in self._ports.values()
        ]
        array = DiagnosticArray(status=statuses)
        array.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(array)

    def _state(self) -> str:
        if self._feeder is None:
            return "unconfigured" if self._engine is None else "inactive"
        is_open = any(port.is_subscribed for port in self._ports.values())
        return "active" if is_open else "disabled"

    # Start and end of the process

    def start(self) -> bool:
        """Configure and activate; return False when either failed."""
        return all(step() == SUCCESS for step in (self.trigger_configure, self.trigger_activate))

    def finish(self) -> None:
        """Deactivate, clean up and shut down, whatever the state."""
        if self._feeder is not None:
            self.trigger_deactivate()
        if self._engine is not None:
            self.trigger_cleanup()
        if not self._is_shut_down:
            self.trigger_shutdown()


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
