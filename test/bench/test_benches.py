"""The benches: shapes of their figures, and what must hold on any machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from photon_ros.bench import host, model, overlap, zombies
from photon_ros.bench.sleep_device import SleepDevice
from photon_ros.bench.tick import chrome_trace
from photon_ros.bench.workload import FixedLengthState, build_engine, run_until_decoding, submit
from photon_ros.cli import main


def test_the_device_is_busy_for_the_time_it_was_told_whatever_the_host_does() -> None:
    device = SleepDevice(0.004)
    engine = build_engine(device, 2, pipelined=True)
    for number in range(2):
        submit(engine, number, FixedLengthState(1000))
    run_until_decoding(engine, 2, warm_up_ticks=10)
    assert len(device.compute.spans) >= 10
    for start_s, end_s in device.compute.spans:
        assert end_s - start_s == pytest.approx(0.004)
    starts = [start_s for start_s, _ in device.compute.spans]
    ends = [end_s for _, end_s in device.compute.spans]
    assert all(start >= end for start, end in zip(starts[1:], ends, strict=False))


def test_pipelining_hides_what_blocking_and_a_stray_synchronisation_do_not() -> None:
    pipelined = overlap.measure_case(8.0, 1, 2.0)
    blocking = overlap.measure_case(8.0, 1, 2.0, overlap.blocking_loop)
    stray = overlap.measure_case(8.0, 1, 2.0, overlap.stray_sync_loop)
    assert pipelined.bubble_hidden > 0.5
    assert pipelined.share_of_ideal > blocking.share_of_ideal
    assert pipelined.share_of_ideal > stray.share_of_ideal
    assert blocking.bubble_hidden < 0.5
    assert stray.bubble_hidden < 0.5
    assert pipelined.idle_ms < blocking.idle_ms
    assert pipelined.bubble_bound == 1.0


def test_where_the_host_needs_longer_than_the_forward_only_that_much_can_be_hidden() -> None:
    row = overlap.measure_case(2.0, 1, 8.0)
    assert row.bookkeeping_ms > 8.0
    assert row.bubble_bound == pytest.approx(2.0 / row.bookkeeping_ms)
    assert row.pipelined_ms >= 8.0
    assert row.idle_ms >= 8.0 - 2.0
    assert 0 < row.bubble_hidden < 0.5


@pytest.mark.parametrize("num_tokens", [3, 10, 30])
@pytest.mark.parametrize("rows", [1, 8])
def test_an_answer_wastes_at_most_one_step(num_tokens: int, rows: int) -> None:
    for with_prefill in (False, True):
        case = zombies.measure_case(num_tokens, rows, with_prefill=with_prefill)
        assert case.expected == pytest.approx(1 / num_tokens)
        assert 0 < case.zombie_share <= 1 / (num_tokens + 1) + 1e-9
        assert case.wasted_forwards <= case.zombie_share + 1e-9


def test_a_lone_stream_wastes_exactly_one_step_an_answer() -> None:
    case = zombies.measure_case(10, 1, with_prefill=False)
    assert case.zombie_share == pytest.approx(1 / 11)


def test_answers_that_find_nothing_waste_few_forwards_while_prefills_wait() -> None:
    case = zombies.measure_case(1, 32, with_prefill=True)
    # 16 prefills of two frames each; only the last one has nothing to go before it.
    assert case.num_steps == 17
    assert case.wasted_forwards == pytest.approx(1 / 17)


def test_the_host_bench_times_the_three_parts_of_a_tick() -> None:
    row = host.measure_case(4)
    assert row.batch_rows == 4
    assert set(row.stages_us) == {"launch_next", "finalize_sampling", "commit_oldest"}
    assert 0 < row.median_us <= row.p90_us
    assert all(spent > 0 for spent in row.stages_us.values())


def test_the_performance_model_says_that_it_was_computed() -> None:
    figures = model.measure()
    assert figures["note"] == "computed, not measured"
    assert not any(row["is_measured"] for row in figures["rows"])


@pytest.mark.parametrize(("gpu", "rows", "published"), model.CASES)
def test_the_performance_model_explains_the_published_figures(
    gpu: str, rows: int, published: float
) -> None:
    assert model.compute_case(gpu, rows).speed_up == pytest.approx(published, abs=0.05)


def test_a_forward_shorter_than_the_bookkeeping_is_bound_by_it() -> None:
    row = model.compute_case("B200", 1)
    assert row.forward_ms < row.bookkeeping_ms
    ratio = (row.forward_ms + row.bookkeeping_ms) / row.bookkeeping_ms
    assert row.speed_up == pytest.approx(ratio * (1 - row.zombie_share) - 1)


@pytest.mark.parametrize("bench", ["zombies", "model"])
def test_benches_print_json_and_nothing_else_on_stdout(
    bench: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", bench, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert rows
    assert all(isinstance(row, dict) for row in rows)


def test_benches_print_a_table_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "model"]) == 0
    out = capsys.readouterr().out
    assert "computed, not measured" in out
    assert "B200" in out


def test_a_table_that_goes_into_a_file_has_whole_headers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["bench", "model", "--json"])
    figures = json.loads(capsys.readouterr().out)
    main(["bench", "model"])
    written = capsys.readouterr().out
    names = {name for rows in figures.values() if isinstance(rows, list) for name in rows[0]}
    assert names
    assert {name for name in names if name not in written} == set()
    assert max(map(len, written.splitlines())) < 250


def test_the_trace_has_a_track_a_slot_and_shows_a_launch_before_the_commit_before_it() -> None:
    engine = build_engine(SleepDevice(0.0), 1, pipelined=True)
    submit(engine, 0, FixedLengthState(10, max_new_tokens=10))
    while engine.has_work:
        engine.tick()
    events = json.loads(json.dumps(chrome_trace(engine.stats.records)))["traceEvents"]
    assert {event["tid"] for event in events} == {0, 1}
    assert {event["cat"] for event in events} == {"launch", "sampling", "wait", "commit"}
    launches = sorted(event["ts"] for event in events if event["cat"] == "launch")
    commits = sorted(event["ts"] for event in events if event["cat"] == "commit")
    assert len(launches) == 10
    assert all(launch < commit for launch, commit in zip(launches[1:], commits[:-1], strict=True))


def test_the_trace_of_real_ticks_has_both_kinds_of_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    assert main(["bench", "tick", "--json", "--trace", str(trace)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert {row["kind"] for row in figures["rows"]} == {"prefill", "decode"}
    for row in figures["rows"]:
        for part in ("forward", "sampling", "wait", "commit", "bookkeeping", "idle"):
            shares = row[f"{part}_ms"]
            assert 0 <= shares["p50"] <= shares["p90"] <= shares["p99"]
        assert row["occupancy"] >= 1
        assert row["zombies"] >= 0
    stages = [row["stage"] for row in figures["requests"]]
    assert stages == ["queue", "prefill", "decode", "time_to_first_token"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["cat"] for event in events} == {"launch", "sampling", "wait", "commit"}
    assert all(event["dur"] >= 0 for event in events)
