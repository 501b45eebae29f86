"""Many threads in, one thread that ticks: every request is answered, and exactly once."""

from __future__ import annotations

import gc
import logging
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from asking import (
    Asked,
    Opened,
    SlowModel,
    assert_right,
    detect,
    endless,
)
from grammars import ParityGrammar, TextGrammar
from harness import SMALL
from hash_model import HashModel
from torch import Tensor

from photon_ros.core.errors import CapacityError, EngineStopped, RequestCancelled
from photon_ros.engine.interfaces import Adapt, Attend
from photon_ros.engine.worker import EngineWorker

CANCELLED = RequestCancelled("cancelled by the test")


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
    assert len(worker.engine.scheduler._free_lanes) == SMALL["max_rows"]


def test_a_cancel_before_the_submit_and_one_after_the_end_do_nothing(opened: Opened) -> None:
    worker = opened()
    one = Asked(detect())
    worker.cancel(one.sequence, CANCELLED)
    worker.submit(one.sequence)
    assert_right(one, detect())
    worker.cancel(one.sequence, CANCELLED)
    assert worker.drain(5)
    assert one.error is None


def test_what_has_ended_is_let_go_of_while_others_run_on(opened: Opened) -> None:
    worker = opened(SlowModel(0.005))
    running = Asked(endless(), (1,))
    worker.submit(running.sequence)
    asked = [Asked(detect(), (n + 2,)) for n in range(8)]
    for one in asked:
        worker.submit(one.sequence)
    for one in asked:
        assert_right(one, detect())
    there = [weakref.ref(one) for one in asked]
    asked.clear()
    del one
    time.sleep(0.05)  # some ticks later
    gc.collect()
    assert not running.outcomes, "it is still answered"
    assert sum(one() is not None for one in there) <= 2
    worker.cancel(running.sequence, CANCELLED)
    assert running.error is CANCELLED


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


def test_a_sequence_submitted_again_is_answered_once_and_leaves_nothing_behind(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    worker = opened(SlowModel(0.001))
    one = Asked(endless())
    with caplog.at_level(logging.ERROR):
        worker.submit(one.sequence)
        worker.submit(one.sequence)  # while it runs
        assert_right(one, endless())
        worker.submit(one.sequence)  # and after its end
        assert worker.drain(5), "what was refused is waited for"
    assert caplog.text.count("submitted before") == 2
    assert len(one.outcomes) == 1


def test_an_engine_may_be_closed_by_what_it_calls(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    worker = opened(SlowModel(0.001))
    closing = Asked(detect(), then=worker.close)
    others = [Asked(endless()) for _ in range(3)]
    with caplog.at_level(logging.ERROR):
        for one in (*others, closing):
            worker.submit(one.sequence)
        assert closing.error is None
        assert all(isinstance(one.error, EngineStopped) for one in others)
    assert not caplog.text
    with pytest.raises(EngineStopped):
        worker.submit(Asked(detect()).sequence)
    worker.close()


class Gate(HashModel):
    """A forward that takes until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.is_open = threading.Event(), threading.Event()

    def decode(
        self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        self.entered.set()
        assert self.is_open.wait(10)
        return super().decode(x_BTD, positions_BT, attend, adapt)


def test_what_a_request_waits_for_the_thread_is_queueing(opened: Opened) -> None:
    model = Gate()
    worker = opened(model)
    first, second = Asked(detect()), Asked(detect(), (3,))
    worker.submit(first.sequence)
    assert model.entered.wait(10)
    worker.submit(second.sequence)
    submitted_s = time.monotonic()
    time.sleep(0.1)
    model.is_open.set()
    assert second.error is None
    clock = second.sequence.clock
    assert clock.submitted_s <= submitted_s
    stages_ms = clock.stages_ms()
    assert stages_ms["queue"] >= 100
    whole = stages_ms["queue"] + stages_ms["prefill"] + stages_ms["decode"]
    assert whole == pytest.approx(1e3 * (clock.finalized_s - clock.submitted_s))
