"""Owners of the KV cache's pages. Pure bookkeeping; no torch.

Pages are numbered over one cache: page 0 is reserved for padding rows, then come
``max_prefixes`` extents of ``pages_per_prefix`` contiguous pages each for frame prefixes, then
the private pages. An extent is shared and never written after its prefill; private pages have
one owner. So a prefix never shares a page with anybody's answer, and reading it needs no
page table.

Invariant: free + private + shared == total, at any time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from photon_ros.core.errors import PhotonError

RESERVED_PAGE = 0


class PageError(PhotonError, AssertionError):
    """The engine broke an ownership rule; never the caller's fault."""


@dataclass(eq=False, slots=True)
class Prefix:
    """One frame's shared extent.

    Attributes:
        first_page: first of its contiguous pages.
        num_holders: sequences that read it. At zero it is kept for reuse until evicted.
        lora_slot: adapter its prefill ran with; part of what its key must tell apart.
        is_launched: its prefill is on the compute stream, so later steps may read it.
    """

    key: Hashable
    first_page: int
    num_holders: int = 0
    is_launched: bool = False
    lora_slot: int = 0


class PagePool:
    """Hands out private pages and prefix extents, and takes them back exactly once."""

    def __init__(self, *, num_private_pages: int, max_prefixes: int, pages_per_prefix: int) -> None:
        self.pages_per_prefix = pages_per_prefix
        self.first_private_page = 1 + max_prefixes * pages_per_prefix
        self.num_private_pages = num_private_pages
        self.max_prefixes = max_prefixes
        self._free_pages = list(
            range(self.first_private_page + num_private_pages - 1, self.first_private_page - 1, -1)
        )
        self._owned: set[int] = set()
        self._free_extents = [1 + i * pages_per_prefix for i in range(max_prefixes - 1, -1, -1)]
        # Oldest use first: eviction takes from the front.
        self._prefixes: OrderedDict[Hashable, Prefix] = OrderedDict()
        self._dropped: set[Prefix] = set()

    @property
    def num_pages(self) -> int:
        """All pages of the cache, the reserved one included."""
        return self.first_private_page + self.num_private_pages

    @property
    def num_free_pages(self) -> int:
        """Private pages nobody owns."""
        return len(self._free_pages)

    @property
    def num_free_extents(self) -> int:
        """Extents that hold no prefix."""
        return len(self._free_extents)

    def take_pages(self, count: int) -> list[int]:
        """Return ``count`` private pages; raises PageError when there are not that many."""
        if count > len(self._free_pages):
            raise PageError(f"{count} pages taken, {len(self._free_pages)} free")
        pages = [self._free_pages.pop() for _ in range(count)]
        self._owned.update(pages)
        return pages

    def give_pages(self, pages: Iterable[int]) -> None:
        """Take private pages back; raises PageError for one that is not owned."""
        for page in pages:
            if page not in self._owned:
                raise PageError(f"page {page} given back but nobody owns it")
            self._owned.remove(page)
            self._free_pages.append(page)

    def can_hold(self, key: Hashable) -> bool:
        """True when a prefix for ``key`` exists or room for it can be made."""
        if key in self._prefixes or self._free_extents:
            return True
        return any(prefix.num_holders == 0 for prefix in self._prefixes.values())

    def has_prefix(self, key: Hashable) -> bool:
        """True when the frame is in the cache, launched or about to be."""
        return key in self._prefixes

    def hold(self, key: Hashable) -> Prefix:
        """Return the prefix of ``key`` with one more holder, making room if it is new."""
        prefix = self._prefixes.get(key)
        if prefix is None:
            if not self._free_extents:
                self._evict_one()
            prefix = Prefix(key, self._free_extents.pop())
            self._prefixes[key] = prefix
        prefix.num_holders += 1
        self._prefixes.move_to_end(key)
        return prefix

    def let_go(self, prefix: Prefix) -> None:
        """Drop one holder. A prefix that was never launched, or was dropped, frees its extent."""
        if prefix.num_holders < 1:
            raise PageError(f"prefix {prefix.key!r} let go but nobody holds it")
        prefix.num_holders -= 1
        if prefix.num_holders > 0:
            return
        if prefix in self._dropped:
            self._dropped.remove(prefix)
            self._free_extents.append(prefix.first_page)
        elif not prefix.is_launched:
            self._remove(prefix)

    def drop(self, prefix: Prefix) -> None:
        """Make a prefix unfindable because its pages hold garbage; holders let go later."""
        if self._prefixes.get(prefix.key) is not prefix:
            return
        if prefix.num_holders == 0:
            self._remove(prefix)
        else:
            del self._prefixes[prefix.key]
            self._dropped.add(prefix)

    def clear_prefixes(self) -> None:
        """Forget every prefix that nobody holds."""
        for prefix in [p for p in self._prefixes.values() if p.num_holders == 0]:
            self._remove(prefix)

    def check(self) -> None:
        """Recompute the invariant; raises PageError with the counts when it is broken."""
        shared = len(self._prefixes) + len(self._dropped)
        if len(self._free_pages) + len(self._owned) != self.num_private_pages:
            raise PageError(
                f"{len(self._free_pages)} free + {len(self._owned)} private pages "
                f"!= {self.num_private_pages}"
            )
        if self._owned & set(self._free_pages):
            raise PageError("a page is owned and free at once")
        if len(self._free_extents) + shared != self.max_prefixes:
            raise PageError(
                f"{len(self._free_extents)} free + {shared} shared extents != {self.max_prefixes}"
            )

    def _evict_one(self) -> None:
        for prefix in self._prefixes.values():
            if prefix.num_holders == 0:
                self._remove(prefix)
                return
        raise PageError("no prefix can be evicted: all are held")

    def _remove(self, prefix: Prefix) -> None:
        del self._prefixes[prefix.key]
        self._free_extents.append(prefix.first_page)
