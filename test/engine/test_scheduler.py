"""Who is admitted, in what order, with what; and which step comes next."""

from __future__ import annotations

import itertools

import pytest
from grammars import CycleGrammar
from scheduler_bench import MAX_CONTEXT, PREFIX_LEN, Bench

from photon_ros.core.errors import CapacityError
from photon_ros.core.result import EndReason
from photon_ros.engine.sequence import Sequence, SequenceStatus


def test_the_queue_is_in_deadline_order_then_in_order_of_arrival() -> None:
    bench = Bench()
    deadlines = [None, 30.0, 10.0, None, 20.0, 10.0]
    sequences = [bench.add(deadline_s=deadline_s) for deadline_s in deadlines]
    assert bench.waiting == [sequences[i] for i in (2, 5, 4, 1, 0, 3)]
    assert bench.scheduler.num_waiting == 6


def test_a_sequence_is_admitted_with_a_lane_and_every_page_it_can_ever_need() -> None:
    bench = Bench()
    sequence = bench.add(num_tokens=11, prompt_len=2, frame=3)  # 12 positions are ever written
    plan = bench.launch()
    assert plan is not None
    assert plan.sequences == [sequence]
    assert sequence.status is SequenceStatus.RUNNING
    assert len(sequence.pages) == 3
    assert sequence.lane >= 0
    assert sequence.prefix is not None
    assert sequence.prefix.num_holders == 1
    assert plan.new_prefixes == [(sequence.prefix, sequence.source)]


@pytest.mark.parametrize(("num_tokens", "num_pages"), [(1, 1), (3, 1), (4, 2), (7, 2), (8, 3)])
def test_the_last_token_needs_no_position(num_tokens: int, num_pages: int) -> None:
    bench = Bench()
    sequence = bench.add(num_tokens=num_tokens, prompt_len=2)
    bench.launch()
    assert len(sequence.pages) == num_pages


@pytest.mark.parametrize("scarce", ["lanes", "pages", "prefixes"])
def test_admission_is_whole_or_not_at_all(scarce: str) -> None:
    sizes = {
        "lanes": {"max_rows": 1},
        "pages": {"num_private_pages": 3},
        "prefixes": {"max_prefixes": 1},
    }[scarce]
    bench = Bench(**sizes)
    first, second = bench.add(frame=1), bench.add(frame=2)
    bench.launch()
    assert first.status is SequenceStatus.RUNNING
    lanes, pages = len(bench.scheduler._free_lanes), bench.pool.num_free_pages
    bench.launch()
    assert second.status is SequenceStatus.WAITING
    assert (second.lane, second.pages, second.prefix) == (-1, [], None)
    assert len(bench.scheduler._free_lanes) == lanes
    assert bench.pool.num_free_pages == pages
    assert not bench.pool.prefixes.has(2)
    while not first.finalized:
        bench.step()
    bench.step()
    assert second.status is SequenceStatus.RUNNING


def test_the_head_of_the_queue_is_never_overtaken_by_what_would_fit() -> None:
    bench = Bench(num_private_pages=10)
    bench.add(num_tokens=8)  # 3 pages
    bench.launch()
    big, small = bench.add(num_tokens=30), bench.add(num_tokens=1)  # 8 pages and 1
    for _ in range(3):
        bench.step()
        assert big.status is SequenceStatus.WAITING
        assert small.status is SequenceStatus.WAITING
    while big.status is SequenceStatus.WAITING:
        assert small.status is SequenceStatus.WAITING
        bench.step()


def test_a_later_deadline_never_delays_an_earlier_one() -> None:
    bench = Bench(max_rows=1)
    bench.add(num_tokens=3)
    bench.launch()
    late, early = bench.add(deadline_s=50.0), bench.add(deadline_s=40.0)
    while early.status is SequenceStatus.WAITING:
        assert late.status is SequenceStatus.WAITING
        bench.step()


def test_one_step_encodes_at_most_so_many_new_frames() -> None:
    bench = Bench(max_rows=8, max_prefixes=8, max_prefixes_per_step=2)
    for frame in (0, 0, 1, 1, 2, 3, 3):
        bench.add(num_tokens=2, frame=frame)
    plans = []
    while bench.scheduler.num_waiting:
        plan = bench.launch()
        assert plan is not None
        plans.append(plan)
        bench.commit()
    prefills = [plan for plan in plans if plan.kind == "prefill"]
    assert [len(plan.new_prefixes) for plan in prefills] == [2, 2]
    assert [len(plan.sequences) for plan in prefills] == [4, 3]


def test_a_frame_is_encoded_by_the_first_step_that_admits_a_reader_and_by_no_other() -> None:
    bench = Bench()
    bench.add(frame=1)
    first = bench.launch()
    bench.add(frame=1)
    second = bench.launch()
    assert first is not None
    assert second is not None
    assert len(first.new_prefixes) == 1
    assert second.kind == "prefill"
    assert second.new_prefixes == []
    assert second.sequences[0].prefix is first.sequences[0].prefix


def test_rows_that_share_a_frame_are_neighbours_in_every_step() -> None:
    bench = Bench(max_rows=8, max_prefixes=4, num_private_pages=40, max_prefixes_per_step=4)
    for frame in (0, 1, None, 0, 2, 1, None, 0):
        bench.add(num_tokens=4, frame=frame)
    for _ in range(3):
        plan = bench.launch()
        assert plan is not None
        assert len(plan.sequences) == 8
        frames = [None if s.prefix is None else s.prefix.number for s in plan.sequences]
        assert len(list(itertools.groupby(frames))) == len(set(frames)) == 4
        bench.commit()


def test_a_row_is_in_flight_at_most_twice_and_never_past_its_cap() -> None:
    bench = Bench()
    sequence = bench.add(num_tokens=3)
    bench.launch()
    bench.launch()
    assert sequence.num_inflight == 2
    assert bench.launch() is None
    bench.commit()
    bench.launch()
    assert sequence.num_launched == 3
    bench.commit()
    assert bench.launch() is None
    bench.commit()
    assert sequence.status is SequenceStatus.RELEASED


def test_blocking_keeps_one_step_of_a_row_in_flight() -> None:
    bench = Bench(pipelined=False)
    bench.add(num_tokens=3)
    bench.launch()
    assert bench.launch() is None
    bench.commit()
    assert bench.launch() is not None


def test_the_context_caps_an_answer_and_gives_its_reason() -> None:
    bench = Bench(num_private_pages=99)
    sequence = bench.add(num_tokens=500, prompt_len=10, frame=1)
    assert sequence.max_new_tokens == MAX_CONTEXT - PREFIX_LEN - 10 + 1
    assert sequence.length_reason is EndReason.MAX_CONTEXT
    exact = bench.add(num_tokens=MAX_CONTEXT - 10 + 1, prompt_len=10)
    assert exact.max_new_tokens == MAX_CONTEXT - 10 + 1
    assert exact.length_reason is EndReason.MAX_TOKENS


def test_what_can_never_fit_is_refused_with_what_it_needs_and_what_there_is() -> None:
    bench = Bench(num_private_pages=2)
    with pytest.raises(CapacityError, match=r"needs 3 KV pages of 4 positions; .* holds 2"):
        bench.add(num_tokens=8)
    with pytest.raises(CapacityError, match=r"needs 61 positions; .* room for 54"):
        bench.add(prompt_len=61, frame=1)
    assert bench.scheduler.num_waiting == 0


def test_a_prompt_that_fills_the_context_may_still_sample_one_token() -> None:
    bench = Bench(num_private_pages=99)
    sequence = bench.add(num_tokens=9, prompt_len=MAX_CONTEXT)
    assert sequence.max_new_tokens == 1
    bench.launch()
    assert bench.launch() is None


def test_expired_sequences_are_found_waiting_and_running_but_not_after_their_end() -> None:
    bench = Bench(max_rows=2)
    running = bench.add(deadline_s=5.0)
    bench.launch()
    over = bench.add(deadline_s=6.0)
    bench.launch()
    bench.launch()
    bench.end(over)
    waiting, later = bench.add(deadline_s=7.0), bench.add(deadline_s=9.0)
    bench.add()
    assert set(bench.scheduler.expired(7.0)) == {running, waiting}
    assert later not in bench.scheduler.expired(8.999)
    assert later in bench.scheduler.expired(9.0)
    assert bench.scheduler.expired(4.0) == []


def test_withdrawing_a_waiting_sequence_leaves_the_others_in_order() -> None:
    bench = Bench()
    sequences = [bench.add(deadline_s=float(i)) for i in range(3)]
    bench.end(sequences[1])
    assert bench.waiting == [sequences[0], sequences[2]]
    assert sequences[1].status is SequenceStatus.RELEASED


def test_withdrawing_a_running_sequence_keeps_what_it_owns_until_release() -> None:
    bench = Bench()
    sequence = bench.add(frame=1)
    bench.launch()
    bench.end(sequence)
    assert sequence not in bench.scheduler.running
    assert sequence.pages
    assert sequence.prefix is not None
    assert bench.launch() is None
    bench.commit()
    assert sequence.status is SequenceStatus.RELEASED
    assert bench.pool.num_free_pages == 20


def test_withdrawing_twice_or_after_release_does_nothing() -> None:
    bench = Bench()
    sequence, other = bench.add(), bench.add()
    bench.launch()
    bench.end(sequence)
    bench.scheduler.withdraw(sequence)
    bench.commit()
    bench.scheduler.withdraw(sequence)
    assert bench.scheduler.running == [other]


def test_a_sequence_is_released_once_however_often_it_is_asked_for() -> None:
    bench = Bench()
    sequence = bench.add(frame=1)
    bench.launch()
    bench.commit()
    bench.end(sequence)
    bench.scheduler.release(sequence)
    assert bench.pool.num_free_pages == 20
    assert len(bench.scheduler._free_lanes) == 4
    bench.pool.check()


def test_a_lane_is_not_given_to_another_before_its_release() -> None:
    bench = Bench(max_rows=1)
    first, second = bench.add(), bench.add()
    bench.launch()
    bench.launch()
    bench.end(first)  # named by two launched steps
    assert bench.launch() is None
    bench.commit()
    assert bench.launch() is None
    bench.commit()
    plan = bench.launch()
    assert plan is not None
    assert plan.sequences == [second]


def test_the_cap_of_a_cycle_counts_its_tokens() -> None:
    assert CycleGrammar(True, 4).max_new_tokens == 12
    bench = Bench()
    sequence = Sequence((1, 2), CycleGrammar(False, 3), lambda *_: None)
    bench.scheduler.add(sequence)
    assert sequence.max_new_tokens == 6
    assert sequence.length_reason is EndReason.MAX_OBJECTS


def test_a_sequence_that_ended_between_its_phases_is_not_planned_again() -> None:
    bench = Bench()
    first, second = bench.add(num_tokens=8), bench.add(num_tokens=8)
    bench.launch()
    bench.commit()
    for sequence in (first, second):
        sequence.enter_phase((4,))
        bench.scheduler.resume(sequence)
    bench.end(first)
    plan = bench.launch()
    assert plan is not None
    assert plan.kind == "prefill"
    assert plan.sequences == [second]
