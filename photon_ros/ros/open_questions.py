"""OpenQuestions: what is being asked right now, and what gives it up. No ROS here.

A question is listed before anything is asked for it, so whoever cancels it, or stops the node,
always finds it: what gives it up may be told afterwards, and is then called at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from photon_ros.core.errors import PhotonError


class OpenQuestion:
    """One question, from any thread.

    Attributes:
        was_cancelled: whoever asked wants no answer.
        was_given_up: the node stops before there is one.
    """

    def __init__(self) -> None:
        self.was_cancelled = False
        self.was_given_up = False
        self._lock = threading.Lock()
        self._give_up: Callable[[], None] | None = None

    def on_give_up(self, give_up: Callable[[], None]) -> None:
        """Tell what ends it; called once, at once when it is over already."""
        with self._lock:
            self._give_up = give_up
            is_over = self.was_cancelled or self.was_given_up
        if is_over:
            give_up()

    def cancel(self) -> None:
        """End it for whoever asked."""
        self._end(is_cancelled=True)

    def give_up(self) -> None:
        """End it for the node."""
        self._end(is_cancelled=False)

    def _end(self, *, is_cancelled: bool) -> None:
        with self._lock:
            if self.was_cancelled or self.was_given_up:
                return
            self.was_cancelled, self.was_given_up = is_cancelled, not is_cancelled
            give_up = self._give_up
        if give_up is not None:
            give_up()


class OpenQuestions:
    """At most ``max_open`` questions at once."""

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: dict[Hashable, OpenQuestion] = {}
        self._cancelled_early: set[Hashable] = set()

    @property
    def has_place(self) -> bool:
        """True while another one may be opened."""
        with self._lock:
            return len(self._open) < self._max_open

    @contextmanager
    def opened(self, key: Hashable) -> Iterator[OpenQuestion]:
        """List a question for as long as the block runs; raises PhotonError without a place."""
        question = OpenQuestion()
        with self._lock:
            question.was_cancelled = key in self._cancelled_early
            self._cancelled_early.discard(key)
            if len(self._open) >= self._max_open:
                raise PhotonError(f"{self._max_open} questions are open already; ask later")
            self._open[key] = question
        try:
            yield question
        finally:
            with self._lock:
                del self._open[key]

    def cancel(self, key: Hashable) -> None:
        """Cancel a question that is open, or that is going to be."""
        with self._lock:
            question = self._open.get(key)
            if question is None:
                self._cancelled_early.add(key)
        if question is not None:
            question.cancel()

    def give_up_all(self) -> None:
        """Give up every question that is open now."""
        with self._lock:
            questions = list(self._open.values())
        for question in questions:
            question.give_up()
