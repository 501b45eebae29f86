from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from painted import SeeingPhoton, scene, write_scene

from photon_ros.core.errors import CapacityError, EngineStopped, PhotonError
from photon_ros.core.request import Request
from photon_ros.core.result import Result
from photon_ros.replay.bag_reader import BagFrame, BagReader
from photon_ros.replay.lockstep import MAX_FRAMES_IN_FLIGHT, Question, run_lockstep
from photon_ros.replay.outcome import FrameOutcome, FrameStatus, RunOutcome

NUM_FRAMES = 12
STAMPS = [1_000_000_000 + 100_000_000 * k for k in range(NUM_FRAMES)]
RED = Question("detect", ["red"])


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[BagReader]:
    write_scene(tmp_path / "bag", scene(NUM_FRAMES))
    with BagReader(tmp_path / "bag") as reader:
        yield reader


def run(reader: BagReader, photon: Any, question: Question = RED, **more: Any) -> RunOutcome:
    return run_lockstep(photon, reader, reader.select_topic(), question, **more)


def test_every_frame_is_answered_in_order_and_none_dropped(reader: BagReader) -> None:
    photon = SeeingPhoton()
    outcome = run(reader, photon)
    assert (outcome.received, outcome.completed, outcome.failed) == (NUM_FRAMES, NUM_FRAMES, 0)
    assert outcome.dropped == {}
    assert list(outcome.frames) == list(range(NUM_FRAMES))
    assert [frame.stamp_ns for frame in outcome.frames.values()] == STAMPS
    for k, frame in outcome.frames.items():
        [red] = frame.detections
        assert red.x == pytest.approx((10 + 4 * k + 15) / 160, abs=0.01)


def test_several_frames_are_in_flight_but_not_the_whole_recording(reader: BagReader) -> None:
    photon = SeeingPhoton()
    run(reader, photon)
    assert 2 <= photon.most_pending <= MAX_FRAMES_IN_FLIGHT


def test_the_prompts_of_a_frame_share_its_frame(reader: BagReader) -> None:
    photon = SeeingPhoton()
    question = Question("detect", ["red", "green"], max_objects=7, max_crops=2)
    outcome = run(reader, photon, question)
    assert len(photon.requests) == 2 * NUM_FRAMES
    for first, second in zip(photon.requests[::2], photon.requests[1::2], strict=True):
        assert first.frame is second.frame
        assert (first.prompt, second.prompt) == ("red", "green")
        assert (first.max_objects, first.max_crops) == (7, 2)
    assert [d.label for d in outcome.frames[0].detections] == ["red", "green"]
    assert [d.label for d in outcome.frames[1].detections] == ["red"]


def test_only_wanted_frames_are_taken(reader: BagReader) -> None:
    outcome = run(reader, SeeingPhoton(), wanted={3, 8})
    assert list(outcome.frames) == [3, 8]
    assert outcome.received == 2


def test_each_frame_is_reported_once(reader: BagReader) -> None:
    calls = []
    run(reader, SeeingPhoton(), on_frame=lambda: calls.append(1))
    assert len(calls) == NUM_FRAMES


def test_a_frame_on_which_the_engine_fails_is_failed_and_the_rest_goes_on(
    reader: BagReader,
) -> None:
    outcome = run(reader, SeeingPhoton(fault_on=[STAMPS[4], STAMPS[6]]))
    assert (outcome.received, outcome.completed, outcome.failed) == (NUM_FRAMES, NUM_FRAMES - 2, 2)
    failed = outcome.frames[4]
    assert (failed.status, failed.detections) == (FrameStatus.ERROR, ())
    assert failed.error == "the step failed"
    assert not outcome.is_flawless
    assert outcome.notes == ("first failed frame, number 4: the step failed",)


def test_an_answer_cut_off_by_its_budget_is_failed_but_kept(reader: BagReader) -> None:
    outcome = run(reader, SeeingPhoton(max_found=0))
    assert outcome.failed == NUM_FRAMES
    assert not outcome.is_flawless
    assert {frame.status for frame in outcome.frames.values()} == {FrameStatus.PARTIAL}


class Refusing(SeeingPhoton):
    """Refuses at once, as submit does for what can never fit."""

    def submit(self, request: Request) -> Future[Result]:
        raise CapacityError("needs 9 pages; the cache holds 8")


def test_what_submit_refuses_is_a_failed_frame(reader: BagReader) -> None:
    outcome = run(reader, Refusing())
    assert outcome.failed == NUM_FRAMES
    assert outcome.notes == ("first failed frame, number 0: needs 9 pages; the cache holds 8",)


class Stopping(SeeingPhoton):
    """Its engine stops after some frames."""

    def __init__(self, after: int, at_submit: bool) -> None:
        super().__init__()
        self.after = after
        self.at_submit = at_submit
        self.cancelled = 0

    def submit(self, request: Request) -> Future[Result]:
        if len(self.requests) < self.after:
            return super().submit(request)
        if self.at_submit:
            raise EngineStopped("photon was closed")
        self.requests.append(request)
        answer: Future[Result] = Future()
        if len(self.requests) == self.after + 1:
            answer.set_exception(EngineStopped("photon was closed"))
        answer.add_done_callback(self._count)
        return answer

    def _count(self, answer: Future[Result]) -> None:
        self.cancelled += answer.cancelled()


@pytest.mark.parametrize("at_submit", [True, False])
def test_an_engine_that_stops_ends_the_run_and_what_waits_is_cancelled(
    reader: BagReader, at_submit: bool
) -> None:
    photon = Stopping(after=5, at_submit=at_submit)
    with pytest.raises(EngineStopped):
        run(reader, photon)
    if not at_submit:
        assert photon.cancelled == MAX_FRAMES_IN_FLIGHT - 1


class DamagedReader:
    """A reader in which some frames cannot be decoded."""

    def __init__(self, reader: BagReader, bad: set[int]) -> None:
        self._reader = reader
        self._bad = bad

    def select_topic(self) -> str:
        return self._reader.select_topic()

    def frames(self, topic: str, wanted: Any = None, **options: Any) -> Iterator[BagFrame]:
        for item in self._reader.frames(topic, wanted, **options):
            is_bad = item.index in self._bad
            yield BagFrame(item.index, item.stamp_ns, None, "torn") if is_bad else item


def test_bad_frames_are_counted_as_dropped(reader: BagReader) -> None:
    damaged: Any = DamagedReader(reader, {2, 3, 11})
    outcome = run(damaged, SeeingPhoton())
    assert (outcome.received, outcome.completed) == (NUM_FRAMES, NUM_FRAMES - 3)
    assert outcome.dropped == {"bad": 3}
    assert outcome.notes == ("first bad frame, number 2: torn",)
    assert 2 not in outcome.frames


def test_latency_has_one_record_per_answer_and_a_total_per_frame(reader: BagReader) -> None:
    outcome = run(reader, SeeingPhoton(fault_on=[STAMPS[0]]), Question("detect", ["red", "green"]))
    stages = [record for record in outcome.latencies_ms if "prefill" in record]
    totals = [record["total"] for record in outcome.latencies_ms if "total" in record]
    decodes = [r["decode_image"] for r in outcome.latencies_ms if "decode_image" in r]
    assert len(stages) == 2 * (NUM_FRAMES - 1)  # both prompts of the first frame failed
    assert len(totals) == NUM_FRAMES - 1
    assert len(decodes) == NUM_FRAMES
    assert stages[0] == {
        "preprocess": 1.0,
        "queue": 2.0,
        "prefill": 3.0,
        "decode": 4.0,
        "postprocess": 0.5,
    }
    for total, decode in zip(totals, decodes[1:], strict=True):
        assert total == pytest.approx(decode + 10.5)
    assert outcome.elapsed_s > 0


def test_an_unexpected_error_is_not_swallowed(reader: BagReader) -> None:
    class Broken(SeeingPhoton):
        def submit(self, request: Request) -> Future[Result]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(reader, Broken())


# --- the books -------------------------------------------------------------------------------


def frames(*statuses: FrameStatus) -> dict[int, FrameOutcome]:
    return {k: FrameOutcome(k, k, status) for k, status in enumerate(statuses)}


def test_books_that_close_are_accepted() -> None:
    run = RunOutcome(
        frames(FrameStatus.OK, FrameStatus.PARTIAL, FrameStatus.ERROR, FrameStatus.TIMEOUT),
        received=9,
        dropped={"bad": 2, "transport": 3},
        latencies_ms=(),
        elapsed_s=1.0,
    )
    assert (run.completed, run.failed) == (1, 3)


@pytest.mark.parametrize(
    ("status", "dropped", "is_flawless"),
    [
        (FrameStatus.OK, {}, True),
        (FrameStatus.OK, {"overwritten": 5, "stale": 1, "transport": 1}, True),
        (FrameStatus.OK, {"bad": 1}, False),
        (FrameStatus.PARTIAL, {}, False),
        (FrameStatus.TIMEOUT, {}, False),
        (FrameStatus.ERROR, {"overwritten": 1}, False),
    ],
)
def test_a_run_is_flawless_when_each_frame_could_be_read_and_its_answers_are_whole(
    status: FrameStatus, dropped: dict[str, int], is_flawless: bool
) -> None:
    found = frames(FrameStatus.OK, status)
    outcome = RunOutcome(found, 2 + sum(dropped.values()), dropped, (), 1.0)
    assert outcome.is_flawless is is_flawless


@pytest.mark.parametrize(
    ("received", "dropped"), [(0, {}), (2, {}), (1, {"bad": 1}), (1, {"bad": 1, "lost": -1})]
)
def test_books_that_do_not_close_are_refused(received: int, dropped: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="do not close"):
        RunOutcome(frames(FrameStatus.OK), received, dropped, (), 1.0)


def test_all_errors_of_this_package_have_one_root() -> None:
    from photon_ros.replay.children import LiveError

    assert issubclass(LiveError, PhotonError)
