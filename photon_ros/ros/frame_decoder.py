"""FrameDecoder: messages to frames, for the stream of a camera and for single questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.serialization import deserialize_message

from photon_ros.ros.arrival import Arrival, BadFrame, Decoded
from photon_ros.ros.conversions import decode_message, format_of, message_type
from photon_ros.ros.cv_bridge_fallback import converter, installed_cv_bridge
from photon_ros.ros.mailbox import Taken
from photon_ros.ros.params import NodeConfig


class FrameDecoder:
    """Decodes on whichever thread asks.

    Args:
        config: gives the parameters in force, for single questions.
        now_ns: gives the ROS time.
        note_format: told camera, encoding, width and height of each frame of a stream.
    """

    def __init__(
        self,
        config: Callable[[], NodeConfig],
        now_ns: Callable[[], int],
        note_format: Callable[[str, str, int, int], None],
    ) -> None:
        self._config = config
        self._now_ns = now_ns
        self._note_format = note_format
        self._convert_other = converter(installed_cv_bridge())

    def taken(self, camera: str, taken: Taken[Arrival], config: NodeConfig) -> Decoded:
        """Decode a frame of a camera's stream; raises BadFrame."""
        message = _deserialised(taken.item, config)
        stamp_ns = taken.item.receive_stamp_ns
        decoded = self._decode(message, camera, taken.sequence, stamp_ns, config)
        frame = decoded.frame
        self._note_format(camera, format_of(message), frame.width_px, frame.height_px)
        return decoded

    def arrival(self, camera: str, arrival: Arrival) -> Decoded:
        """Decode a received message for a single question; raises BadFrame."""
        config = self._config()
        message = _deserialised(arrival, config)
        return self._decode(message, camera, 0, arrival.receive_stamp_ns, config)

    def message(self, camera: str, message: Any) -> Decoded:
        """Decode an Image for a single question; raises BadFrame."""
        return self._decode(message, camera, 0, self._now_ns(), self._config())

    def _decode(
        self, message: Any, camera: str, sequence: int, receive_stamp_ns: int, config: NodeConfig
    ) -> Decoded:
        return decode_message(
            message,
            camera=camera,
            sequence=sequence,
            receive_stamp_ns=receive_stamp_ns,
            config=config,
            convert_other=self._convert_other,
        )


def _deserialised(arrival: Arrival, config: NodeConfig) -> Any:
    kind = message_type(config.image_transport)
    try:
        return deserialize_message(arrival.serialised, kind)
    except Exception as error:
        raise BadFrame(f"not a serialised {kind.__name__}: {error}") from error
