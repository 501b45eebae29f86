"""Pages have one owner or none, extents outlive their readers, and nothing comes back twice."""

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

from photon_ros.engine.page_pool import RESERVED_PAGE, PageError, PagePool, Prefix


def pool(private: int = 6, prefixes: int = 3, per_prefix: int = 4) -> PagePool:
    return PagePool(num_private_pages=private, max_prefixes=prefixes, pages_per_prefix=per_prefix)


def launched(pages: PagePool, key: object) -> Prefix:
    prefix = pages.hold(key)
    prefix.is_launched = True
    return prefix


def test_the_reserved_page_extents_and_private_pages_are_disjoint_and_cover_the_cache() -> None:
    pages = pool()
    private = pages.take_pages(6)
    extents = []
    for key in "abc":
        first = pages.hold(key).first_page
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


def test_two_holders_of_one_key_read_the_same_extent() -> None:
    pages = pool()
    first, second = pages.hold("a"), pages.hold("a")
    assert first is second
    assert first.num_holders == 2
    assert pages.num_free_extents == 2


def test_a_launched_prefix_stays_when_its_last_holder_leaves() -> None:
    pages = pool()
    prefix = launched(pages, "a")
    pages.let_go(prefix)
    assert pages.has_prefix("a")
    assert pages.hold("a") is prefix


def test_a_prefix_that_was_never_launched_leaves_with_its_last_holder() -> None:
    pages = pool()
    prefix = pages.hold("a")
    pages.hold("a")
    pages.let_go(prefix)
    assert pages.has_prefix("a")
    pages.let_go(prefix)
    assert not pages.has_prefix("a")
    assert pages.num_free_extents == 3


def test_a_prefix_let_go_once_too_often_is_refused() -> None:
    pages = pool()
    prefix = launched(pages, "a")
    pages.let_go(prefix)
    with pytest.raises(PageError, match="'a' let go but nobody holds it"):
        pages.let_go(prefix)


def test_the_least_recently_held_prefix_is_evicted() -> None:
    pages = pool()
    for key in "abc":
        pages.let_go(launched(pages, key))
    pages.let_go(pages.hold("a"))
    pages.hold("d")
    assert [pages.has_prefix(key) for key in "abcd"] == [True, False, True, True]


def test_a_held_prefix_is_never_evicted() -> None:
    pages = pool()
    held = launched(pages, "a")
    for key in "bc":
        pages.let_go(launched(pages, key))
    for key in "defg":
        pages.let_go(launched(pages, key))
    assert pages.hold("a") is held


def test_when_every_prefix_is_held_no_new_one_can_be() -> None:
    pages = pool()
    for key in "abc":
        launched(pages, key)
    assert not pages.can_hold("d")
    assert pages.can_hold("a")
    with pytest.raises(PageError, match="all are held"):
        pages.hold("d")
    pages.check()


def test_a_dropped_prefix_is_not_found_and_its_extent_waits_for_its_holders() -> None:
    pages = pool()
    prefix = launched(pages, "a")
    pages.hold("a")
    pages.drop(prefix)
    assert not pages.has_prefix("a")
    assert pages.num_free_extents == 2
    again = pages.hold("a")
    assert again is not prefix
    assert again.first_page != prefix.first_page
    pages.let_go(prefix)
    assert pages.num_free_extents == 1
    pages.let_go(prefix)
    assert pages.num_free_extents == 2
    pages.check()


def test_dropping_twice_or_dropping_what_was_replaced_does_nothing() -> None:
    pages = pool()
    old = launched(pages, "a")
    pages.drop(old)
    new = launched(pages, "a")
    pages.drop(old)
    assert pages.hold("a") is new
    pages.check()


def test_a_dropped_prefix_that_nobody_holds_frees_its_extent_at_once() -> None:
    pages = pool()
    prefix = launched(pages, "a")
    pages.let_go(prefix)
    pages.drop(prefix)
    assert pages.num_free_extents == 3


def test_clearing_forgets_only_what_nobody_holds() -> None:
    pages = pool()
    held = launched(pages, "a")
    pages.let_go(launched(pages, "b"))
    pages.clear_prefixes()
    assert not pages.has_prefix("b")
    assert pages.hold("a") is held


@pytest.mark.parametrize("broken", ["lost page", "page owned twice", "lost extent"])
def test_a_broken_invariant_is_found(broken: str) -> None:
    pages = pool()
    taken = pages.take_pages(2)
    if broken == "lost page":
        pages._free_pages.pop()
    elif broken == "page owned twice":
        pages._free_pages[0] = taken[0]
    else:
        pages._free_extents.pop()
    with pytest.raises(PageError):
        pages.check()


class PagePoolMachine(RuleBasedStateMachine):
    """Every operation in any order, against plain sets that say who owns what."""

    @initialize(private=st.integers(1, 9), prefixes=st.integers(1, 4), size=st.integers(1, 3))
    def start(self, private: int, prefixes: int, size: int) -> None:
        self.pool = pool(private, prefixes, size)
        self.size, self.private, self.prefixes = size, private, prefixes
        self.owned: list[list[int]] = []
        self.holds: list[Prefix] = []
        self.given_up: list[Prefix] = []  # prefixes that were dropped while held

    def findable(self, key: int) -> bool:
        return any(p.key == key and p not in self.given_up for p in self.holds)

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

    @rule(key=st.integers(0, 5), is_launched=st.booleans())
    def hold(self, key: int, is_launched: bool) -> None:
        if self.pool.can_hold(key):
            was_there = self.findable(key)
            prefix = self.pool.hold(key)
            prefix.is_launched = prefix.is_launched or is_launched
            assert not was_there or prefix in self.holds
            self.holds.append(prefix)
        else:
            assert len({id(p) for p in self.holds}) == self.prefixes
            with pytest.raises(PageError):
                self.pool.hold(key)

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 99))
    def let_go(self, which: int) -> None:
        prefix = self.holds.pop(which % len(self.holds))
        self.pool.let_go(prefix)
        if prefix not in self.holds:
            is_kept = prefix.is_launched and prefix not in self.given_up
            assert (self.pool._prefixes.get(prefix.key) is prefix) == is_kept
            with pytest.raises(PageError):
                self.pool.let_go(prefix)

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        prefix = self.holds[which % len(self.holds)]
        self.pool.drop(prefix)
        if prefix not in self.given_up:
            self.given_up.append(prefix)
            assert not self.pool.has_prefix(prefix.key)

    @rule()
    def clear(self) -> None:
        self.pool.clear_prefixes()

    @invariant()
    def every_page_has_one_owner(self) -> None:
        self.pool.check()
        owned = [page for pages in self.owned for page in pages]
        extents = {p.first_page for p in self.holds}
        assert len(extents) == len({id(p) for p in self.holds}), "two prefixes share an extent"
        shared = [first + i for first in extents for i in range(self.size)]
        assert len(set(owned + shared + [RESERVED_PAGE])) == len(owned) + len(shared) + 1
        assert self.pool.num_free_pages + len(owned) == self.private
        kept = self.prefixes - self.pool.num_free_extents
        assert kept >= len(extents)
        for prefix in self.holds:
            assert prefix.num_holders == sum(p is prefix for p in self.holds)
            if prefix not in self.given_up:
                assert self.pool._prefixes[prefix.key] is prefix, "a held prefix was evicted"

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for pages in self.owned:
            self.pool.give_pages(pages)
        for prefix in self.holds:
            self.pool.let_go(prefix)
        self.pool.clear_prefixes()
        assert self.pool.num_free_pages == self.private
        assert self.pool.num_free_extents == self.prefixes


TestPagePoolMachine = PagePoolMachine.TestCase
TestPagePoolMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
