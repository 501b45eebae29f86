from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.result import DetectionKind
from photon_ros.replay.bag_reader import BagEntry
from photon_ros.replay.children import LiveError
from photon_ros.replay.live_record import (
    Published,
    Record,
    Settling,
    books_of,
    read_published,
)
from photon_ros.replay.outcome import FrameStatus, RunOutcome

COUNTERS = (
    "received", "completed", "failed", "in_flight", "mailboxed", "dropped_overwritten",
    "dropped_stale", "dropped_rate", "dropped_bad", "dropped_reset",
)  # fmt: skip
MS = 1_000_000


def stats(**counts: int) -> dict[str, Any]:
    return dict.fromkeys(COUNTERS, 0) | counts


def stamp(ns: int) -> dict[str, int]:
    return {"sec": ns // 10**9, "nanosec": ns % 10**9}


def array(stamp_ns: int, received_ns: int = 0, status: int = 0, **change: Any) -> dict[str, Any]:
    latency = dict.fromkeys(
        [
            f"{stage}_ms"
            for stage in (
                "queue", "decode_image", "preprocess", "prefill", "decode", "postprocess",
                "publish", "total",
            )
        ],
        1.5,
    )  # fmt: skip
    return {
        "header": {"stamp": stamp(stamp_ns), "frame_id": "cam"},
        "image_width": 200,
        "image_height": 100,
        "status": status,
        "error": "",
        "detections": [],
        "latency": latency | {"receive_stamp": stamp(received_ns), "transport_ms": None},
    } | change


def line(kind: str, message: Any, receive_ns: int = 0) -> str:
    entry = {"topic": "/photon/x", "receive_ns": receive_ns, "kind": kind, "message": message}
    return json.dumps(entry) + "\n"


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "record.jsonl")


def entries(*stamps_ns: int) -> list[BagEntry]:
    return [BagEntry(k, ns, ns) for k, ns in enumerate(stamps_ns)]


def published(*stamps_ns: int) -> list[Published]:
    return [Published(ns, 10**15 + k * 100 * MS) for k, ns in enumerate(stamps_ns)]


# --- the file ---------------------------------------------------------------------------------


def test_a_file_that_is_not_there_yet_is_an_empty_record(record: Record) -> None:
    assert record.update() == 0
    assert record.stats is None
    assert (record.num_underway, record.num_settled, record.num_missing) == (0, 0, 0)


@given(st.data())
def test_a_growing_file_is_read_line_by_line_wherever_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("record") / "record.jsonl"
    record = Record(path)
    lines = []
    for k in range(data.draw(st.integers(0, 8))):
        is_array = data.draw(st.booleans())
        lines.append(
            line("detections", array(k, error="ü" * k), k) if is_array else line("stats", stats())
        )
    content = "".join(lines).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    num_new = 0
    for cut in [*cuts, len(content)]:
        path.write_bytes(content[:cut])
        num_new += record.update()
    assert num_new == len(record.arrays) == sum('"detections"' in text for text in lines)
    assert (record.stats is not None) == any('"stats"' in text for text in lines)


def test_the_last_account_counts(record: Record) -> None:
    record.path.write_text(
        line("stats", stats(received=3, in_flight=1))
        + line("stats", stats(received=5, completed=2, in_flight=1, mailboxed=1, failed=1))
    )
    record.update()
    assert (record.num_underway, record.num_settled, record.num_missing) == (2, 3, 3)


def test_the_players_report_is_read(tmp_path: Path) -> None:
    path = tmp_path / "player.json"
    item = {"stamp_ns": 5, "publish_ns": 7, "bag_time_ns": 9}
    path.write_text(json.dumps({"topic": "/cam", "published": [item]}))
    assert read_published(path) == [Published(5, 7)]


# --- settling ---------------------------------------------------------------------------------


def test_a_run_is_over_when_everything_published_is_settled(record: Record) -> None:
    settling = Settling(record, num_published=4)
    record.stats = stats(received=4, completed=3, in_flight=1)
    assert not settling.is_over(0.0)
    assert not settling.is_over(1000.0)  # a slow answer is waited for
    record.stats = stats(received=4, completed=4)
    assert settling.is_over(1001.0)


def test_frames_lost_on_the_way_are_not_waited_for_for_ever(record: Record) -> None:
    settling = Settling(record, num_published=4)
    record.stats = stats(received=3, completed=3)
    assert not settling.is_over(10.0)
    assert not settling.is_over(12.0)
    assert settling.is_over(14.0)


def test_any_change_starts_the_quiet_time_again(record: Record) -> None:
    settling = Settling(record, num_published=9)
    for now_s, received in ((0.0, 1), (3.0, 2), (6.0, 3), (9.0, 3)):
        record.stats = stats(received=received, completed=received)
        assert not settling.is_over(now_s)
    assert settling.is_over(9.6)


# --- the books --------------------------------------------------------------------------------


def books(record: Record, *stamps_ns: int) -> RunOutcome:
    return books_of(entries(*stamps_ns), published(*stamps_ns), record)


def test_every_frame_is_answered_or_dropped_with_its_reason(record: Record) -> None:
    record.arrays = [(0, array(1)), (0, array(3, status=1)), (0, array(4, status=3, error="why"))]
    record.stats = stats(
        received=10, completed=2, failed=2, dropped_overwritten=2, dropped_stale=1, dropped_bad=1,
        in_flight=1, mailboxed=1,
    )  # fmt: skip
    run = books(record, *range(1, 13))
    assert (run.received, run.completed, run.failed) == (12, 1, 2)
    assert run.dropped == {
        "overwritten": 2,
        "stale": 1,
        "bad": 1,
        "transport": 2,
        "unrecorded": 1,
        "unfinished": 2,
    }
    assert [frame.status for frame in run.frames.values()] == [
        FrameStatus.OK,
        FrameStatus.PARTIAL,
        FrameStatus.ERROR,
    ]
    assert list(run.frames) == [0, 2, 3]
    assert run.frames[3].error == "why"


counts = st.integers(0, 5)


@given(
    num_lost=counts, num_unrecorded=counts, num_ok=counts, num_failed=counts, in_flight=counts,
    mailboxed=st.integers(0, 1), drops=st.lists(counts, min_size=5, max_size=5),
)  # fmt: skip
def test_the_books_close_for_any_account_of_the_node(
    num_lost: int, num_unrecorded: int, num_ok: int, num_failed: int, in_flight: int,
    mailboxed: int, drops: list[int],
) -> None:  # fmt: skip
    record = Record(Path("unused"))
    num_answered = num_ok + num_failed
    received = num_answered + num_unrecorded + in_flight + mailboxed + sum(drops)
    record.stats = stats(
        received=received,
        completed=num_ok + num_unrecorded,
        failed=num_failed,
        in_flight=in_flight,
        mailboxed=mailboxed,
        **dict(zip(COUNTERS[5:], drops, strict=True)),
    )
    record.arrays = [(0, array(k, status=0 if k < num_ok else 2)) for k in range(num_answered)]
    run = books(record, *range(received + num_lost))
    assert run.received == received + num_lost
    assert run.received == run.completed + run.failed + sum(run.dropped.values())
    assert (run.completed, run.failed) == (num_ok, num_failed)
    assert run.dropped.get("transport", 0) == num_lost
    assert 0 not in run.dropped.values()


def test_an_account_that_does_not_close_is_an_error(record: Record) -> None:
    record.stats = stats(received=5, completed=1)
    record.arrays = [(0, array(1))]
    with pytest.raises(LiveError, match="does not close"):
        books(record, 1, 2, 3, 4, 5)
    record.stats = stats(received=7, completed=7)  # more than was published
    with pytest.raises(LiveError, match="does not close"):
        books(record, 1, 2, 3)


def test_a_node_that_never_reported_is_an_error(record: Record) -> None:
    with pytest.raises(LiveError, match="never reported"):
        books(record, 1, 2)


def test_an_answer_to_a_frame_nobody_sent_is_an_error(record: Record) -> None:
    record.stats = stats(received=1, completed=1)
    record.arrays = [(0, array(99))]
    with pytest.raises(LiveError, match="stamped 99 that was not published"):
        books(record, 1)


def test_frames_with_equal_stamps_are_answered_in_order(record: Record) -> None:
    record.stats = stats(received=3, completed=3)
    record.arrays = [(0, array(0, error=text)) for text in ("first", "second", "third")]
    run = books(record, 0, 0, 0)
    assert [frame.error for frame in run.frames.values()] == ["first", "second", "third"]


def test_an_interrupted_player_published_only_the_beginning(record: Record) -> None:
    record.stats = stats(received=2, completed=2)
    record.arrays = [(0, array(1)), (0, array(2))]
    run = books_of(entries(1, 2, 3, 4), published(1, 2), record)
    assert (run.received, list(run.frames)) == (2, [0, 1])


def test_pixels_become_shares_of_the_image(record: Record) -> None:
    box = {
        "kind": 1, "label": "cup", "score": 0.75, "x": 100.0, "y": 25.0, "width": 40.0,
        "height": 50.0,
    }  # fmt: skip
    point = copy.copy(box) | {"kind": 0, "score": None, "width": 0.0, "height": 0.0}
    record.stats = stats(received=1, completed=1)
    record.arrays = [(0, array(1, detections=[box, point]))]
    first, second = books(record, 1).frames[0].detections
    assert (first.kind, second.kind) == (DetectionKind.BOX, DetectionKind.POINT)
    assert first.corners() == pytest.approx((0.4, 0.0, 0.6, 0.5))
    assert first.score == 0.75
    assert (second.x, second.y) == (0.5, 0.25)
    assert math.isnan(second.score)


def test_ways_in_and_out_are_measured_from_when_the_player_published(record: Record) -> None:
    record.stats = stats(received=2, completed=2)
    first_ns, second_ns = (item.publish_ns for item in published(1, 2))
    record.arrays = [
        (first_ns + 50 * MS, array(1, first_ns + 4 * MS)),
        (second_ns + 70 * MS, array(2, second_ns + 6 * MS)),
    ]
    run = books(record, 1, 2)
    assert run.latencies_ms[0]["transport"] == pytest.approx(4.0)
    assert run.latencies_ms[1]["end_to_end"] == pytest.approx(70.0)
    assert list(run.latencies_ms[0]) == [
        "transport", "queue", "decode_image", "preprocess", "prefill", "decode", "postprocess",
        "publish", "total", "end_to_end",
    ]  # fmt: skip
    assert run.elapsed_s == pytest.approx(0.170)


def test_a_stage_that_could_not_be_measured_is_no_number(record: Record) -> None:
    record.stats = stats(received=1, completed=1)
    answer = array(1)
    answer["latency"]["queue_ms"] = None
    record.arrays = [(0, answer)]
    assert math.isnan(books(record, 1).latencies_ms[0]["queue"])


def test_nothing_answered_took_no_time(record: Record) -> None:
    record.stats = stats(received=1, dropped_stale=1)
    run = books(record, 1)
    assert (run.elapsed_s, run.dropped) == (0.0, {"stale": 1})
