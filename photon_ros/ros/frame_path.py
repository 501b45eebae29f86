"""FramePath: the way of every camera's frames through an active node.

    image -> mailbox -> feeder (own thread) -> Photon (own threads) -> outbox -> ~/detections
                                               painter (own thread) -> outbox -> ~/overlay ...

Image callbacks only fill a mailbox, and everything is published by the executor.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rclpy.node import Node

from photon_ros.ros.answer import Answer, AnswerStatus
from photon_ros.ros.arrival import Arrival
from photon_ros.ros.camera_outputs import Drawn
from photon_ros.ros.camera_port import CameraPort
from photon_ros.ros.feeder import Feeder
from photon_ros.ros.frame_decoder import FrameDecoder
from photon_ros.ros.live_config import LiveConfig
from photon_ros.ros.loaded_engine import LoadedEngine
from photon_ros.ros.painter import Painter

# Together well below the 2 s within which the node ends with work in flight.
DRAIN_S = 0.5
FLUSH_S = 0.3


class FramePath:
    """From activation to deactivation; its input is closed at first.

    Args:
        ports: one for each camera, by its name.
        live: gives the config in force, read once per frame.
        note_error: told why a frame, a drawing or a publication failed.
    """

    def __init__(
        self,
        node: Node,
        engine: LoadedEngine,
        ports: Mapping[str, CameraPort],
        live: Callable[[], LiveConfig],
        note_error: Callable[[str], None],
    ) -> None:
        self._node = node
        self._logger = node.get_logger()
        self._ports = ports
        self._live = live
        self._note_error = note_error
        self._outbox: deque[Answer | Drawn] = deque()
        self._outbox_filled = node.create_guard_condition(self._publish_waiting)
        self.decoder = FrameDecoder(lambda: live().config, self._now_ns, self._note_format)
        self._painter: Painter[Drawn] = Painter(self._deliver_drawn, self._on_drawing_failed)
        self._feeder = Feeder(
            engine,
            {name: port.mailbox for name, port in ports.items()},
            decode=self.decoder.taken,
            live_config=live,
            deliver=self._deliver,
            on_bad_frame=self._on_bad_frame,
            on_defect=self._on_defect,
            # A second frame in the engine overlaps with the first one on a GPU. On the CPU they
            # share the cores, and both answers would come later.
            max_in_engine=1 if engine.device == "cpu" else 2,
        )

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)

    # What the services do

    @property
    def is_enabled(self) -> bool:
        """True while the input is open."""
        return any(port.is_subscribed for port in self._ports.values())

    def enable(self) -> None:
        """Open the input."""
        config = self._live().config
        for name, port in self._ports.items():
            if not port.is_subscribed:
                port.subscribe(config, partial(self._on_image, name))
                self._logger.info(f"listening to {port.topic} ({config.qos_reliability})")

    def disable(self) -> None:
        """Close the input; what is in the engine is answered."""
        for port in self._ports.values():
            port.unsubscribe()

    def flush(self, reason: str) -> None:
        """Drop what waits, and give up what is in the engine."""
        for name in self._ports:
            self._flush(name, reason)

    def _flush(self, camera: str, reason: str) -> None:
        self._ports[camera].latest = None  # no question is about what came before
        self._feeder.flush(camera, reason)

    def close(self) -> None:
        """Close the input, answer what is in flight, and publish the account that closes."""
        self.disable()
        self._feeder.close()
        deadline_s = time.monotonic() + DRAIN_S
        # The executor is busy with this transition, so the answers are published from here.
        while not self._feeder.wait_idle(0.02) and time.monotonic() < deadline_s:
            self._publish_waiting()
        self._feeder.cancel()
        self._publish_waiting()
        self._painter.close()
        self._publish_waiting()
        self._node.destroy_guard_condition(self._outbox_filled)
        for port in self._ports.values():
            port.latest = None
            port.publish_stats()
            port.outputs.flush(FLUSH_S / len(self._ports))

    # In

    def _on_image(self, camera: str, serialised: bytes) -> None:
        now_s = time.monotonic()
        port = self._ports[camera]
        if port.intake.add(serialised, now_s=now_s):
            self._logger.warning(
                f"the stamps of {port.topic} jumped backward", throttle_duration_sec=5.0
            )
            self._flush(camera, "the camera's stamps jumped backward")
        port.latest = Arrival(serialised, now_s, self._now_ns())
        rate_hz = self._live().config.rate_limit_hz
        min_period_s = 1.0 / rate_hz if rate_hz > 0 else 0.0
        port.mailbox.put(port.latest, now_s=now_s, min_period_s=min_period_s)
        self._feeder.notify()

    def _note_format(self, camera: str, encoding: str, width_px: int, height_px: int) -> None:
        self._ports[camera].note_format(encoding, width_px, height_px)

    def _on_bad_frame(self, camera: str, reason: str) -> None:
        self._ports[camera].note_bad(reason)
        self._logger.warning(f"bad frame dropped: {reason}", throttle_duration_sec=5.0)

    def _on_defect(self, error: Exception) -> None:
        self._note_error(f"a frame could not be admitted or answered: {error!r}")
        self._logger.error(
            f"a frame could not be admitted or answered: {error!r}", throttle_duration_sec=5.0
        )

    # Out

    def _deliver(self, answer: Answer) -> None:
        self._outbox.append(answer)
        self._outbox_filled.trigger()

    def _deliver_drawn(self, drawn: Sequence[Drawn]) -> None:
        self._outbox.extend(drawn)
        self._outbox_filled.trigger()

    def _on_drawing_failed(self, error: Exception) -> None:
        self._note_error(f"cannot draw: {error}")
        self._logger.warning(f"cannot draw: {error}", throttle_duration_sec=5.0)

    def _publish_waiting(self) -> None:
        while self._outbox:
            item = self._outbox.popleft()
            try:
                if isinstance(item, Drawn):
                    item.publisher.publish(item.message)
                else:
                    self._publish_answer(item)
            except Exception as error:  # one bad answer must not end the node
                self._note_error(f"an answer could not be published: {error!r}")
                self._logger.error(f"an answer could not be published: {error!r}")

    def _publish_answer(self, answer: Answer) -> None:
        if answer.status is AnswerStatus.ERROR:
            self._note_error(f"{answer.skill}: {answer.error}")
        camera = answer.job.camera
        draw = self._ports[camera].publish_answer(answer, self._live().config)
        if draw is not None:
            self._painter.put(camera, draw)
