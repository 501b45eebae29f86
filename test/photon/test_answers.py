"""Answers in words and outlines: shapes, phases, modes, streams, and what is refused."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from photon_ros.async_photon import AsyncPhoton
from photon_ros.core.errors import (
    CapacityError,
    EngineStopped,
    InputError,
    PromptError,
    RequestCancelled,
    UnsupportedSkillError,
)
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Result
from photon_ros.engine.config import EngineConfig
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.photon import Photon

from .conftest import ByteTokenizer

QUESTIONS = [f"where {n}?" for n in range(6)]
REFS = ((0.25, 0.5), (0.1, 0.2, 0.4, 0.9))


def essence(result: Result) -> tuple[object, ...]:
    """What must be the same however the engine runs."""
    return (
        result.text,
        result.token_ids,
        result.reasoning,
        result.outline,
        result.end_reason,
        [(found.corners(), found.polygon) for found in result.detections],
    )


# --- shapes -------------------------------------------------------------------------------------


def test_answers_in_words_have_the_shapes_people_know(photon: Photon, frame: Frame) -> None:
    answer = photon.query(frame.image, "what is this?", max_tokens=5)
    assert set(answer) == {"answer"}
    assert isinstance(answer["answer"], str)
    caption = photon.caption(frame, "short", max_tokens=5)
    assert set(caption) == {"caption"}
    assert photon.query(None, "what is this?", max_tokens=5).keys() == {"answer"}


def test_a_reasoning_comes_with_its_grounding(photon: Photon, frame: Frame) -> None:
    answers = [photon.query(frame, q, reasoning=True, max_tokens=12) for q in QUESTIONS]
    for answer in answers:
        assert set(answer) == {"reasoning", "answer"}
        assert set(answer["reasoning"]) == {"text", "grounding"}
        for part in answer["reasoning"]["grounding"]:
            assert set(part) == {"start_idx", "end_idx", "points"}
            assert all(len(point) == 2 for point in part["points"])


def test_an_outline_has_a_path_and_a_box(photon: Photon, frame: Frame) -> None:
    for prompt in QUESTIONS:
        answer = photon.segment(frame, prompt, max_tokens=12)
        assert {"path", "bbox"} <= set(answer)
        if answer["bbox"] is not None:
            assert set(answer["bbox"]) == {"x_min", "y_min", "x_max", "y_max"}
        if "parse_error" in answer:
            assert answer["path"] == ""
            assert answer["raw_text"]


def test_an_option_that_a_skill_does_not_have_is_refused(photon: Photon, frame: Frame) -> None:
    with pytest.raises(TypeError, match=r"^detect takes no option 'max_tokens'; it takes max_obj"):
        photon.detect(frame, "cup", max_tokens=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^query takes no option 'max_objects'; it takes max_tok"):
        photon.query(frame, "cup", max_objects=3)  # type: ignore[call-arg]


def test_a_result_counts_the_tokens_of_both_phases(photon: Photon, frame: Frame) -> None:
    for question in QUESTIONS:
        result = photon.submit(
            Request("query", question, frame, reasoning=True, max_tokens=6)
        ).result()
        assert result.reasoning is not None
        num_answer = len(result.token_ids) + (result.end_reason is EndReason.EOS)
        assert result.timings.num_tokens == len(result.reasoning.token_ids) + 1 + num_answer
        stages = result.timings
        assert min(stages.prefill_ms, stages.decode_ms, stages.total_ms) > 0


# --- the same however it runs -------------------------------------------------------------------


def everything(frame: Frame) -> list[Request]:
    other = Frame(frame.image[::-1].copy())
    requests = []
    for n, question in enumerate(QUESTIONS):
        asked = (frame, other, None)[n % 3]
        warm = {"temperature": 0.8 * (n % 2), "top_p": 0.9, "seed": n, "max_tokens": 9}
        requests += [
            Request("query", question, asked, **warm),  # type: ignore[arg-type]
            Request("query", question, asked, reasoning=True, **warm),  # type: ignore[arg-type]
            Request("query", question, asked, spatial_refs=REFS[: n % 3], **warm),  # type: ignore[arg-type]
            Request("segment", question, frame, **warm),  # type: ignore[arg-type]
            Request("caption", "short", other, **warm),  # type: ignore[arg-type]
            Request("detect", question, frame, max_objects=3),
            Request("point", question, other, max_objects=3),
        ]
    return requests


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("hold_constrained", [True, False])
def test_all_skills_together_are_answered_as_each_alone(
    checkpoint: Checkpoint, frame: Frame, pipelined: bool, hold_constrained: bool
) -> None:
    requests = everything(frame)
    with Photon(checkpoint, config=EngineConfig(max_rows=1, pipelined=False)) as lone:
        alone = [essence(lone.submit(request).result()) for request in requests]
    config = EngineConfig(pipelined=pipelined, hold_constrained=hold_constrained)
    with Photon(checkpoint, config=config) as photon:
        futures = [photon.submit(request) for request in requests]
        together = [essence(future.result()) for future in futures]
    assert together == alone
    assert len({repr(answer) for answer in alone}) > len(requests) / 2


@pytest.mark.parametrize("hold_constrained", [True, False])
def test_outlines_drawn_as_corners_are_the_same_in_every_mode(
    checkpoint: Checkpoint, frame: Frame, hold_constrained: bool
) -> None:
    template = replace(checkpoint.prompting.templates["segment"], spells_outline=False)
    templates = {**checkpoint.prompting.templates, "segment": template}
    drawing = replace(checkpoint, prompting=replace(checkpoint.prompting, templates=templates))
    requests = [Request("segment", f"thing {n}", frame, max_tokens=20) for n in range(8)]
    with Photon(drawing, config=EngineConfig(max_rows=1, pipelined=False)) as lone:
        alone = [essence(lone.submit(request).result()) for request in requests]
    with Photon(drawing, config=EngineConfig(hold_constrained=hold_constrained)) as photon:
        futures = [photon.submit(request) for request in requests]
        results = [future.result() for future in futures]
        stats = photon.engine_stats
    assert [essence(result) for result in results] == alone
    assert bool(stats.num_held_steps) == hold_constrained
    assert any(result.outline is not None and result.outline.path for result in results)
    assert all(0.5 <= d.score <= 1 for result in results for d in result.detections)


def test_reasonings_end_both_ways_and_point_at_places(checkpoint: Checkpoint, frame: Frame) -> None:
    """That what the modes are compared on is not all of one kind."""
    with Photon(checkpoint) as photon:
        futures = [
            photon.submit(
                Request("query", f"{n}", frame, reasoning=True, max_tokens=9, temperature=2, seed=n)
            )
            for n in range(60)
        ]
        thoughts = [reasoning for f in futures if (reasoning := f.result().reasoning) is not None]
    lengths = {len(thought.token_ids) for thought in thoughts}
    assert 9 in lengths
    assert len(lengths) > 1
    assert any(5 in thought.token_ids for thought in thoughts)


def test_spatial_references_change_the_answer(photon: Photon, frame: Frame) -> None:
    def answer(*refs: tuple[float, ...]) -> str:
        text: str = photon.query(frame, "what?", spatial_refs=refs, max_tokens=8)["answer"]
        return text

    answers = [answer(), answer((0.1, 0.2)), answer((0.8, 0.2)), answer((0.1, 0.2, 0.4, 0.9))]
    assert len(set(answers)) == len(answers)


def test_a_seed_repeats_a_sampled_answer_and_another_one_does_not(
    photon: Photon, frame: Frame
) -> None:
    def sampled(seed: int) -> object:
        return photon.query(frame, "what?", temperature=1.5, seed=seed, max_tokens=12)["answer"]

    assert sampled(7) == sampled(7)
    assert len({sampled(seed) for seed in range(6)}) > 1
    greedy = photon.query(frame, "what?", max_tokens=12)["answer"]
    assert photon.query(frame, "what?", temperature=1.5, top_p=1e-6, max_tokens=12) == {
        "answer": greedy
    }


def test_an_answer_ends_at_its_budget_and_at_the_end_of_the_context(
    checkpoint: Checkpoint, frame: Frame
) -> None:
    with Photon(checkpoint) as photon:
        short = [photon.submit(Request("query", q, frame, max_tokens=2)) for q in QUESTIONS]
        reasons = {future.result().end_reason for future in short}
        assert EndReason.MAX_TOKENS in reasons
        long = [
            photon.submit(Request("query", "x" * (90 - n), frame, max_tokens=500)).result()
            for n in range(6)
        ]
        ended = [result for result in long if result.end_reason is EndReason.MAX_CONTEXT]
        assert ended
        for n, result in enumerate(long):
            if result.end_reason is EndReason.MAX_CONTEXT:
                # The last sampled token is never fed.
                assert len(result.token_ids) == 128 - 26 - (90 - n) - 4 + 1


@pytest.mark.parametrize("length", [60, 80, 85, 90, 95, 97])
def test_a_reasoning_that_runs_into_the_end_of_the_context_ends_there(
    checkpoint: Checkpoint, frame: Frame, length: int
) -> None:
    with Photon(checkpoint) as photon:
        stream = photon.stream(
            Request("query", "x" * length, frame, reasoning=True, max_tokens=500)
        )
        reasoning = stream.reasoning()
        text = "".join(stream)
        result = stream.result.result()
    assert result.end_reason in (EndReason.MAX_CONTEXT, EndReason.EOS)
    assert (result.reasoning, result.text) == (reasoning, text)
    num_positions = 26 + length + 4 + len(reasoning.token_ids) + 1 + len(result.token_ids)
    assert num_positions <= 128 + 2


# --- frames -------------------------------------------------------------------------------------


def test_an_encoded_image_is_not_encoded_again(photon: Photon, frame: Frame) -> None:
    handle = photon.encode_image(frame.image)
    assert photon.engine_stats.num_prefixes == 1
    photon.query(handle, "what?", max_tokens=3)
    photon.detect(handle, "cup", max_objects=1)
    photon.caption(handle, "short", max_tokens=3)
    assert photon.encode_image(handle) is handle
    assert photon.engine_stats.num_prefixes == 1
    photon.query(handle, "what?", max_tokens=3, max_crops=0)
    assert photon.engine_stats.num_prefixes == 2


def test_answers_about_an_encoded_image_are_those_about_the_image(
    photon: Photon, frame: Frame
) -> None:
    direct = photon.query(frame.image, "what?", max_tokens=9)
    assert photon.query(photon.encode_image(frame.image), "what?", max_tokens=9) == direct


def test_a_question_about_no_image_encodes_none(photon: Photon) -> None:
    photon.query(None, "what?", max_tokens=3)
    assert photon.engine_stats.num_prefixes == 0


@pytest.mark.parametrize("skill", ["point", "detect", "segment", "caption"])
def test_skills_that_look_need_something_to_look_at(photon: Photon, skill: str) -> None:
    with pytest.raises(InputError, match=f"{skill} needs a frame"):
        photon.submit(Request(skill, "short"))


# --- refusals -----------------------------------------------------------------------------------


def test_a_missing_skill_is_refused_by_name_before_any_frame_is_processed(
    checkpoint: Checkpoint, frame: Frame
) -> None:
    templates = {"point": checkpoint.prompting.templates["point"]}
    prompting = replace(checkpoint.prompting, templates=templates)
    with Photon(replace(checkpoint, prompting=prompting)) as photon:
        message = "tiny has no segment skill; models that do: mighty"
        with pytest.raises(UnsupportedSkillError, match=message):
            photon.segment(frame, "cup")
        with pytest.raises(UnsupportedSkillError, match=message):
            photon.validate("segment", "cup")
        assert photon.engine_stats.num_prefixes == 0


def test_more_references_than_fit_fail_with_the_figures(photon: Photon, frame: Frame) -> None:
    refs = ((0.5, 0.5),) * 40
    with pytest.raises(CapacityError, match="80 coordinates and sizes; at most 64"):
        photon.query(frame, "?", spatial_refs=refs, max_tokens=1)


@pytest.mark.parametrize("prompt", ["", " "])
def test_an_empty_question_is_refused(photon: Photon, frame: Frame, prompt: str) -> None:
    with pytest.raises(PromptError, match="empty"):
        photon.query(frame, prompt)


def test_a_whole_request_can_be_checked_without_running_it(photon: Photon, frame: Frame) -> None:
    photon.check(Request("query", "what?", frame, reasoning=True))
    with pytest.raises(PromptError, match="length"):
        photon.check(Request("caption", "huge", frame))
    assert photon.engine_stats.num_tokens == 0


# --- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reasoning", [False, True])
def test_the_pieces_of_a_stream_are_the_text(photon: Photon, frame: Frame, reasoning: bool) -> None:
    for question in QUESTIONS:
        request = Request("query", question, frame, reasoning=reasoning, max_tokens=20)
        whole = photon.submit(request).result()
        stream = photon.stream(request)
        assert "".join(stream) == whole.text
        assert essence(stream.result.result()) == essence(whole)
        assert list(stream) == []


def test_a_streamed_call_gives_the_pieces_and_the_reasoning_before_them(
    photon: Photon, frame: Frame
) -> None:
    whole = photon.query(frame, "where?", reasoning=True, max_tokens=9)
    streamed = photon.query(frame, "where?", reasoning=True, max_tokens=9, stream=True)
    assert streamed["reasoning"] == whole["reasoning"]
    assert "".join(streamed["answer"]) == whole["answer"]
    pieces = photon.caption(frame, "short", max_tokens=9, stream=True)["caption"]
    assert "".join(pieces) == photon.caption(frame, "short", max_tokens=9)["caption"]


class WatchedTokenizer(ByteTokenizer):
    """Notes which threads turn tokens into text."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def decode(self, ids: Sequence[int]) -> str:
        self.threads.add(threading.current_thread().name)
        return super().decode(ids)


def test_tokens_become_text_where_they_are_read_and_never_on_the_engines_thread(
    checkpoint: Checkpoint, frame: Frame
) -> None:
    tokenizer = WatchedTokenizer()
    prompting = replace(checkpoint.prompting, tokenizer=tokenizer)
    with Photon(replace(checkpoint, prompting=prompting)) as photon:
        stream = photon.stream(Request("query", "what?", frame, reasoning=True, max_tokens=20))
        stream.reasoning()
        list(stream)
        assert threading.current_thread().name in tokenizer.threads
        assert "photon-engine" not in tokenizer.threads


def wait_until_idle(photon: Photon) -> None:
    deadline_s = time.monotonic() + 10
    while photon._worker.engine.has_work and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not photon._worker.engine.has_work


class SlowModel:
    """The model, each forward taking a while, so that an answer can be interrupted."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def decode(self, *arguments: Any) -> Any:
        time.sleep(0.01)
        return self._model.decode(*arguments)


class SpacedTokenizer(ByteTokenizer):
    """Every token is a word, so that each is released at once."""

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(f"{token_id} " for token_id in ids)


@pytest.fixture
def slow(checkpoint: Checkpoint) -> Iterator[Photon]:
    prompting = replace(checkpoint.prompting, tokenizer=SpacedTokenizer())
    slowed = replace(checkpoint, model=SlowModel(checkpoint.model), prompting=prompting)
    with Photon(slowed, config=EngineConfig(num_private_pages=64)) as opened:
        yield opened


def endless(frame: Frame) -> Request:
    """A question that is answered with nearly a hundred tokens, none of them the end."""
    return Request("query", "what?", frame, max_tokens=90, temperature=0.7, seed=11)


@pytest.mark.parametrize("how", ["close", "drop", "cancel"])
def test_a_stream_that_nobody_reads_to_its_end_stops_costing(
    slow: Photon, frame: Frame, how: str
) -> None:
    stream = slow.stream(endless(frame))
    next(stream)
    future = stream.result
    if how == "close":
        stream.close()
        assert list(stream) == []
    elif how == "cancel":
        future.cancel()
        with pytest.raises(RequestCancelled):
            list(stream)
    else:
        del stream
        gc.collect()
    assert future.cancelled()
    wait_until_idle(slow)
    assert slow.engine_stats.num_tokens < 20
    assert slow._worker.engine.pool.num_free_pages == 64


def test_an_error_reaches_the_reader_of_a_stream_once(checkpoint: Checkpoint, frame: Frame) -> None:
    with Photon(checkpoint, config=EngineConfig(num_private_pages=2)) as photon:
        stream = photon.stream(Request("query", "what?", frame, max_tokens=90))
        with pytest.raises(CapacityError, match="KV pages"):
            next(stream)
        assert list(stream) == []


def test_closing_photon_ends_an_open_stream(slow: Photon, frame: Frame) -> None:
    stream = slow.stream(endless(frame))
    next(stream)
    slow.close()
    with pytest.raises(EngineStopped):
        list(stream)


# --- in an event loop ---------------------------------------------------------------------------


def test_every_call_can_be_awaited_and_gives_the_same(checkpoint: Checkpoint, frame: Frame) -> None:
    with Photon(checkpoint) as photon:
        wanted = [
            photon.point(frame, "cup", max_objects=2),
            photon.detect(frame, "cup", max_objects=2),
            photon.segment(frame, "cup", max_tokens=9),
            photon.query(frame, "where?", reasoning=True, max_tokens=9),
            photon.caption(frame, "short", max_tokens=9),
        ]

    async def ask() -> list[object]:
        async with AsyncPhoton(Photon(checkpoint)) as photon:
            handle = await photon.encode_image(frame.image)
            return list(
                await asyncio.gather(
                    photon.point(handle, "cup", max_objects=2),
                    photon.detect(handle, "cup", max_objects=2),
                    photon.segment(handle, "cup", max_tokens=9),
                    photon.query(handle, "where?", reasoning=True, max_tokens=9),
                    photon.caption(handle, "short", max_tokens=9),
                )
            )

    def rounded(answer: object) -> object:
        if isinstance(answer, float):
            return pytest.approx(answer, abs=1e-5)
        if isinstance(answer, dict):
            return {key: rounded(value) for key, value in answer.items()}
        return [rounded(item) for item in answer] if isinstance(answer, list) else answer

    assert asyncio.run(ask()) == rounded(wanted)


def test_streams_are_read_in_an_async_for_side_by_side(
    checkpoint: Checkpoint, frame: Frame
) -> None:
    with Photon(checkpoint) as photon:
        wanted = [photon.query(frame, q, max_tokens=15) for q in QUESTIONS]
        thought = photon.query(frame, "where?", reasoning=True, max_tokens=9)

    async def read(photon: AsyncPhoton, question: str) -> dict[str, str]:
        answer = await photon.query(frame, question, stream=True, max_tokens=15)
        return {"answer": "".join([piece async for piece in answer["answer"]])}

    async def ask() -> tuple[list[dict[str, str]], dict[str, object]]:
        async with AsyncPhoton(Photon(checkpoint)) as photon:
            texts = await asyncio.gather(*(read(photon, question) for question in QUESTIONS))
            streamed = await photon.query(
                frame, "where?", reasoning=True, stream=True, max_tokens=9
            )
            streamed["answer"] = "".join([piece async for piece in streamed["answer"]])
            caption = await photon.caption(frame, "short", stream=True, max_tokens=2)
            assert isinstance("".join([piece async for piece in caption["caption"]]), str)
            return texts, streamed

    assert asyncio.run(ask()) == (wanted, thought)


def test_cancelling_the_task_cancels_the_request(slow: Photon, frame: Frame) -> None:
    async def ask() -> None:
        task = asyncio.create_task(AsyncPhoton(slow).submit(endless(frame)))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until_idle, slow)

    asyncio.run(ask())
    assert slow.engine_stats.num_tokens < 60


def test_the_event_loop_runs_while_an_answer_is_awaited(slow: Photon, frame: Frame) -> None:
    async def ask() -> int:
        num_turns = 0
        task = asyncio.create_task(AsyncPhoton(slow).submit(endless(frame)))
        while not task.done():
            num_turns += 1
            await asyncio.sleep(0.001)
        return num_turns

    assert asyncio.run(ask()) > 10


def test_frames_of_one_picture_are_not_shared_unless_they_are_the_same(
    photon: Photon, frame: Frame
) -> None:
    photon.query(np.array(frame.image), "a", max_tokens=1)
    photon.query(np.array(frame.image), "a", max_tokens=1)
    assert photon.engine_stats.num_prefixes == 2
