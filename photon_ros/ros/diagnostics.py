"""What /diagnostics says of the engine and of each camera."""

from __future__ import annotations

import math
import time
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

from photon_ros.photon import Photon
from photon_ros.ros.camera_port import CameraPort
from photon_ros.ros.params import NodeConfig

# Seconds without an image after which a camera counts as silent.
SILENT_S = 5.0


def engine_status(
    config: NodeConfig, photon: Photon | None, *, is_active: bool
) -> DiagnosticStatus:
    """Return the status of the model and the engine."""
    state = "active" if is_active else "unconfigured" if photon is None else "inactive"
    return _status(
        "engine",
        [],
        {
            "state": state,
            "model": config.model_path if photon is None else photon.model_name,
            "device": config.device,
        },
        summary=state,
    )


def camera_status(port: CameraPort, config: NodeConfig) -> DiagnosticStatus:
    """Return the status of one camera; warns by the diagnostics.* parameters."""
    now_s = time.monotonic()
    counts, summary = port.mailbox.counts(), port.window.summary(now_s=now_s)
    since_s = math.inf if port.last_arrival_s is None else now_s - port.last_arrival_s
    drop_ratio = counts.dropped / counts.received if counts.received else 0.0
    problems: list[tuple[bytes, str]] = []
    warn, error = DiagnosticStatus.WARN, DiagnosticStatus.ERROR
    if port.num_qos_mismatches:
        problems.append((error, "a publisher's QoS does not match qos.reliability"))
    if since_s > SILENT_S:
        problems.append((warn, f"no image for {SILENT_S:g} s"))
    if counts.bad:
        problems.append((warn, f"{counts.bad} bad frames"))
    if config.error_p95_ms and summary.p95_ms > config.error_p95_ms:
        problems.append((error, f"p95 latency {summary.p95_ms:.0f} ms"))
    elif config.warn_p95_ms and summary.p95_ms > config.warn_p95_ms:
        problems.append((warn, f"p95 latency {summary.p95_ms:.0f} ms"))
    if summary.fps < config.min_fps:
        problems.append((warn, f"{summary.fps:.1f} answers per second"))
    if drop_ratio > config.max_drop_ratio:
        problems.append((warn, f"{drop_ratio:.0%} of the frames dropped"))
    values = {
        "output_hz": f"{summary.fps:.2f}",
        "latency_p50_ms": f"{summary.p50_ms:.1f}",
        "latency_p95_ms": f"{summary.p95_ms:.1f}",
        "latency_p99_ms": f"{summary.p99_ms:.1f}",
        "received": counts.received,
        "completed": counts.completed,
        "failed": counts.failed,
        "dropped_overwritten": counts.overwritten,
        "dropped_stale": counts.stale,
        "dropped_rate": counts.rate,
        "dropped_bad": counts.bad,
        "dropped_reset": counts.reset,
        "qos_mismatch": port.num_qos_mismatches,
        "seconds_since_last_frame": "never" if math.isinf(since_s) else f"{since_s:.1f}",
    }
    values.update({f"bad: {reason}": count for reason, count in port.bad_reasons(5)})
    name = port.camera or "camera"
    return _status(name, problems, values, summary=f"{summary.fps:.1f} answers per second")


def _status(
    name: str, problems: list[tuple[bytes, str]], values: dict[str, Any], *, summary: str
) -> DiagnosticStatus:
    return DiagnosticStatus(
        level=max((level for level, _ in problems), default=DiagnosticStatus.OK),
        name=f"photon: {name}",
        message="; ".join(text for _, text in problems) or summary,
        hardware_id=name,
        values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
    )
