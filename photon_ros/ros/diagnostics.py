"""What /diagnostics says of the engine and of each camera."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from photon_ros.ros.camera_port import CameraPort
from photon_ros.ros.engine_gauge import EngineReading
from photon_ros.ros.input_problems import Problem, input_problems
from photon_ros.ros.intake import IntakeSummary
from photon_ros.ros.latency import LatencySummary
from photon_ros.ros.mailbox import FrameCounts
from photon_ros.ros.params import NodeConfig
from photon_ros.ros.publishers import PublisherReading

NUM_BAD_REASONS = 5
# For so long after it a bad frame, or an end of the GPU's memory, is worth a warning.
RECENT_S = 60.0

_WARN, _ERROR = DiagnosticStatus.WARN, DiagnosticStatus.ERROR


@dataclass(frozen=True, slots=True)
class NodeReading:
    """The node at one moment.

    Attributes:
        state: "unconfigured", "inactive", "active", or "disabled" (active with its input closed).
        model, device, actual_device: what was asked for, and what it runs on.
        num_clock_jumps: backward jumps of ROS time.
        has_time: False while simulated time is waited for.
        last_error: the latest reason why a frame, a drawing or a publication failed, or a model
            did not load; "" for none.
    """

    state: str
    model: str
    device: str
    actual_device: str
    num_clock_jumps: int
    has_time: bool
    last_error: str


def engine_status(node: NodeReading, engine: EngineReading | None) -> DiagnosticStatus:
    """Return the status of the model and the engine; None for ``engine`` without a model."""
    problems: list[Problem] = []
    if node.actual_device and node.device != node.actual_device:
        problems.append(
            (_WARN, f"asked for {node.device}, which is not there: runs on {node.actual_device}")
        )
    if node.state == "unconfigured" and node.last_error:
        problems.append((_ERROR, node.last_error))
    if not node.has_time:
        problems.append(
            (
                _WARN,
                "use_sim_time is true, and no time has come on /clock: start the simulation, or "
                "ros2 bag play with --clock",
            )
        )
    values: dict[str, Any] = {
        "state": node.state,
        "model": node.model,
        "device": node.device,
        "actual_device": node.actual_device,
    }
    if engine is not None:
        if engine.since_oom_s < RECENT_S:
            problems.append((_WARN, f"{engine.oom_recoveries} times out of GPU memory"))
        used_mb, total_mb = engine.vram_mb or (math.nan, math.nan)
        values |= {
            "vram_used_mb": f"{used_mb:.0f}",
            "vram_total_mb": f"{total_mb:.0f}",
            "kv_pages_used": engine.load.num_pages_used,
            "kv_pages_total": engine.load.num_pages,
            "streams_active": engine.load.num_running,
            "queue_depth": engine.load.num_waiting,
            "decode_tok_s": f"{engine.decode_tok_s:.1f}",
            "step_idle_ms": f"{engine.step_idle_ms:.2f}",
            "oom_recoveries": engine.oom_recoveries,
        }
    values |= {"clock_jumps": node.num_clock_jumps, "last_error": node.last_error}
    return _status("engine", problems, values, summary=node.state)


def camera_status(port: CameraPort, config: NodeConfig, *, is_active: bool) -> DiagnosticStatus:
    """Return the status of one camera; warns by the diagnostics.* parameters."""
    now_s = time.monotonic()
    counts, output = port.mailbox.counts(), port.window.summary(now_s=now_s)
    intake = port.intake.summary(now_s=now_s)
    publishers = port.publishers()
    problems: list[Problem] = []
    if is_active:
        problems += input_problems(port, intake, publishers)
        problems += _output_problems(counts, output, config)
    if now_s - port.bad_s < RECENT_S:
        problems.append((_WARN, f"{counts.bad} bad frames"))
    values = {
        **_intake_values(intake, publishers),
        **_output_values(counts, output),
        "image_age_ms": f"{port.image_age_ms:.1f}",
        "encoding": port.encoding,
        "resolution": port.resolution,
        **{f"bad: {reason}": count for reason, count in port.bad_reasons(NUM_BAD_REASONS)},
    }
    name = port.camera or "camera"
    return _status(name, problems, values, summary=f"{output.fps:.1f} answers per second")


def _intake_values(intake: IntakeSummary, publishers: PublisherReading) -> dict[str, Any]:
    return {
        "input_hz": f"{intake.hz:.2f}",
        "stamp_hz": f"{intake.stamp_hz:.2f}",
        "zero_stamps": intake.zero_stamps,
        "backward_stamps": intake.backward_stamps,
        "qos_mismatch": publishers.num_incompatible,
        "publishers_seen": publishers.num_seen,
        "seconds_since_last_frame": f"{intake.silent_s:.1f}",
    }


def _output_values(counts: FrameCounts, output: LatencySummary) -> dict[str, Any]:
    return {
        "output_hz": f"{output.fps:.2f}",
        "latency_p50_ms": f"{output.p50_ms:.1f}",
        "latency_p95_ms": f"{output.p95_ms:.1f}",
        "latency_p99_ms": f"{output.p99_ms:.1f}",
        "latency_slope_ms_per_min": f"{output.slope_ms_per_min:.1f}",
        "received": counts.received,
        "completed": counts.completed,
        "failed": counts.failed,
        "dropped_overwritten": counts.overwritten,
        "dropped_stale": counts.stale,
        "dropped_rate": counts.rate,
        "dropped_bad": counts.bad,
        "dropped_reset": counts.reset,
    }


def _output_problems(
    counts: FrameCounts, output: LatencySummary, config: NodeConfig
) -> list[Problem]:
    problems: list[Problem] = []
    if config.error_p95_ms and output.p95_ms > config.error_p95_ms:
        problems.append((_ERROR, f"p95 latency {output.p95_ms:.0f} ms"))
    elif config.warn_p95_ms and output.p95_ms > config.warn_p95_ms:
        problems.append((_WARN, f"p95 latency {output.p95_ms:.0f} ms"))
    if output.fps < config.min_fps:
        problems.append((_WARN, f"{output.fps:.1f} answers per second"))
    drop_ratio = counts.dropped / counts.received if counts.received else 0.0
    if drop_ratio > config.max_drop_ratio:
        problems.append((_WARN, f"{drop_ratio:.0%} of the frames dropped"))
    return problems


def _status(
    name: str, problems: list[Problem], values: dict[str, Any], *, summary: str
) -> DiagnosticStatus:
    return DiagnosticStatus(
        level=max((level for level, _ in problems), default=DiagnosticStatus.OK),
        name=name,
        message="; ".join(text for _, text in problems) or summary,
        hardware_id=name,
        values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
    )
