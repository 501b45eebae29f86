"""A recording's pace: never early, at any rate, and its time goes on while it is waited for."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.ros.pace import CLOCK_PERIOD_S, Pace

START_NS = 7_000_000_000


@pytest.mark.parametrize("rate", [0.5, 1.0, 4.0])
def test_nothing_is_early_and_lateness_is_told(rate: float) -> None:
    began_s = time.monotonic()
    pace = Pace(began_s, START_NS, rate)
    for part in (0.0, 0.05, 0.1):
        late_s = pace.wait(START_NS + round(part * 1e9), threading.Event())
        now_s = time.monotonic()
        assert late_s is not None
        assert 0.0 <= late_s <= now_s - (began_s + part / rate)
    assert now_s >= began_s + 0.1 / rate


def test_a_stop_ends_a_long_wait_at_once_and_an_overdue_one_too() -> None:
    stop = threading.Event()
    pace = Pace(time.monotonic(), START_NS, 1.0)
    threading.Timer(0.05, stop.set).start()
    assert pace.wait(START_NS + 3600 * 10**9, stop) is None
    assert pace.wait(START_NS, stop) is None


@settings(max_examples=20, deadline=None)
@given(
    rate=st.floats(0.2, 20.0),
    parts=st.lists(st.integers(0, 40_000_000), min_size=1, max_size=6).map(sorted),
)
def test_the_recordings_time_never_goes_back_nor_beyond_what_is_due(
    rate: float, parts: list[int]
) -> None:
    told: list[int] = []
    pace = Pace(time.monotonic() - parts[-1] / 1e9 / rate, START_NS, rate, told.append)
    for part in parts:
        assert pace.wait(START_NS + part, threading.Event()) is not None
        assert told[-1] <= START_NS + part
        assert told[-1] == pytest.approx(START_NS + part, abs=1)


def test_the_time_is_told_many_times_while_it_is_waited_for() -> None:
    told: list[int] = []
    pace = Pace(time.monotonic(), START_NS, 2.0, told.append)
    assert pace.wait(START_NS + 1_000_000_000, threading.Event()) is not None
    assert told == sorted(told)
    assert START_NS <= told[0] < told[-1] <= START_NS + 1_000_000_000
    # Half a second, less what a busy machine sleeps too long.
    assert 5 <= len(told) <= 0.5 / CLOCK_PERIOD_S + 2
