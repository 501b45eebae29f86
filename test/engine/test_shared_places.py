"""Contents are found and counted, outlive their readers, and are never taken from one."""

from __future__ import annotations

import pytest
from harness import num_free_when_cleared, num_holders
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from photon_ros.engine.shared_places import PageError, Place, SharedPlaces


def launched(places: SharedPlaces, key: object) -> Place:
    place = places.hold(key)
    place.is_launched = True
    return place


def test_two_holders_of_one_key_read_the_same_extent() -> None:
    places = SharedPlaces(range(1, 4))
    first, second = places.hold("a"), places.hold("a")
    assert first is second
    assert first.num_holders == 2
    assert places.num_free == 2


def test_a_launched_place_stays_when_its_last_holder_leaves() -> None:
    places = SharedPlaces(range(1, 4))
    place = launched(places, "a")
    places.let_go(place)
    assert places.has("a")
    assert places.hold("a") is place


def test_a_place_that_was_never_launched_leaves_with_its_last_holder() -> None:
    places = SharedPlaces(range(1, 4))
    place = places.hold("a")
    places.hold("a")
    places.let_go(place)
    assert places.has("a")
    places.let_go(place)
    assert not places.has("a")
    assert places.num_free == 3


def test_a_place_let_go_once_too_often_is_refused() -> None:
    places = SharedPlaces(range(1, 4))
    place = launched(places, "a")
    places.let_go(place)
    with pytest.raises(PageError, match="place of 'a' let go but nobody holds it"):
        places.let_go(place)


def test_the_least_recently_held_place_is_evicted() -> None:
    places = SharedPlaces(range(1, 4))
    for key in "abc":
        places.let_go(launched(places, key))
    places.let_go(places.hold("a"))
    places.hold("d")
    assert [places.has(key) for key in "abcd"] == [True, False, True, True]


def test_a_held_place_is_never_evicted() -> None:
    places = SharedPlaces(range(1, 4))
    held = launched(places, "a")
    for key in "bc":
        places.let_go(launched(places, key))
    for key in "defg":
        places.let_go(launched(places, key))
    assert places.hold("a") is held


def test_when_every_place_is_held_no_new_one_can_be() -> None:
    places = SharedPlaces(range(1, 4))
    for key in "abc":
        launched(places, key)
    assert not places.can_hold("d")
    assert places.can_hold("a")
    with pytest.raises(PageError, match="all are held"):
        places.hold("d")
    places.check()


def test_a_dropped_place_is_not_found_and_its_number_waits_for_its_holders() -> None:
    places = SharedPlaces(range(1, 4))
    place = launched(places, "a")
    places.hold("a")
    places.drop(place)
    assert not places.has("a")
    assert places.num_free == 2
    again = places.hold("a")
    assert again is not place
    assert again.number != place.number
    places.let_go(place)
    assert places.num_free == 1
    places.let_go(place)
    assert places.num_free == 2
    places.check()


def test_dropping_twice_or_dropping_what_was_replaced_does_nothing() -> None:
    places = SharedPlaces(range(1, 4))
    old = launched(places, "a")
    places.drop(old)
    new = launched(places, "a")
    places.drop(old)
    assert places.hold("a") is new
    places.check()


def test_a_dropped_place_that_nobody_holds_frees_its_number_at_once() -> None:
    places = SharedPlaces(range(1, 4))
    place = launched(places, "a")
    places.let_go(place)
    places.drop(place)
    assert places.num_free == 3


def test_without_places_nothing_can_be_held() -> None:
    places = SharedPlaces([])
    assert not places.can_hold("a")
    with pytest.raises(PageError):
        places.hold("a")


class SharedPlacesMachine(RuleBasedStateMachine):
    """Every operation in any order, against plain lists that say who reads what."""

    @initialize(count=st.integers(1, 4))
    def start(self, count: int) -> None:
        self.places, self.count = SharedPlaces(range(1, count + 1)), count
        self.holds: list[Place] = []
        self.given_up: list[Place] = []  # dropped while held

    def findable(self, key: int) -> bool:
        return any(p.key == key and p not in self.given_up for p in self.holds)

    @rule(key=st.integers(0, 5), is_launched=st.booleans())
    def hold(self, key: int, is_launched: bool) -> None:
        if self.places.can_hold(key):
            was_there = self.findable(key)
            place = self.places.hold(key)
            place.is_launched = place.is_launched or is_launched
            assert not was_there or place in self.holds
            self.holds.append(place)
        else:
            assert len({id(p) for p in self.holds}) == self.count
            with pytest.raises(PageError):
                self.places.hold(key)

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 99))
    def let_go(self, which: int) -> None:
        place = self.holds.pop(which % len(self.holds))
        self.places.let_go(place)
        if place not in self.holds:
            is_kept = place.is_launched and place not in self.given_up
            assert (self.places._places.get(place.key) is place) == is_kept
            with pytest.raises(PageError):
                self.places.let_go(place)

    @precondition(lambda self: self.holds)
    @rule(which=st.integers(0, 99))
    def drop(self, which: int) -> None:
        place = self.holds[which % len(self.holds)]
        self.places.drop(place)
        if place not in self.given_up:
            self.given_up.append(place)
            assert not self.places.has(place.key)

    @rule()
    def drop_what_nobody_holds(self) -> None:
        for place in [p for p in self.places._places.values() if p not in self.holds]:
            self.places.drop(place)

    @invariant()
    def every_place_has_one_content(self) -> None:
        self.places.check()
        numbers = {p.number for p in self.holds}
        assert numbers <= set(range(1, self.count + 1))
        assert len(numbers) == len({id(p) for p in self.holds}), "two contents share a place"
        assert self.count - self.places.num_free >= len(numbers)
        assert num_holders(self.places) == len(self.holds)
        for place in self.holds:
            assert place.num_holders == sum(p is place for p in self.holds)
            if place not in self.given_up:
                assert self.places._places[place.key] is place, "a held place was evicted"

    def teardown(self) -> None:
        if not hasattr(self, "places"):
            return
        for place in self.holds:
            self.places.let_go(place)
        assert num_free_when_cleared(self.places) == self.count


TestSharedPlacesMachine = SharedPlacesMachine.TestCase
TestSharedPlacesMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
