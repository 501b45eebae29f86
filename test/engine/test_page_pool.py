"""Pages have one owner or none, and nothing comes back twice."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from photon_ros.engine.page_pool import RESERVED_PAGE, PagePool
from photon_ros.engine.shared_places import PageError


def pool(private: int = 6, prefixes: int = 3, per_prefix: int = 4) -> PagePool:
    return PagePool(num_private_pages=private, max_prefixes=prefixes, pages_per_prefix=per_prefix)


def test_the_reserved_page_extents_and_private_pages_are_disjoint_and_cover_the_cache() -> None:
    pages = pool()
    private = pages.take_pages(6)
    extents = []
    for key in "abc":
        first = pages.prefixes.hold(key).number
        extents += list(range(first, first + 4))
    assert sorted([RESERVED_PAGE, *private, *extents]) == list(range(pages.num_pages))


def test_more_pages_than_free_are_refused_and_nothing_is_taken() -> None:
    pages = pool()
    pages.take_pages(4)
    with pytest.raises(PageError, match="3 pages taken, 2 free"):
        pages.take_pages(3)
    assert pages.num_free_pages == 2
    pages.check()


def test_a_page_given_back_twice_is_refused() -> None:
    pages = pool()
    taken = pages.take_pages(2)
    pages.give_pages(taken)
    with pytest.raises(PageError, match=f"page {taken[0]} given back but nobody owns it"):
        pages.give_pages(taken[:1])


@pytest.mark.parametrize("page", [RESERVED_PAGE, 1, 12, 13, 999])
def test_a_page_that_was_never_taken_cannot_be_given_back(page: int) -> None:
    with pytest.raises(PageError):
        pool().give_pages([page])


@pytest.mark.parametrize("broken", ["lost page", "page owned twice", "lost extent"])
def test_a_broken_invariant_is_found(broken: str) -> None:
    pages = pool()
    taken = pages.take_pages(2)
    if broken == "lost page":
        pages._free_pages.pop()
    elif broken == "page owned twice":
        pages._free_pages[0] = taken[0]
    else:
        pages.prefixes._free.pop()
    with pytest.raises(PageError):
        pages.check()


class PagePoolMachine(RuleBasedStateMachine):
    """Pages are taken and given back in any order, beside extents that are held."""

    @initialize(private=st.integers(1, 9), prefixes=st.integers(1, 4), size=st.integers(1, 3))
    def start(self, private: int, prefixes: int, size: int) -> None:
        self.pool = pool(private, prefixes, size)
        self.private = private
        self.owned: list[list[int]] = []
        firsts = [self.pool.prefixes.hold(key).number for key in range(prefixes)]
        self.shared = [first + i for first in firsts for i in range(size)]

    @rule(count=st.integers(0, 6))
    def take(self, count: int) -> None:
        free = self.private - sum(map(len, self.owned))
        if count > free:
            with pytest.raises(PageError):
                self.pool.take_pages(count)
        else:
            self.owned.append(self.pool.take_pages(count))

    @precondition(lambda self: self.owned)
    @rule(which=st.integers(0, 99))
    def give(self, which: int) -> None:
        pages = self.owned.pop(which % len(self.owned))
        self.pool.give_pages(pages)
        if pages:
            with pytest.raises(PageError):
                self.pool.give_pages(pages)

    @invariant()
    def every_page_has_one_owner(self) -> None:
        self.pool.check()
        owned = [page for pages in self.owned for page in pages]
        named = [RESERVED_PAGE, *owned, *self.shared]
        assert len(set(named)) == len(named)
        assert max(named) < self.pool.num_pages
        assert self.pool.num_free_pages + len(owned) == self.private


TestPagePoolMachine = PagePoolMachine.TestCase
TestPagePoolMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
