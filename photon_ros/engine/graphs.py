"""Graphs: a step's device work, captured once per shape and replayed.

An operation may be captured when everything it reads that changes from step to step lies in
buffers that never move; shapes, and which parts of sampling run, belong to its key. The first
run of a key is eager and warms it up, the second is captured, later ones are replayed. When a
capture fails, for want of memory or because the model cannot be captured, it is the last one
that is tried: what is not captured by then runs eagerly, slower and with the same tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from photon_ros.engine.device import Device

logger = logging.getLogger(__name__)


class Graphs:
    """Captured operations of one device by key."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._warm: set[Hashable] = set()
        self._replays: dict[Hashable, Callable[[], None]] = {}
        self._may_capture = True
        self.num_replays = 0

    def run(self, key: Hashable, op: Callable[[], None]) -> None:
        """Run ``op`` or replay what an earlier ``op`` of the same key did.

        Called where the device runs operations, on the compute stream.
        """
        if key in self._warm and key not in self._replays and self._may_capture:
            self._capture(key, op)
        self._warm.add(key)
        replay = self._replays.get(key)
        if replay is None:
            op()
        else:  # at once after the capture, too, which queued nothing
            self.num_replays += 1
            replay()

    def _capture(self, key: Hashable, op: Callable[[], None]) -> None:
        try:
            self._replays[key] = self._device.capture(op)
        except Exception:
            self._may_capture = False
            logger.warning(
                "a step could not be captured; from now on new ones run eagerly", exc_info=True
            )
