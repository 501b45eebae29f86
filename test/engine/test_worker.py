"""Many threads in, one thread that ticks: every request is answered, and exactly once."""

from __future__ import annotations

import logging
import operator
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from grammars import CycleGrammar, ParityGrammar, TextGrammar
from harness import SMALL, key_of
from hash_model import HashModel, crops_of, expected_tokens
from torch import Tensor

from photon_ros.core.errors import (
    CapacityError,
    EngineFault,
    EngineStopped,
    RequestCancelled,
)
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import Adapt, Attend
from photon_ros.engine.sequence import Outcome, PrefixSource, Sequence
from photon_ros.engine.worker import EngineWorker

CANCELLED = RequestCancelled("cancelled by the test")


class BuggyEngine(Engine):
    """An engine with a bug in its own tick, as often as planted."""

    num_bugs = 0

    def tick(self) -> None:
        if self.num_bugs:
            self.num_bugs -= 1
            raise KeyError("planted bug")
        super().tick()


class SlowModel(HashModel):
    """Takes a set time for each forward."""

    def __init__(self, forward_s: float) -> None:
        super().__init__()
        self.forward_s = forward_s

    def decode(
        self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        time.sleep(self.forward_s)
        return super().decode(x_BTD, positions_BT, attend, adapt)


class Asked:
    """One request and every outcome it was given."""

    def __init__(
        self,
        state: Any,
        prompt: tuple[int, ...] = (1, 2),
        frame: int | None = 1,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self.state, self.prompt, self.frame = state, prompt, frame
        self.outcomes: list[Outcome] = []
        self.threads: list[str] = []
        self.ended = threading.Event()
        self._then = then
        source = None if frame is None else PrefixSource(("frame", frame), crops_of(frame))
        self.sequence = Sequence(prompt, state, self._on_done, source=source)

    def _on_done(self, sequence: Sequence, outcome: Outcome) -> None:
        assert sequence is self.sequence
        self.outcomes.append(outcome)
        self.threads.append(threading.current_thread().name)
        self.ended.set()
        self._then()

    @property
    def error(self) -> BaseException | None:
        assert self.ended.wait(20), "never answered"
        assert len(self.outcomes) == 1, "answered more than once"
        return self.outcomes[0].error


def detect() -> CycleGrammar:
    return CycleGrammar(True, 4)


def endless() -> TextGrammar:
    return TextGrammar(60, forbidden=(0,))


def assert_right(asked: Asked, fresh: Any) -> None:
    assert asked.error is None
    wanted = expected_tokens(asked.prompt, asked.frame, fresh)
    assert key_of(asked.state.tokens) == key_of(wanted)


@pytest.fixture
def opened() -> Iterator[Callable[..., EngineWorker]]:
    workers: list[EngineWorker] = []

    def open_worker(model: HashModel | None = None, kind: type[Engine] = Engine) -> EngineWorker:
        config = EngineConfig(**{**SMALL, "num_private_pages": 80})
        workers.append(EngineWorker(kind(model or HashModel(), CpuDevice(), config)))
        return workers[-1]

    yield open_worker
    for worker in workers:
        worker.close()


Opened = Callable[..., EngineWorker]


def test_requests_from_many_threads_each_get_their_own_tokens_once(opened: Opened) -> None:
    worker = opened()
    kinds = [detect, lambda: TextGrammar(6), lambda: ParityGrammar(5)]
    asked: list[tuple[Asked, Callable[[], Any]]] = []
    lock = threading.Lock()

    def ask(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(15):
            make = rng.choice(kinds)
            prompt = tuple(rng.randint(1, 22) for _ in range(rng.randint(1, 4)))
            one = Asked(make(), prompt, rng.choice([None, 0, 1, 2]))
            worker.submit(one.sequence)
            with lock:
                asked.append((one, make))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, make in asked:
        assert_right(one, make())
        assert one.threads == ["photon-engine"]
    assert len(asked) == 90


def test_cancels_from_many_threads_end_each_request_once(opened: Opened) -> None:
    worker = opened()
    asked = [Asked(endless(), (n % 20 + 1,), n % 3) for n in range(40)]

    def cancel(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            worker.cancel(rng.choice(asked).sequence, CANCELLED)
            time.sleep(rng.random() * 1e-3)

    threads = [threading.Thread(target=cancel, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for one in asked:
        worker.submit(one.sequence)
    for thread in threads:
        thread.join()
    for one in asked:
        if one.error is None:
            assert_right(one, endless())
        else:
            assert one.error is CANCELLED
    assert worker.drain(5)
    assert worker.engine.scheduler.num_free_lanes == SMALL["max_rows"]


def test_a_cancel_before_the_submit_and_one_after_the_end_do_nothing(opened: Opened) -> None:
    worker = opened()
    one = Asked(detect())
    worker.cancel(one.sequence, CANCELLED)
    worker.submit(one.sequence)
    assert_right(one, detect())
    worker.cancel(one.sequence, CANCELLED)
    assert worker.drain(5)
    assert one.error is None


def test_a_request_that_can_never_run_is_told_and_nobody_else_notices(opened: Opened) -> None:
    worker = opened()
    neighbour, big = Asked(detect()), Asked(TextGrammar(9), (1,) * 300)
    worker.submit(neighbour.sequence)
    worker.submit(big.sequence)
    assert isinstance(big.error, CapacityError)
    assert_right(neighbour, detect())


def test_closing_ends_what_waits_and_what_runs_with_engine_stopped_once(opened: Opened) -> None:
    worker = opened(SlowModel(0.02))
    asked = [Asked(endless(), (n + 1,), n % 4) for n in range(12)]
    for one in asked:
        worker.submit(one.sequence)
    time.sleep(0.1)
    started_s = time.monotonic()
    worker.close()
    assert time.monotonic() - started_s < 2
    for one in asked:
        assert isinstance(one.error, EngineStopped)
    worker.close()
    time.sleep(0.05)
    assert all(len(one.outcomes) == 1 for one in asked)


def test_closing_tells_even_what_was_submitted_a_moment_before(opened: Opened) -> None:
    for _ in range(20):
        worker = opened()
        asked = [Asked(detect()) for _ in range(5)]
        for one in asked:
            worker.submit(one.sequence)
        worker.close()
        for one in asked:
            assert one.error is None or isinstance(one.error, EngineStopped)


def test_closing_does_not_wait_for_a_device_that_hangs(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    worker = opened(SlowModel(3.0))
    one = Asked(endless())
    worker.submit(one.sequence)
    time.sleep(0.2)
    started_s = time.monotonic()
    with caplog.at_level(logging.ERROR):
        worker.close()
    assert time.monotonic() - started_s < 2
    assert "did not stop" in caplog.text
    assert isinstance(one.error, EngineStopped)  # once the forward returns


def test_after_closing_submissions_are_refused_and_cancels_ignored(opened: Opened) -> None:
    worker = opened()
    worker.close()
    with pytest.raises(EngineStopped, match="closed"):
        worker.submit(Asked(detect()).sequence)
    worker.cancel(Asked(detect()).sequence, CANCELLED)


def test_submissions_that_race_with_close_are_refused_or_answered(opened: Opened) -> None:
    for attempt in range(10):
        worker = opened()
        asked: list[Asked] = []

        def ask(worker: EngineWorker = worker, asked: list[Asked] = asked) -> None:
            while True:
                one = Asked(detect(), frame=None)
                try:
                    worker.submit(one.sequence)
                except EngineStopped:
                    return
                asked.append(one)
                worker.cancel(one.sequence, CANCELLED)

        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.002 * attempt)
        worker.close()
        thread.join()
        for one in asked:
            assert one.error is None or isinstance(one.error, EngineStopped | RequestCancelled)


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
        assert engine.scheduler.num_free_lanes == SMALL["max_rows"]
        assert pool.prefixes.num_holders == 0
    finally:
        worker.close()
