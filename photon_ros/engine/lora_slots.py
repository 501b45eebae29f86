"""LoraSlots: which adapter is in which slot, and how many rows read it. No torch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from photon_ros.engine.page_pool import PageError

NO_ADAPTER = 0


class LoraSlots:
    """Slots 1 to ``num_slots``, counted; slot 0 is no adapter and always free."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots, 0, -1))
        # Oldest use first: an unread adapter is evicted from the front.
        self._slot_of: OrderedDict[Hashable, int] = OrderedDict()
        self._num_readers: dict[int, int] = {}

    def can_take(self, adapter: Hashable | None) -> bool:
        """True when the adapter is in a slot, or one can be found for it."""
        if adapter is None or adapter in self._slot_of or self._free:
            return True
        return any(count == 0 for count in self._num_readers.values())

    def take(self, adapter: Hashable | None) -> tuple[int, bool]:
        """Return (slot, must be loaded) with one more reader."""
        if adapter is None:
            return NO_ADAPTER, False
        slot = self._slot_of.get(adapter)
        is_new = slot is None
        if slot is None:
            slot = self._free.pop() if self._free else self._evict_one()
            self._slot_of[adapter] = slot
            self._num_readers[slot] = 0
        self._slot_of.move_to_end(adapter)
        self._num_readers[slot] += 1
        return slot, is_new

    def give(self, slot: int) -> None:
        """Drop one reader; raises PageError when there is none."""
        if slot == NO_ADAPTER:
            return
        if self._num_readers.get(slot, 0) < 1:
            raise PageError(f"LoRA slot {slot} given back but nobody reads it")
        self._num_readers[slot] -= 1

    @property
    def num_readers(self) -> int:
        """Rows that read some adapter."""
        return sum(self._num_readers.values())

    def forget(self, slot: int) -> None:
        """Make a slot's content unfindable, because loading it failed; readers give it back."""
        for adapter, held in list(self._slot_of.items()):
            if held == slot:
                del self._slot_of[adapter]
                self._slot_of[object()] = slot

    def _evict_one(self) -> int:
        for adapter, slot in self._slot_of.items():
            if self._num_readers[slot] == 0:
                del self._slot_of[adapter]
                return slot
        raise PageError("no LoRA slot can be reused: all are read")
