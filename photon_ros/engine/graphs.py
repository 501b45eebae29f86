"""Graphs: a step's device work, captured once per shape and replayed.

An operation may be captured when everything it reads that changes from step to step lies in
buffers that never move; shapes, and which parts of sampling run, belong to its key. The first
run of a key is eager and warms it up, the second is captured, later ones are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from photon_ros.engine.device import Device


class Graphs:
    """Captured operations of one device by key."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._warm: set[Hashable] = set()
        self._replays: dict[Hashable, Callable[[], None]] = {}
        self.num_replays = 0

    def run(self, key: Hashable, op: Callable[[], None]) -> None:
        """Run ``op`` or replay what an earlier ``op`` of the same key did.

        Called where the device runs operations, on the compute stream.
        """
        replay = self._replays.get(key)
        if replay is None and key in self._warm:
            # Capturing queues nothing, so the first replay follows at once.
            replay = self._replays[key] = self._device.capture(op)
        if replay is None:
            self._warm.add(key)
            op()
            return
        self.num_replays += 1
        replay()
