"""What is wrong with a camera's input, and what to do about it."""

from __future__ import annotations

import os

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.utilities import get_rmw_implementation_identifier

from photon_ros.ros.camera_port import CameraPort
from photon_ros.ros.compat import PROFILE_VARIABLE
from photon_ros.ros.conversions import message_type
from photon_ros.ros.intake import WINDOW_S, IntakeSummary
from photon_ros.ros.publishers import PublisherReading, type_name

# Seconds without an image after which a camera counts as silent.
SILENT_S = 5.0
# Share of the camera's frames below which the middleware loses them by the dozen.
MIN_DELIVERED = 0.5
# So many backward jumps within the intake's window are no recording that began again.
MIN_JUMPS = 3
# Clocks that are kept together differ by less, and a transform that old is still found.
MAX_AHEAD_S = 0.1

Problem = tuple[bytes, str]
"""A level of DiagnosticStatus, and the words for it."""
_WARN, _ERROR = DiagnosticStatus.WARN, DiagnosticStatus.ERROR


def input_problems(
    port: CameraPort, intake: IntakeSummary, publishers: PublisherReading
) -> list[Problem]:
    """Return what keeps an open input from being a good one."""
    problems = _graph_problems(port, publishers)
    is_unheard = bool(problems)
    if port.missing_info_topic:
        told = f"no camera_info has come on {port.missing_info_topic}, so there are no markers"
        problems.append((_WARN, told))
    if intake.silent_s > SILENT_S:
        problems.append((_WARN, f"no image for {SILENT_S:g} s on {port.topic}"))
        if not is_unheard:
            problems.append((_WARN, _silence(port, publishers)))
        return problems
    if intake.delivered < MIN_DELIVERED:
        lost = f"{intake.hz:.1f} of the camera's {intake.stamp_hz:.1f} frames per second arrive"
        problems.append((_WARN, f"{lost}; {loss_advice(get_rmw_implementation_identifier())}"))
    return problems + _stamp_problems(port, intake, publishers)


def _graph_problems(port: CameraPort, publishers: PublisherReading) -> list[Problem]:
    """Return why none of the publishers can be heard, if none can."""
    if publishers.heard:
        return []
    problems: list[Problem] = []
    if publishers.num_incompatible:
        problems.append((_ERROR, "a publisher's QoS does not match qos.reliability"))
    if publishers.other_types:
        wanted = type_name(message_type(port.image_transport))
        carried = ", ".join(sorted(set(publishers.other_types)))
        advice = ""
        if type_name(message_type(port.other_transport)) in publishers.other_types:
            advice = f": set image_transport to {port.other_transport}"
        problems.append(
            (
                _ERROR,
                f"{port.topic} carries {carried}, and image_transport {port.image_transport} takes "
                f"{wanted}{advice}",
            )
        )
    return problems


def _silence(port: CameraPort, publishers: PublisherReading) -> str:
    """Return why nothing comes although nothing speaks against it."""
    if publishers.num_seen:
        advice = loss_advice(get_rmw_implementation_identifier())
        return f"{publishers.num_seen} publisher(s) of it; {advice}"
    other = port.other_topic()
    if other:
        advice = f"set image_transport to {port.other_transport}"
        return f"nobody publishes it, but {other} is there: {advice}"
    return "nobody publishes it"


def _stamp_problems(
    port: CameraPort, intake: IntakeSummary, publishers: PublisherReading
) -> list[Problem]:
    problems: list[Problem] = []
    if intake.recent_jumps >= MIN_JUMPS:
        told = (
            f"{intake.recent_jumps} times in {WINDOW_S:g} s the stamps jumped backward, and each "
            "time what waited was dropped and what was being answered given up"
        )
        if len(publishers.heard) > 1:
            nodes = " and ".join(publishers.heard)
            advice = f"{port.topic} is published by {nodes}: keep one of them, or set their clocks"
        else:
            advice = "a recording that begins again and again, or a camera whose clock is reset"
        problems.append((_WARN, f"{told}; {advice}"))
    elif port.ahead_s() > MAX_AHEAD_S:
        problems.append(
            (
                _WARN,
                f"the stamps are {port.ahead_s():.1f} s ahead of this node's time: set both clocks "
                "by one source (NTP, PTP), and use_sim_time alike for camera and node",
            )
        )
    return problems


def loss_advice(middleware: str) -> str:
    """Return what to do where a middleware loses images without a word."""
    if "fastrtps" not in middleware:
        return f"{middleware} loses images that its buffers are too small for"
    profile = os.environ.get(PROFILE_VARIABLE, "config/fastdds.xml of photon_ros")
    return (
        "images above 512 KB are lost unless the camera driver is started with "
        f"{PROFILE_VARIABLE}={profile}"
    )
