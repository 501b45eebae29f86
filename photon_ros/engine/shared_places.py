"""SharedPlaces: a fixed number of places whose content several sequences may read. No torch.

A frame's extent of the cache and an adapter's slot are both of this kind: found by key, counted
while somebody holds them, kept unheld until the room is needed, and no longer found once what
they hold is known to be garbage.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from photon_ros.core.errors import PhotonError


class PageError(PhotonError, AssertionError):
    """The engine broke an ownership rule; never the caller's fault."""


@dataclass(eq=False, slots=True)
class Place:
    """One place and what it is for.

    Attributes:
        number: which place it is: an extent's first page, or an adapter's slot.
        num_holders: sequences that read it. At zero it is kept for reuse until evicted.
        is_launched: what fills it is on the compute stream, so later steps may read it.
        lora_slot: of a frame, the adapter its prefill ran with; part of what its key tells apart.
    """

    key: Hashable
    number: int
    num_holders: int = 0
    is_launched: bool = False
    lora_slot: int = 0


class SharedPlaces:
    """Finds, counts and evicts the content of numbered places."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._free = list(numbers)[::-1]
        self._num_places = len(self._free)
        # Oldest use first: eviction takes from the front.
        self._places: OrderedDict[Hashable, Place] = OrderedDict()
        self._dropped: set[Place] = set()

    @property
    def num_free(self) -> int:
        """Places without content."""
        return len(self._free)

    def has(self, key: Hashable) -> bool:
        """True when the content is there, launched or about to be."""
        return key in self._places

    def can_hold(self, key: Hashable) -> bool:
        """True when the content is there or room for it can be made."""
        return key in self._places or bool(self._free) or self._oldest_unheld() is not None

    def hold(self, key: Hashable) -> Place:
        """Return the place of ``key`` with one more holder, making room if it is new."""
        place = self._places.get(key)
        if place is None:
            if not self._free:
                evicted = self._oldest_unheld()
                if evicted is None:
                    raise PageError("no place can be made free: all are held")
                self._remove(evicted)
            place = self._places[key] = Place(key, self._free.pop())
        place.num_holders += 1
        self._places.move_to_end(key)
        return place

    def let_go(self, place: Place) -> None:
        """Drop one holder. A place that was never launched, or was dropped, becomes free."""
        if place.num_holders < 1:
            raise PageError(f"place of {place.key!r} let go but nobody holds it")
        place.num_holders -= 1
        if place.num_holders > 0:
            return
        if place in self._dropped:
            self._dropped.remove(place)
            self._free.append(place.number)
        elif not place.is_launched:
            self._remove(place)

    def drop(self, place: Place) -> None:
        """Let nobody find a place any more because it holds garbage; holders let go later."""
        if self._places.get(place.key) is not place:
            return
        if place.num_holders == 0:
            self._remove(place)
        else:
            del self._places[place.key]
            self._dropped.add(place)

    def check(self) -> None:
        """Recompute the invariant; raises PageError with the counts when it is broken."""
        num_used = len(self._places) + len(self._dropped)
        if len(self._free) + num_used != self._num_places:
            raise PageError(f"{len(self._free)} free + {num_used} used != {self._num_places}")

    def _oldest_unheld(self) -> Place | None:
        return next((place for place in self._places.values() if place.num_holders == 0), None)

    def _remove(self, place: Place) -> None:
        del self._places[place.key]
        self._free.append(place.number)
