"""Owners of the KV cache's pages. Pure bookkeeping; no torch.

Pages are numbered over one cache: page 0 is reserved for padding rows, then come
``max_prefixes`` extents of ``pages_per_prefix`` contiguous pages each for frame prefixes, then
the private pages. An extent is shared and never written after its prefill; private pages have
one owner. So a prefix never shares a page with anybody's answer, and reading it needs no
page table.

Invariant: free + private + shared == total, at any time.
"""

from __future__ import annotations

from collections.abc import Iterable

from photon_ros.engine.shared_places import PageError, SharedPlaces

RESERVED_PAGE = 0


class PagePool:
    """Hands out private pages, and takes them back exactly once.

    ``prefixes`` are the frames' extents, each numbered by its first page.
    """

    def __init__(self, *, num_private_pages: int, max_prefixes: int, pages_per_prefix: int) -> None:
        self.num_private_pages = num_private_pages
        first_private_page = 1 + max_prefixes * pages_per_prefix
        self.num_pages = first_private_page + num_private_pages  # the reserved one included
        self.prefixes = SharedPlaces(range(1, first_private_page, pages_per_prefix))
        self._free_pages = list(range(self.num_pages - 1, first_private_page - 1, -1))
        self._owned: set[int] = set()

    @property
    def num_free_pages(self) -> int:
        """Private pages nobody owns."""
        return len(self._free_pages)

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

    def check(self) -> None:
        """Recompute the invariant; raises PageError with the counts when it is broken."""
        self.prefixes.check()
        if len(self._free_pages) + len(self._owned) != self.num_private_pages:
            raise PageError(
                f"{len(self._free_pages)} free + {len(self._owned)} private pages "
                f"!= {self.num_private_pages}"
            )
        if self._owned & set(self._free_pages):
            raise PageError("a page is owned and free at once")
