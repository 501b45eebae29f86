"""The perception node: a lifecycle node that wires cameras, engine, topics and services together.

Whatever may take long has a thread of its own (see frame_path.py and desk.py), so parameters and
services are served while the engine works.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from photon_ros.core.errors import InputError, PhotonError
from photon_ros.photon import Photon
from photon_ros.ros.camera_port import CameraPort
from photon_ros.ros.clock_watch import ClockWatch
from photon_ros.ros.compat import leave_graph
from photon_ros.ros.controls import create_services
from photon_ros.ros.desk import QuestionDesk
from photon_ros.ros.diagnostics import NodeReading, camera_status, engine_status
from photon_ros.ros.frame_path import FramePath
from photon_ros.ros.inquiry import Inquiry
from photon_ros.ros.live_config import LiveConfig
from photon_ros.ros.load import load_photon, usable_device
from photon_ros.ros.loaded_engine import LoadedEngine
from photon_ros.ros.mailbox import FrameCounts
from photon_ros.ros.params import NodeConfig
from photon_ros.ros.process import exit_now, ros_process, spin
from photon_ros.ros.reports import Reports
from photon_ros.ros.ros_parameters import declare_config, set_callback

CLOSE_S = 0.3
# A model takes a minute to load, and nobody who pressed ctrl-C waits for it.
NOTICE_S = 1.5

SUCCESS = TransitionCallbackReturn.SUCCESS

Transition = Callable[["PerceptionNode", LifecycleState], TransitionCallbackReturn]
Load = Callable[[NodeConfig, str], Photon]
"""Makes the engine from the parameters, on a device; raises PhotonError."""


def _told(transition: Transition) -> Transition:
    """Return the transition with the reason in the log when it raises: rclpy gives none."""

    @wraps(transition)
    def told(node: PerceptionNode, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            return transition(node, state)
        except Exception as error:
            node._tell_failure(transition.__name__.removeprefix("on_"), error)
            return TransitionCallbackReturn.ERROR

    return told


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
        self._live = LiveConfig(declare_config(self))
        self._engine: LoadedEngine | None = None
        self._path: FramePath | None = None
        self._ports: dict[str, CameraPort] = {}
        self._last_error = ""
        self._is_shut_down = False
        self._clock_watch = ClockWatch(self, self._on_clock_jump)
        self._desk = QuestionDesk(self, self._inquiry)
        create_services(self, self)
        self._reports = Reports(
            self, self._publish_stats, self._statuses, self.config.diagnostics_period
        )
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

    # Parameters

    def _check_config(self, config: NodeConfig) -> None:
        if self._engine is not None:
            for skill, prompt in config.asked():
                self._engine.photon.validate(skill, prompt)

    def _apply_config(self, config: NodeConfig) -> None:
        # One assignment: a frame sees all of a change or nothing of it.
        self._live = self._live.changed(config)
        self._reports.set_period(config.diagnostics_period)

    # Transitions

    @_told
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the model; FAILURE with the reason in the log when it cannot be."""
        del state
        began_s = time.monotonic()
        self._last_error = ""
        device = usable_device(self.config.device)
        if device != self.config.device:
            self.get_logger().warning(
                f"device {self.config.device} is not there: this torch sees no CUDA GPU. "
                f"Running on the {device}, which is many times slower"
            )
        try:
            self._engine = LoadedEngine(self._load(self.config, device), device)
            self._check_config(self.config)
            for name in self.config.cameras or ("",):
                self._ports[name] = CameraPort(self, name)
        except Exception as error:  # of a GPU's driver, a file system, a topic's name
            self._tell_failure("configure", error)
            self._free()
            return TransitionCallbackReturn.FAILURE
        self.get_logger().info(
            f"{self._engine.photon.model_name} is loaded and warm on {device} "
            f"after {time.monotonic() - began_s:.1f} s"
        )
        return SUCCESS

    @_told
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open the input."""
        assert self._engine is not None
        self._path = FramePath(
            self, self._engine, self._ports, lambda: self._live, self._note_error
        )
        self._path.enable()
        return super().on_activate(state)

    @_told
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the input, answer what is in flight, and publish the account that closes."""
        path, self._path = self._path, None
        # Now nothing more can be asked, and what has been is known to the desk.
        self._desk.give_up_all()
        if path is not None:
            path.close()
        return super().on_deactivate(state)

    @_told
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the model and the topics; what failed with them is over, too."""
        del state
        self._free()
        self._last_error = ""
        return SUCCESS

    @_told
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End from any state."""
        self._end()
        return self.on_error(state)

    @_told
    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free everything after an unexpected error; the node can be configured again."""
        if self._path is not None:
            self.on_deactivate(state)
        self._free()
        return SUCCESS

    def _end(self) -> None:
        if not self._is_shut_down:
            self._is_shut_down = True
            self._desk.close()
            self._clock_watch.close()

    def _tell_failure(self, what: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, PhotonError) else repr(error)
        self._last_error = f"cannot {what}: {reason}"
        self.get_logger().error(self._last_error)

    def _free(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close(CLOSE_S)
        for port in self._ports.values():
            port.destroy()
        self._ports = {}

    # Services

    def set_enabled(self, is_enabled: bool) -> str:
        """Open or close the input of an active node; what is in the engine is answered."""
        path = self._active_path()
        if is_enabled:
            path.enable()
        else:
            path.disable()
        return "enabled" if is_enabled else "disabled"

    def reset_stats(self) -> str:
        """Begin every account anew."""
        for port in self._ports.values():
            port.reset_account()
        self._last_error = ""
        return f"the accounts of {len(self._ports)} camera(s) begin anew"

    def flush(self, reason: str) -> str:
        """Drop what waits, and give up what is in the engine."""
        self._active_path().flush(reason)
        return reason

    def _active_path(self) -> FramePath:
        if self._path is None:
            raise PhotonError(f"the node is {self._state()}, not active")
        return self._path

    def _inquiry(self) -> Inquiry:
        path, engine = self._active_path(), self._engine
        assert engine is not None
        return Inquiry(
            engine=engine,
            decoder=path.decoder,
            now_ns=lambda: int(self.get_clock().now().nanoseconds),
            latest={name: port.latest for name, port in self._ports.items()},
            live=self._live,
        )

    # Time and reports

    def _on_clock_jump(self) -> None:
        if self._path is not None:
            self.get_logger().warning("ROS time jumped backward")
            self._path.flush("ROS time jumped backward")

    def _note_error(self, reason: str) -> None:
        self._last_error = reason

    def _publish_stats(self) -> None:
        for port in self._ports.values() if self._path is not None else ():
            port.publish_stats()

    def _statuses(self) -> list[DiagnosticStatus]:
        engine = self._engine
        reading = NodeReading(
            state=self._state(),
            model=self.config.model_path if engine is None else engine.photon.model_name,
            device=self.config.device,
            actual_device="" if engine is None else engine.device,
            num_clock_jumps=self._clock_watch.num_jumps,
            has_time=self.get_clock().now().nanoseconds != 0,
            last_error=self._last_error,
        )
        return [
            engine_status(reading, None if engine is None else engine.reading()),
            *(
                camera_status(port, self.config, is_active=port.is_subscribed)
                for port in self._ports.values()
            ),
        ]

    def _state(self) -> str:
        if self._path is None:
            return "unconfigured" if self._engine is None else "inactive"
        return "active" if self._path.is_enabled else "disabled"

    # Start and end of the process

    def start(self) -> bool:
        """Configure and activate; return False when either failed."""
        return all(step() == SUCCESS for step in (self.trigger_configure, self.trigger_activate))

    def finish(self) -> None:
        """Deactivate, clean up and shut down, whatever the state."""
        if self._path is not None:
            self.trigger_deactivate()
        if self._engine is not None:
            self.trigger_cleanup()
        if not self._is_shut_down:
            with suppress(RuntimeError):  # rclpy's, where an error has finalized the node already
                self.trigger_shutdown()
        self._end()

    def destroy_node(self) -> None:
        """Leave the graph."""
        super().destroy_node()
        leave_graph(self)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the node until SIGINT or SIGTERM; return the exit code."""
    with ros_process(arguments, notice_within_s=NOTICE_S) as stop:
        try:
            node = PerceptionNode()
        except InputError as error:
            print(f"photon_node: {error}", file=sys.stderr)
            return 2
        if node.config.autostart and not node.start():
            node.destroy_node()
            return 2
        spin(node, stop.is_set)
        stop.notice()
        node.finish()
        node.destroy_node()
        return 0


def main() -> None:
    """Entry point of the process."""
    exit_now(run())


if __name__ == "__main__":
    main()
