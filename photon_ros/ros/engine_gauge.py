"""EngineGauge: how busy the engine was since it was last read. No ROS here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from photon_ros.engine.metrics import EngineLoad, StepRecord
from photon_ros.photon import Photon
from photon_ros.ros.load import gpu_memory_mb
from photon_ros.ros.shedder import Shedder


@dataclass(frozen=True, slots=True)
class EngineReading:
    """The engine now, and since the reading before.

    Attributes:
        vram_mb: used and total memory of its GPU; None on a CPU.
        decode_tok_s: tokens per second.
        step_idle_ms: mean time from a step's end to the launch of the next, where the next was
            not launched before: the time for which the device had nothing to do.
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
            step_idle_ms=step_idle_ms(recent),
            oom_recoveries=self._shedder.num_recoveries,
            since_oom_s=now_s - self._shedder.recovery_s,
        )


def step_idle_ms(records: Sequence[StepRecord]) -> float:
    """Return the mean idle time between neighbouring steps in ms, oldest first; 0 for none.

    A step that was launched before the one before had ended left no gap. Where the engine had
    no work at all the gap is not the loop's doing, but it is time the device idles all the same.
    """
    gaps_s = [max(0.0, later.launched_s - earlier.copied_s) for earlier, later in pairwise(records)]
    return 1e3 * sum(gaps_s) / len(gaps_s) if gaps_s else 0.0
