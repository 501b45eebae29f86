"""A camera message before and after it is decoded, free of ROS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from photon_ros.core.errors import ImageError
from photon_ros.core.frame import Frame

# A camera clock that is further off than this is another clock, not a slow transport.
MAX_TRANSPORT_MS = 60_000.0


class BadFrame(ImageError):
    """A camera message that cannot be used; the message says why."""


@dataclass(frozen=True, eq=False, slots=True)
class Arrival:
    """A camera message as received: still serialised, so that one never used costs little.

    Attributes:
        receive_s: steady time of reception.
        receive_stamp_ns: ROS time of reception.
    """

    serialised: bytes
    receive_s: float
    receive_stamp_ns: int


@dataclass(frozen=True, eq=False, slots=True)
class Decoded:
    """A camera message taken apart.

    Attributes:
        header: the std_msgs/Header that the answers carry: the camera's, unchanged, unless
            zero_stamp_policy replaced its stamp.
    """

    frame: Frame
    header: Any


def transport_ms(frame_stamp_ns: int, receive_stamp_ns: int) -> float:
    """Return the time from stamp to reception in ms; NaN where the clocks disagree."""
    elapsed_ms = (receive_stamp_ns - frame_stamp_ns) / 1e6
    if frame_stamp_ns == 0 or not 0.0 <= elapsed_ms <= MAX_TRANSPORT_MS:
        return math.nan
    return elapsed_ms


def age_ms(arrival: Arrival, stamp_ns: int, *, now_s: float) -> float:
    """Return a received frame's age in ms; since its reception where the clocks disagree.

    Args:
        now_s: steady time.
    """
    before_ms = transport_ms(stamp_ns, arrival.receive_stamp_ns)
    since_ms = (now_s - arrival.receive_s) * 1e3
    return since_ms if math.isnan(before_ms) else since_ms + before_ms
