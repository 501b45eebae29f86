"""Whatever raises under the worker, everybody is told, once, and the loop goes on."""

from __future__ import annotations

import operator
import time
from typing import Any

import pytest
from asking import (
    Asked,
    BuggyEngine,
    Opened,
    SlowModel,
    assert_right,
    detect,
    endless,
)
from grammars import CycleGrammar, TextGrammar
from harness import SMALL, num_holders
from hash_model import HashModel

from photon_ros.core.errors import CapacityError, EngineFault, RequestCancelled
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.engine import Engine
from photon_ros.engine.worker import EngineWorker

CANCELLED = RequestCancelled("cancelled by the test")


def test_a_bug_of_the_engine_fails_what_is_pending_and_the_loop_goes_on(opened: Opened) -> None:
    worker = opened(kind=BuggyEngine)
    for bugs in (1, 1, 3):
        pending = [Asked(endless(), frame=n) for n in range(6)]
        for one in pending:
            worker.submit(one.sequence)
        worker.engine.num_bugs = bugs
        for one in pending:
            if isinstance(one.error, EngineFault):
                assert "planted bug" in str(one.error)
                assert isinstance(one.error.__cause__, KeyError)
            else:
                assert_right(one, endless())
        assert any(one.error is not None for one in pending)
        time.sleep(0.05)
        worker.engine.num_bugs = 0
        late = Asked(detect(), (7, 7), 3)
        worker.submit(late.sequence)
        assert_right(late, detect())


def test_a_bug_in_giving_back_leaves_nobody_unanswered(opened: Opened) -> None:
    """Not even those whose end the bug interrupts."""
    worker = opened(SlowModel(0.002))
    pending = [Asked(endless(), frame=n) for n in range(3)]
    pending.append(Asked(CycleGrammar(True, 1)))
    for one in pending:
        worker.submit(one.sequence)
    while not worker.engine.stats.num_decode_steps:
        time.sleep(0.001)
    worker.engine.pool._owned = set()  # as if every page had been given back already
    for one in pending:
        error = one.error
        assert error is None or isinstance(error, EngineFault)
    late = Asked(TextGrammar(1, forbidden=(0,)), frame=None)
    worker.submit(late.sequence)
    assert late.error is None or isinstance(late.error, EngineFault)


def test_a_callback_may_ask_again_and_cancel_others(opened: Opened) -> None:
    worker = opened()
    other, second = Asked(endless(), frame=2), Asked(detect(), (3, 4), 2)

    def go_on() -> None:
        worker.submit(second.sequence)
        worker.cancel(other.sequence, CANCELLED)

    first = Asked(CycleGrammar(True, 1), then=go_on)
    worker.submit(other.sequence)
    worker.submit(first.sequence)
    assert_right(second, detect())
    assert other.error in (None, CANCELLED)


def boom() -> None:
    raise RuntimeError("planted in a callback")


def test_a_callback_that_raises_disturbs_nobody(opened: Opened) -> None:
    worker = opened()
    neighbour = Asked(endless())
    worker.submit(neighbour.sequence)
    loud = Asked(CycleGrammar(True, 1), then=boom)
    worker.submit(loud.sequence)
    assert loud.error is None
    assert_right(neighbour, endless())


def test_a_callback_that_raises_on_a_refusal_disturbs_nobody(opened: Opened) -> None:
    worker = opened(SlowModel(0.005))
    neighbour, loud = Asked(endless()), Asked(TextGrammar(9), (1,) * 300, then=boom)
    worker.submit(neighbour.sequence)
    worker.submit(loud.sequence)
    assert isinstance(loud.error, CapacityError)
    assert_right(neighbour, endless())


def test_a_grammar_that_cannot_be_asked_for_its_length_fails_alone(opened: Opened) -> None:
    class Lengthless(TextGrammar):
        @property
        def max_new_tokens(self) -> int:
            raise ValueError("planted in max_new_tokens")

        @max_new_tokens.setter
        def max_new_tokens(self, value: int) -> None:
            return

    worker = opened(SlowModel(0.005))
    neighbour, broken = Asked(endless()), Asked(Lengthless())
    worker.submit(neighbour.sequence)
    worker.submit(broken.sequence)
    assert isinstance(broken.error, EngineFault)
    assert_right(neighbour, endless())


@pytest.mark.parametrize("method", ["constraint_ahead", "advance"])
def test_a_grammar_that_raises_fails_alone(opened: Opened, method: str) -> None:
    class Raising(TextGrammar):
        def __getattribute__(self, name: str) -> Any:
            if name == method and len(self.tokens) >= 3:
                raise ValueError("planted in a grammar")
            return super().__getattribute__(name)

    worker = opened(SlowModel(0.005))
    neighbour, broken = Asked(endless()), Asked(Raising(9, forbidden=(0,)))
    worker.submit(neighbour.sequence)
    worker.submit(broken.sequence)
    assert "planted in a grammar" in str(broken.error)
    assert_right(neighbour, endless())


def test_a_callback_that_asks_again_while_everything_fails_is_told(opened: Opened) -> None:
    """A bug ends all requests; their owners ask again from the callback, on the same thread."""
    worker = opened(SlowModel(0.005), kind=BuggyEngine)
    again = [Asked(detect(), frame=n) for n in range(3)]
    asked = [
        Asked(endless(), frame=n, then=lambda n=n: worker.submit(again[n].sequence))
        for n in range(3)
    ]
    for one in asked:
        worker.submit(one.sequence)
    time.sleep(0.03)
    worker.engine.num_bugs = 1
    for one in asked:
        assert isinstance(one.error, EngineFault)
    for one in again:
        assert one.error is None or isinstance(one.error, EngineFault)


@pytest.mark.parametrize("broken", ["_lifecycle.commit", "_look_ahead", "_finalize_sampling"])
@pytest.mark.parametrize("at_call", [0, 3, 7])
def test_a_bug_of_the_engine_in_the_middle_of_a_tick_leaves_nothing_held(
    broken: str, at_call: int
) -> None:
    engine = Engine(HashModel(), CpuDevice(), EngineConfig(**SMALL))
    *path, name = broken.split(".")
    owner = operator.attrgetter(*path)(engine) if path else engine
    working, calls = getattr(owner, name), iter(range(1000))

    def breaks_once(*args: object) -> object:
        if next(calls) == at_call:
            raise RuntimeError("planted bug")
        return working(*args)

    setattr(owner, name, breaks_once)
    worker = EngineWorker(engine)
    try:
        asked = [Asked(detect(), prompt=(number + 1,), frame=number % 2) for number in range(6)]
        for one in asked:
            worker.submit(one.sequence)
        assert any("planted bug" in str(one.error) for one in asked)
        later = Asked(detect(), prompt=(9, 9), frame=1)
        worker.submit(later.sequence)
        assert later.error is None
        assert worker.drain(10)
        pool = engine.pool
        pool.check()
        assert pool.num_free_pages == pool.num_private_pages
        assert len(engine.scheduler._free_lanes) == SMALL["max_rows"]
        assert num_holders(pool.prefixes) == 0
    finally:
        worker.close()
