"""Whose turn it is: prefills and decodes alternate, and no step is risked on zombies alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from scheduler_bench import Bench

from photon_ros.engine.sequence import SequenceStatus


def test_a_burst_of_prefills_does_not_starve_decode() -> None:
    bench = Bench(max_rows=12, num_private_pages=60, max_prefixes=12, max_prefixes_per_step=1)
    bench.add(num_tokens=20, frame=0)
    bench.step()
    for frame in range(1, 11):
        bench.add(num_tokens=20, frame=frame)
    assert bench.step() == "prefill"  # the first answer may have ended by now
    kinds = [bench.step() for _ in range(14)]
    assert kinds[:12] == ["decode", "prefill"] * 6


def test_a_prefill_goes_before_a_decode_of_rows_that_may_all_have_ended() -> None:
    bench = Bench(max_rows=12, num_private_pages=60, max_prefixes=12, max_prefixes_per_step=1)
    for frame in range(5):
        bench.add(num_tokens=1 if frame < 3 else 9, frame=frame)
    assert [bench.step() for _ in range(5)] == ["prefill"] * 5
    assert [bench.step() for _ in range(2)] == ["decode"] * 2
    assert not bench.scheduler.num_waiting


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9), st.integers(1, 4))
def test_an_answer_known_to_go_on_waits_for_one_prefill_at_most(
    lengths: list[int], at_a_time: int
) -> None:
    bench = Bench(max_rows=12, num_private_pages=90, max_prefixes=12, max_prefixes_per_step=1)
    frames = iter(range(100))
    watched = bench.add(num_tokens=12, frame=next(frames))
    bench.launch()
    bench.commit()
    num_missed = 0
    while 1 <= watched.num_launched < watched.max_new_tokens:
        for length in lengths[:at_a_time]:
            bench.add(num_tokens=length, frame=next(frames) % 12)
        launched = watched.num_launched
        bench.step()
        num_missed = num_missed + 1 if watched.num_launched == launched else 0
        assert num_missed <= 1


def test_running_answers_do_not_keep_new_requests_waiting() -> None:
    bench = Bench(max_rows=8, num_private_pages=60)
    for _ in range(4):
        bench.add(num_tokens=20)
    bench.step()
    bench.step()
    late = bench.add(num_tokens=2)
    kinds = [bench.step() for _ in range(2)]
    assert "prefill" in kinds
    assert late.status is not SequenceStatus.WAITING


def test_a_waiting_request_that_does_not_fit_yet_does_not_stop_decode() -> None:
    bench = Bench(max_rows=1)
    running = bench.add(num_tokens=6)
    bench.add()
    bench.step()
    kinds = [bench.step() for _ in range(5)]
    assert kinds == ["decode"] * 5
    assert running.num_launched == 6
