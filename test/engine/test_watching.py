"""Pause, drain, stall reports and step records."""

from __future__ import annotations

import contextlib
import logging
import threading
import time

import pytest
from grammars import CycleGrammar, TextGrammar
from harness import SMALL, Harness
from hash_model import HashModel, crops_of

from photon_ros.core.errors import DeadlineExceeded, EngineStopped
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.engine import Engine
from photon_ros.engine.sequence import Outcome, PrefixSource, Sequence
from photon_ros.engine.watchdog import Watchdog
from photon_ros.engine.worker import EngineWorker


@pytest.fixture
def worker() -> EngineWorker:
    opened = EngineWorker(Engine(HashModel(), CpuDevice(), EngineConfig(**SMALL)))
    yield opened
    opened.close()


def ask(worker: EngineWorker, deadline_s: float | None = None) -> tuple[threading.Event, list]:
    """Submit a text request; return an event for its end, and its outcomes."""
    ended, outcomes = threading.Event(), []

    def on_done(sequence: Sequence, outcome: Outcome) -> None:
        outcomes.append(outcome)
        ended.set()

    source = PrefixSource(("frame", 1), crops_of(1))
    state = TextGrammar(20, forbidden=(0,))
    worker.submit(Sequence((1, 2), state, on_done, source=source, deadline_s=deadline_s))
    return ended, outcomes


def test_a_paused_engine_answers_nothing_until_it_is_resumed(worker: EngineWorker) -> None:
    worker.pause()
    ended, outcomes = ask(worker)
    assert not ended.wait(0.15)
    worker.resume()
    assert ended.wait(5)
    assert outcomes[0].error is None


def test_a_deadline_passes_even_while_paused(worker: EngineWorker) -> None:
    worker.pause()
    ended, outcomes = ask(worker, deadline_s=time.monotonic() + 0.05)
    assert ended.wait(5)
    assert isinstance(outcomes[0].error, DeadlineExceeded)


def test_drain_waits_for_all_that_was_submitted_before(worker: EngineWorker) -> None:
    asked = [ask(worker) for _ in range(6)]
    assert worker.drain(10)
    assert all(ended.is_set() for ended, _ in asked)


def test_drain_does_not_wait_for_what_is_submitted_meanwhile(worker: EngineWorker) -> None:
    def ask_for_ever(num_tokens: int) -> None:
        def ask_again(_sequence: Sequence, _outcome: Outcome) -> None:
            with contextlib.suppress(EngineStopped):  # the test is over
                ask_for_ever(num_tokens)

        worker.submit(Sequence((1, 2), TextGrammar(num_tokens, (0,)), ask_again))

    for num_tokens in (5, 7, 11):  # there is always one that runs
        ask_for_ever(num_tokens)
    ended, _ = ask(worker)
    assert worker.drain(5)
    assert ended.is_set()


def test_drain_gives_up_after_its_time(worker: EngineWorker) -> None:
    worker.pause()
    ask(worker)
    started_s = time.monotonic()
    assert not worker.drain(0.1)
    assert time.monotonic() - started_s < 2
    worker.resume()
    assert worker.drain(10)


def test_drain_returns_at_once_when_nothing_is_pending(worker: EngineWorker) -> None:
    assert worker.drain(5)


def test_a_wait_over_the_limit_is_reported_once_with_its_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watchdog = Watchdog(0.04)
    watchdog.start()
    with caplog.at_level(logging.ERROR), watchdog.watch("decode step of 3 rows on slot 1"):
        time.sleep(0.2)
    watchdog.close()
    reports = [record for record in caplog.records if "decode step of 3 rows" in record.message]
    assert len(reports) == 1


def test_short_waits_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = Watchdog(1.0)
    watchdog.start()
    for _ in range(3):
        with watchdog.watch("a step"):
            time.sleep(0.01)
    watchdog.close()
    assert not caplog.records


def test_the_engine_names_the_step_it_waits_for() -> None:
    harness = Harness()
    seen: list[str] = []
    watch = harness.engine.watchdog.watch

    def listening(what: object):
        seen.append(str(what))
        return watch(what)

    harness.engine.watchdog.watch = listening
    harness.submit(CycleGrammar(), frame=1)
    harness.submit(CycleGrammar(), frame=1)
    harness.run()
    assert seen[0] == "prefill step of 2 rows on slot 0"
    assert any(name.startswith("decode step of 2 rows on slot") for name in seen[1:])


def test_every_committed_step_leaves_a_record_in_order() -> None:
    harness = Harness()
    for number in range(5):
        harness.submit(CycleGrammar(True, 3), frame=number % 2)
    harness.run()
    stats = harness.engine.stats
    assert len(stats.records) == stats.num_prefill_steps + stats.num_decode_steps
    assert sum(r.num_zombies for r in stats.records) == stats.num_zombie_rows
    decode = [r for r in stats.records if r.kind == "decode"]
    assert stats.num_decode_rows == sum(r.num_rows for r in decode)
    for record in stats.records:
        assert record.launch_s <= record.launched_s <= record.sample_s <= record.sampled_s
        assert record.sampled_s <= record.wait_s <= record.copied_s <= record.committed_s
        assert record.parts_ms()["bookkeeping"] > 0
    committed = [record.committed_s for record in stats.records]
    assert committed == sorted(committed)
