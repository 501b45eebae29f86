"""Records of steps and requests, and the percentiles of what they took."""

from __future__ import annotations

import time

import pytest
from grammars import CycleGrammar, TextGrammar
from harness import SMALL, Harness

from photon_ros.core.errors import RequestCancelled
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.metrics import MAX_RECORDS, EngineStats, RequestClock, StepRecord


def record(start_s: float, **fields: object) -> StepRecord:
    """A decode step of 7 ms of host work: 1 launch, 2 sampling, 4 commit; it waits for 8."""
    times_s = [start_s + ms / 1e3 for ms in (0, 1, 1, 3, 3, 11, 15)]
    names = ("launch_s", "launched_s", "sample_s", "sampled_s", "wait_s", "copied_s")
    made = StepRecord("decode", 0, 4, **dict(zip(names, times_s, strict=False)), **fields)
    made.committed_s = times_s[-1]
    return made


def test_the_parts_of_a_step_add_up() -> None:
    parts = record(100.0).parts_ms()
    assert parts == pytest.approx(
        {"forward": 1, "sampling": 2, "wait": 8, "commit": 4, "bookkeeping": 7, "idle": 0}
    )


def test_the_stages_of_a_request_add_up() -> None:
    clock = RequestClock(submitted_s=10.0, launched_s=10.5, first_token_s=10.75, finalized_s=12.0)
    assert clock.stages_ms() == pytest.approx(
        {"queue": 500, "prefill": 250, "decode": 1250, "time_to_first_token": 750}
    )


def test_a_gap_between_steps_is_idleness_only_while_there_was_work() -> None:
    stats = EngineStats()
    stats.count_commit(record(1.0))
    stats.count_commit(record(1.05))  # the device ended at 1.011, this was queued at 1.051
    stats.count_commit(record(1.055, is_last=True))  # queued before the one before had ended
    stats.count_commit(record(9.0))  # nothing was left to do in between
    assert [r.idle_s for r in stats.records] == pytest.approx([0, 0.040, 0, 0])


def test_percentiles_are_of_the_steps_of_one_kind() -> None:
    stats = EngineStats()
    assert stats.step_ms("decode") == {}
    for number in range(100):
        made = record(float(number), is_last=True)
        made.committed_s = made.copied_s + (number + 1) / 1e3
        stats.count_commit(made)
    stats.count_commit(StepRecord("prefill", 0, 1, launched_s=500.0))
    decode = stats.step_ms("decode")
    assert decode["commit"] == pytest.approx({"p50": 50, "p90": 90, "p99": 99})
    assert decode["bookkeeping"] == pytest.approx({"p50": 53, "p90": 93, "p99": 102})
    assert stats.step_ms("prefill")["forward"]["p50"] == pytest.approx(5e5)


def test_what_is_kept_is_bounded() -> None:
    stats = EngineStats()
    for number in range(MAX_RECORDS + 10):
        stats.count_commit(record(float(number)))
        stats.requests.append(RequestClock(submitted_s=float(number)))
    assert len(stats.records) == len(stats.requests) == MAX_RECORDS
    assert stats.records[0].launch_s == 10.0
    assert stats.requests[0].submitted_s == 10.0


@pytest.mark.parametrize("pipelined", [True, False])
def test_each_request_that_got_a_token_is_timed_once(pipelined: bool) -> None:
    harness = Harness(config=EngineConfig(**{**SMALL, "max_rows": 2}, pipelined=pipelined))
    stats = harness.engine.stats
    assert stats.request_ms() == {}
    for number in range(5):
        harness.submit(CycleGrammar(True, 2), prompt=(number + 1,), frame=number % 2)
    never_ran = harness.submit(TextGrammar(9), deadline_s=time.monotonic() - 1)
    cancelled = harness.submit(TextGrammar(30, forbidden=(0,)), prompt=(9,))
    while not cancelled.num_committed:
        harness.tick()
    harness.engine.cancel(cancelled, RequestCancelled("by the test"))
    harness.run()
    assert never_ran.clock not in stats.requests
    assert len(stats.requests) == 6
    assert set(stats.request_ms()) == {"queue", "prefill", "decode", "time_to_first_token"}
    for clock in stats.requests:
        times_s = (clock.submitted_s, clock.launched_s, clock.first_token_s, clock.finalized_s)
        assert list(times_s) == sorted(times_s)
        assert min(times_s) > 0
        assert sum(clock.stages_ms().values()) > 0


def test_the_last_step_before_idleness_is_marked() -> None:
    harness = Harness()
    for _ in range(2):
        harness.submit(CycleGrammar(True, 2), frame=1)
        harness.settle()
    records = list(harness.engine.stats.records)
    assert sum(r.is_last for r in records) == 2
    assert records[-1].is_last
