"""The watch on a camera's input: stamps from raw bytes, rates, jumps and losses."""

from __future__ import annotations

import math
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.ros.intake import KEPT_S, MAX_BACKWARD_S, WINDOW_S, Intake, cdr_stamp_ns


def message(stamp_ns: int, order: str = "<") -> bytes:
    """The first bytes of a serialised message with a header."""
    sec, nanosec = divmod(stamp_ns, 1_000_000_000)
    return bytes([0, 1 if order == "<" else 0, 0, 0]) + struct.pack(f"{order}iI", sec, nanosec)


@given(st.integers(-(2**31) * 10**9, (2**31) * 10**9 - 1), st.sampled_from("<>"))
def test_stamp_is_read_from_the_bytes_in_either_order(stamp_ns: int, order: str) -> None:
    assert cdr_stamp_ns(message(stamp_ns, order)) == stamp_ns


@given(st.binary(max_size=11))
def test_a_message_too_short_has_no_stamp(raw: bytes) -> None:
    assert cdr_stamp_ns(raw) is None
    assert not Intake(now_s=0.0).add(raw, now_s=1.0)


def fed(stamps_s: list[float], *, epoch_s: float = 1.7e9) -> Intake:
    """A watch that got one message for each stamp, at that time."""
    intake = Intake(now_s=0.0)
    for stamp_s in stamps_s:
        intake.add(message(round((epoch_s + stamp_s) * 1e9)), now_s=stamp_s)
    return intake


def test_a_whole_stream_is_delivered_at_its_rate() -> None:
    summary = fed([k / 30 for k in range(300)]).summary(now_s=10.0)
    assert summary.hz == pytest.approx(30.0, rel=0.02)
    assert summary.stamp_hz == pytest.approx(30.0, rel=0.02)
    assert summary.delivered == pytest.approx(1.0, abs=0.02)
    assert (summary.zero_stamps, summary.backward_stamps) == (0, 0)


@pytest.mark.parametrize("share", [0.06, 0.2, 0.4])
def test_heavy_loss_shows_in_the_share_delivered(share: float) -> None:
    chance = random.Random(round(share * 100))
    summary = fed([k / 30 for k in range(300) if chance.random() < share]).summary(now_s=10.0)
    assert summary.delivered < 0.5


def test_a_loss_of_nearly_everything_shows_although_few_frames_come_in_a_window() -> None:
    # One or two in ten seconds, hardly ever two in a row.
    taken = [0, 1, 170, 330, 331, 500, 700, 702, 900, 1100]
    summary = fed([k / 30 for k in taken]).summary(now_s=1100 / 30)
    assert summary.hz <= 0.3
    assert summary.stamp_hz > 10.0
    assert summary.delivered < 0.05


def test_a_slow_camera_that_loses_nothing_is_not_taken_for_a_fast_one() -> None:
    summary = fed([4.0 * k for k in range(12)]).summary(now_s=44.0)
    assert summary.stamp_hz == pytest.approx(0.25)
    assert summary.delivered == pytest.approx(1.0)


def test_what_is_long_past_tells_nothing_of_the_rate_now() -> None:
    intake = fed([k / 30 for k in range(30)])
    later_s = KEPT_S + 2.0
    assert math.isnan(intake.summary(now_s=later_s).stamp_hz)
    assert not intake.add(message(round((1.7e9 + later_s) * 1e9)), now_s=later_s)
    assert math.isnan(intake.summary(now_s=later_s).stamp_hz)


def test_jitter_and_a_little_loss_do_not() -> None:
    chance = random.Random(3)
    stamps = [k / 30 + chance.uniform(0, 0.008) for k in range(300) if chance.random() < 0.95]
    assert fed(stamps).summary(now_s=10.0).delivered > 0.7


def test_few_frames_say_nothing() -> None:
    summary = fed([0.0, 0.1, 3.0]).summary(now_s=4.0)
    assert math.isnan(summary.delivered)
    assert math.isnan(summary.stamp_hz)


def test_a_backward_stamp_is_told_and_counted_and_an_equal_one_is_not() -> None:
    intake = Intake(now_s=0.0)
    told = [
        intake.add(message(stamp * 10**9), now_s=float(index))
        for index, stamp in enumerate([5, 6, 6, 2, 3, 1])
    ]
    assert told == [False, False, False, True, False, True]
    assert intake.summary(now_s=6.0).backward_stamps == 2


@pytest.mark.parametrize("back_ns", [1, 33_000_000, round(MAX_BACKWARD_S * 1e9)])
def test_a_small_step_back_is_counted_and_is_no_jump(back_ns: int) -> None:
    intake = Intake(now_s=0.0)
    assert not intake.add(message(10**10), now_s=0.0)
    assert not intake.add(message(10**10 - back_ns), now_s=0.03)
    assert not intake.add(message(10**10 + 1), now_s=0.06)
    assert intake.summary(now_s=0.1).backward_stamps == 1
    # Beyond the bound it is one.
    assert intake.add(message(10**10 - round(MAX_BACKWARD_S * 1e9)), now_s=0.1)
    assert intake.summary(now_s=0.1).backward_stamps == 2


def test_frames_handed_over_in_pairs_of_the_wrong_order_keep_their_rate() -> None:
    stamps_s = [(k ^ 1) / 30 for k in range(300)]
    intake = Intake(now_s=0.0)
    told = [
        intake.add(message(round((1.7e9 + stamp_s) * 1e9)), now_s=k / 30)
        for k, stamp_s in enumerate(stamps_s)
    ]
    assert not any(told)
    summary = intake.summary(now_s=10.0)
    assert summary.backward_stamps == 150
    assert summary.delivered > 0.7


def test_a_stamp_that_rolled_over_is_a_backward_jump() -> None:
    intake = Intake(now_s=0.0)
    last = (2**31 - 1) * 10**9 + 999_999_999
    assert not intake.add(message(last), now_s=0.0)
    assert intake.add(message(-(2**31) * 10**9), now_s=0.1)
    assert not intake.add(message(-(2**31) * 10**9 + 1), now_s=0.2)


def test_zero_stamps_are_counted_and_never_jump() -> None:
    intake = Intake(now_s=0.0)
    stamps = [5, 0, 6, 0]
    assert not any(intake.add(message(s * 10**9), now_s=float(s)) for s in stamps)
    assert intake.summary(now_s=7.0).zero_stamps == 2


def test_the_rate_after_a_jump_is_not_measured_across_it() -> None:
    intake = fed([k / 10 for k in range(40)])
    for k in range(40):
        intake.add(message(round((1.0e9 + k / 10) * 1e9)), now_s=4.0 + k / 10)
    summary = intake.summary(now_s=8.0)
    assert summary.stamp_hz == pytest.approx(10.0, rel=0.05)
    assert summary.delivered > 0.95


def test_old_frames_leave_the_window_and_silence_is_measured() -> None:
    intake = Intake(now_s=0.0)
    assert math.isinf(intake.summary(now_s=1.0).silent_s)
    intake.add(message(1), now_s=1.0)
    summary = intake.summary(now_s=1.0 + WINDOW_S + 2.0)
    assert summary.hz == 0.0
    assert summary.silent_s == pytest.approx(WINDOW_S + 2.0)
    intake.reset(now_s=20.0)
    assert math.isinf(intake.summary(now_s=21.0).silent_s)
