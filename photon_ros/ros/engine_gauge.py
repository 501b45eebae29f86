"""EngineGauge: how busy the engine was since it was last read. No ROS here."""

from __future__ import annotations

import time
from dataclasses import dataclass

from photon_ros.engine.metrics import EngineLoad
from photon_ros.photon import Photon
from photon_ros.ros.load import gpu_memory_mb
from photon_ros.ros.shedder import Shedder


@dataclass(frozen=True, slots=True)
class EngineReading:
    """The engine now, and since the reading before.

    Attributes:
        vram_mb: used and total memory of its GPU; None on a CPU.
        decode_tok_s: tokens per second.
        step_idle_ms: mean time before a step for which the device had nothing to do although
            there was work; 0 without steps.
        oom_recoveries: how often the GPU's memory ran out, since the model was loaded.
        since_oom_s: seconds since it last did; infinite when it never has.
    """

    load: EngineLoad
    vram_mb: tuple[float, float] | None
    decode_tok_s: float
    step_idle_ms: float
    oom_recoveries: int
    since_oom_s: float


class EngineGauge:
    """Reads one engine; the differences are those since the reading before."""

    def __init__(self, photon: Photon, shedder: Shedder, device: str) -> None:
        self._photon = photon
        self._shedder = shedder
        self._device = device
        self._read_s = time.monotonic()
        self._num_tokens = photon.engine_stats.num_tokens

    def read(self) -> EngineReading:
        """Return the reading of this moment."""
        stats, now_s = self._photon.engine_stats, time.monotonic()
        num_tokens, self._num_tokens = stats.num_tokens - self._num_tokens, stats.num_tokens
        since_s, self._read_s = self._read_s, now_s
        # A copy first: the engine's thread appends while this one reads.
        recent = [record for record in stats.records.copy() if record.committed_s >= since_s]
        return EngineReading(
            load=self._photon.engine_load,
            vram_mb=gpu_memory_mb(self._device),
            decode_tok_s=num_tokens / max(1e-9, now_s - since_s),
            step_idle_ms=1e3 * sum(r.idle_s for r in recent) / max(1, len(recent)),
            oom_recoveries=self._shedder.num_recoveries,
            since_oom_s=now_s - self._shedder.recovery_s,
        )
