"""The mailbox: latest wins, and every frame is accounted for exactly once."""

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from photon_ros.ros.mailbox import DropReason, Mailbox


def test_newer_frame_replaces_the_waiting_one_and_is_counted() -> None:
    mailbox: Mailbox[str] = Mailbox()
    for name in ("first", "second", "third"):
        assert mailbox.put(name, now_s=0.0)
    taken = mailbox.take()
    assert taken is not None
    assert (taken.item, taken.sequence, taken.dropped_since_last) == ("third", 2, 2)
    assert mailbox.counts().overwritten == 2
    assert mailbox.take() is None


def test_dropped_since_last_counts_only_what_was_dropped_in_between() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(0, now_s=0.0)
    mailbox.put(1, now_s=0.0)
    first = mailbox.take()
    mailbox.drop(DropReason.BAD)
    mailbox.put(2, now_s=0.0)
    second = mailbox.take()
    mailbox.put(3, now_s=0.0)
    third = mailbox.take()
    assert first is not None
    assert second is not None
    assert third is not None
    assert [item.dropped_since_last for item in (first, second, third)] == [1, 1, 0]


def test_rate_limit_admits_the_mean_rate_of_a_jittering_camera() -> None:
    mailbox: Mailbox[int] = Mailbox()
    # 30 Hz with jitter of a third of a period, for ten seconds, limited to 10 Hz.
    admitted = 0
    for index in range(300):
        jitter_s = (0.011, -0.011, 0.0)[index % 3]
        admitted += mailbox.put(index, now_s=index / 30 + jitter_s, min_period_s=0.1)
        if mailbox.take() is not None:
            mailbox.finish(completed=True)
    assert 98 <= admitted <= 101
    assert mailbox.counts().rate == 300 - admitted
    assert mailbox.counts().balanced


def test_rate_limit_does_not_make_up_for_a_pause_with_a_burst() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.put(0, now_s=0.0, min_period_s=1.0)
    assert mailbox.put(1, now_s=100.0, min_period_s=1.0)
    assert not mailbox.put(2, now_s=100.1, min_period_s=1.0)
    assert not mailbox.put(3, now_s=100.9, min_period_s=1.0)
    assert mailbox.put(4, now_s=101.0, min_period_s=1.0)


@pytest.mark.parametrize("min_period_s", [0.1, 0.0])
def test_a_higher_rate_is_in_force_at_once_however_long_the_period_before(
    min_period_s: float,
) -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.put(0, now_s=0.0, min_period_s=1e6)
    assert not mailbox.put(1, now_s=0.05, min_period_s=1e6)
    assert mailbox.put(2, now_s=0.11, min_period_s=min_period_s)
    # The same by way of no limit at all.
    assert mailbox.put(3, now_s=0.12, min_period_s=0.0)
    assert mailbox.put(4, now_s=0.23, min_period_s=0.1)


def test_a_lower_rate_is_in_force_at_once() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.put(0, now_s=0.0, min_period_s=0.1)
    assert not mailbox.put(1, now_s=0.15, min_period_s=10.0)
    assert not mailbox.put(2, now_s=9.9, min_period_s=10.0)
    assert mailbox.put(3, now_s=10.0, min_period_s=10.0)


def test_settling_a_frame_that_is_not_in_flight_is_refused() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(0, now_s=0.0)
    with pytest.raises(RuntimeError, match="not in flight"):
        mailbox.finish(completed=True)
    assert mailbox.counts().balanced


def test_account_stays_balanced_under_threads() -> None:
    mailbox: Mailbox[int] = Mailbox()
    stop = threading.Event()
    unbalanced: list[object] = []

    def watch() -> None:
        while not stop.is_set():
            counts = mailbox.counts()
            if not counts.balanced:
                unbalanced.append(counts)

    def answer() -> None:
        while not stop.is_set() or mailbox.has_frame:
            if mailbox.take() is not None:
                mailbox.finish(completed=True)

    threads = [threading.Thread(target=target) for target in (watch, answer, answer)]
    for thread in threads:
        thread.start()
    for index in range(3000):
        mailbox.put(index, now_s=0.0)
    stop.set()
    for thread in threads:
        thread.join()
    counts = mailbox.counts()
    assert not unbalanced
    assert counts.received == 3000
    assert counts.completed + counts.overwritten == 3000
    assert counts.in_flight == counts.mailboxed == 0


class MailboxMachine(RuleBasedStateMachine):
    """Any order of calls, compared with a plain list of what happened to each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.mailbox: Mailbox[int] = Mailbox()
        self.fates: list[str] = []
        self.forgotten: set[int] = set()  # settled before the account was begun anew
        self.waiting: int | None = None
        self.in_flight: list[int] = []
        self.now_s = 0.0

    @rule(gap_s=st.floats(0, 0.3), limited=st.booleans())
    def put(self, gap_s: float, limited: bool) -> None:
        self.now_s += gap_s
        index = len(self.fates)
        admitted = self.mailbox.put(index, now_s=self.now_s, min_period_s=0.1 if limited else 0.0)
        self.fates.append("mailboxed" if admitted else "rate")
        if admitted:
            if self.waiting is not None:
                self.fates[self.waiting] = "overwritten"
            self.waiting = index

    @rule()
    def take(self) -> None:
        taken = self.mailbox.take()
        assert (None if taken is None else taken.item) == self.waiting
        if taken is not None:
            assert taken.sequence == taken.item
            self.fates[taken.item] = "in_flight"
            self.in_flight.append(taken.item)
        self.waiting = None

    @precondition(lambda self: self.in_flight)
    @rule(completed=st.booleans())
    def finish(self, completed: bool) -> None:
        self.mailbox.finish(completed=completed)
        self.fates[self.in_flight.pop()] = "completed" if completed else "failed"

    @precondition(lambda self: self.in_flight)
    @rule(reason=st.sampled_from([DropReason.BAD, DropReason.STALE, DropReason.RESET]))
    def drop(self, reason: DropReason) -> None:
        self.mailbox.drop(reason)
        self.fates[self.in_flight.pop()] = reason.value

    @rule()
    def flush(self) -> None:
        self.mailbox.flush()
        if self.waiting is not None:
            self.fates[self.waiting] = "reset"
            self.waiting = None

    @rule()
    def reset_counts(self) -> None:
        self.mailbox.reset_counts()
        self.forgotten = {
            index for index, fate in enumerate(self.fates) if fate not in ("in_flight", "mailboxed")
        }

    @invariant()
    def every_frame_has_the_fate_it_is_counted_with(self) -> None:
        counts = self.mailbox.counts()
        fates = [fate for index, fate in enumerate(self.fates) if index not in self.forgotten]
        assert counts.balanced
        assert counts.received == len(fates)
        for name in (
            "completed", "failed", "in_flight", "mailboxed",
            "overwritten", "stale", "rate", "bad", "reset",
        ):  # fmt: skip
            assert getattr(counts, name) == fates.count(name), name


TestMailboxMachine = MailboxMachine.TestCase
TestMailboxMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_reset_account_begins_with_what_is_there_and_stays_balanced() -> None:
    mailbox: Mailbox[int] = Mailbox()
    for item in range(4):
        mailbox.put(item, now_s=0.0)
    assert mailbox.take() is not None
    mailbox.put(4, now_s=0.0)
    mailbox.put(5, now_s=0.0)
    mailbox.reset_counts()
    counts = mailbox.counts()
    assert (counts.received, counts.in_flight, counts.mailboxed, counts.dropped) == (2, 1, 1, 0)
    assert counts.balanced
    mailbox.finish(completed=True)
    taken = mailbox.take()
    assert taken is not None
    # Neither the running numbers nor the drops since the last taken frame begin anew.
    assert (taken.item, taken.sequence, taken.dropped_since_last) == (5, 5, 1)
    mailbox.drop(DropReason.BAD)
    counts = mailbox.counts()
    assert (counts.received, counts.completed, counts.bad) == (2, 1, 1)
    assert counts.balanced
