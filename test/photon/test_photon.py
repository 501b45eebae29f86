"""Photon from a caller's side: answers, sharing, refusals, cancel, close."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, wait
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from photon_ros.core.errors import (
    CapacityError,
    DeadlineExceeded,
    EngineStopped,
    ImageError,
    InputError,
    ModelError,
    PromptError,
    UnsupportedSkillError,
)
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import DetectionKind, EndReason
from photon_ros.engine.config import EngineConfig
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.photon import Photon

PROMPTS = [f"thing {n}" for n in range(9)]


def test_skills_are_those_the_model_has_templates_for(
    photon: Photon, point_only: Checkpoint
) -> None:
    assert photon.skills == ("point", "detect", "segment", "query", "caption")
    with Photon(point_only) as other:
        assert other.skills == ("point",)


def test_point_and_detect_have_the_shapes_people_know(photon: Photon, frame: Frame) -> None:
    points = photon.point(frame.image, "cup", max_objects=2)["points"]
    boxes = photon.detect(Image.fromarray(frame.image), "cup", max_objects=2)["objects"]
    assert points
    assert boxes
    assert all(set(point) == {"x", "y", "score"} for point in points)
    names = {"x_min", "y_min", "x_max", "y_max", "score"}
    assert all(set(box) == names for box in boxes)
    assert all(0.5 <= found["score"] <= 1 for found in points + boxes)
    assert all(box["x_min"] < box["x_max"] and box["y_min"] < box["y_max"] for box in boxes)


def test_a_result_says_what_was_asked_and_where_the_time_went(photon: Photon, frame: Frame) -> None:
    result = photon.submit(Request("detect", " cup ", frame, max_objects=3)).result()
    assert (result.skill, result.prompt) == ("detect", " cup ")
    assert {found.label for found in result.detections} == {"cup"}
    assert {found.kind for found in result.detections} == {DetectionKind.BOX}
    assert result.timings.num_tokens >= 3
    stages = result.timings
    total = (
        stages.preprocess_ms + stages.queue_ms + stages.prefill_ms + stages.decode_ms
        + stages.postprocess_ms
    )  # fmt: skip
    assert total == pytest.approx(stages.total_ms, abs=0.01)
    assert min(stages.preprocess_ms, stages.prefill_ms, stages.decode_ms) > 0


@pytest.mark.parametrize("pipelined", [True, False])
def test_requests_answered_together_are_answered_as_if_alone(
    checkpoint: Checkpoint, frame: Frame, pipelined: bool
) -> None:
    other = Frame(frame.image[::-1].copy())
    requests = [
        Request(skill, prompt, asked, max_objects=4)
        for prompt in PROMPTS
        for skill in ("point", "detect")
        for asked in (frame, other)
    ]
    with Photon(checkpoint, config=EngineConfig(max_rows=1, pipelined=False)) as lone:
        alone = [lone.submit(request).result().detections for request in requests]
    with Photon(checkpoint, config=EngineConfig(pipelined=pipelined)) as batched:
        futures = [batched.submit(request) for request in requests]
        together = [future.result().detections for future in futures]
    assert [[(d.x, d.y, d.width, d.height) for d in found] for found in together] == [
        [(d.x, d.y, d.width, d.height) for d in found] for found in alone
    ]


def test_one_frame_is_encoded_once_for_all_its_prompts(photon: Photon, frame: Frame) -> None:
    futures = [photon.submit(Request("point", prompt, frame)) for prompt in PROMPTS]
    wait(futures)
    photon.submit(Request("detect", "one more, later", frame)).result()
    assert photon.engine_stats.num_prefixes == 1


def test_budgets_that_cut_alike_share_a_frame_and_others_do_not(
    photon: Photon, frame: Frame
) -> None:
    for budget in (None, 4, 64, 0):
        photon.submit(Request("point", "cup", frame, max_crops=budget)).result()
    assert photon.engine_stats.num_prefixes == 2


def test_an_answer_cut_by_max_objects_says_so(photon: Photon, frame: Frame) -> None:
    results = [
        photon.submit(Request("point", prompt, frame, max_objects=1)).result() for prompt in PROMPTS
    ]
    cut_short = [r for r in results if r.end_reason is EndReason.MAX_OBJECTS]
    assert cut_short
    assert all(len(result.detections) == 1 for result in cut_short)
    assert all(not r.detections for r in results if r.end_reason is EndReason.EOS)


def test_an_object_cut_by_the_end_of_the_context_is_dropped(
    checkpoint: Checkpoint, frame: Frame
) -> None:
    with Photon(checkpoint, config=EngineConfig()) as photon:
        results = [
            photon.submit(Request("detect", "x" * 88 + str(n), frame)).result() for n in range(9)
        ]
    ended = [r for r in results if r.end_reason is EndReason.MAX_CONTEXT]
    assert ended
    for result in ended:
        assert len(result.detections) == len(result.token_ids) // 3


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t"])
def test_an_empty_prompt_is_refused_before_a_frame_is_spent(
    photon: Photon, frame: Frame, prompt: str
) -> None:
    with pytest.raises(PromptError, match="empty"):
        photon.submit(Request("detect", prompt, frame))
    with pytest.raises(PromptError, match="empty"):
        photon.validate("detect", prompt)
    assert photon.engine_stats.num_prefixes == 0


def test_a_prompt_longer_than_the_context_says_how_long_and_how_much_fits(photon: Photon) -> None:
    with pytest.raises(PromptError, match=r"10000 characters makes 10004 tokens.*holds 102"):
        photon.validate("point", "x" * 10_000)


def test_a_skill_the_model_lacks_is_refused_by_name(point_only: Checkpoint, frame: Frame) -> None:
    refusal = pytest.raises(
        UnsupportedSkillError, match="tiny has no detect skill; models that do:"
    )
    with Photon(point_only) as photon, refusal:
        photon.submit(Request("detect", "cup", frame))


def test_an_unknown_skill_lists_the_known_ones(photon: Photon, frame: Frame) -> None:
    with pytest.raises(InputError, match=r"no skill 'segmentt'.*point, detect"):
        photon.submit(Request("segmentt", "cup", frame))


def test_a_request_without_a_frame_is_refused(photon: Photon) -> None:
    with pytest.raises(InputError, match="needs a frame"):
        photon.submit(Request("detect", "cup"))


@pytest.mark.parametrize(
    "image",
    [
        np.zeros(4, np.uint8),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 5), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.full((4, 4, 3), np.nan),
        np.zeros((0, 4, 3), np.uint8),
        "picture.png",
    ],
)
def test_an_image_of_the_wrong_kind_is_refused(photon: Photon, image: object) -> None:
    with pytest.raises(ImageError):
        photon.detect(image, "cup")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 8000, 3), (4000, 2, 3)])
def test_extreme_shapes_are_answered(photon: Photon, shape: tuple[int, int, int]) -> None:
    assert "points" in photon.point(np.zeros(shape, np.uint8), "cup", max_objects=1)


def test_a_request_that_needs_more_pages_than_there_are_fails_with_the_figures(
    checkpoint: Checkpoint, frame: Frame
) -> None:
    with Photon(checkpoint, config=EngineConfig(num_private_pages=2)) as photon:
        future = photon.submit(Request("detect", "cup", frame, max_objects=20))
        with pytest.raises(CapacityError, match=r"needs \d+ KV pages.*holds 2"):
            future.result(5)


def test_a_late_request_is_shed(photon: Photon, frame: Frame) -> None:
    future = photon.submit(Request("point", "cup", frame, deadline_s=time.monotonic() - 1))
    with pytest.raises(DeadlineExceeded):
        future.result(5)
    assert photon.engine_stats.num_prefixes == 0


def test_a_cancelled_future_frees_its_room_and_others_go_on(photon: Photon, frame: Frame) -> None:
    futures = [photon.submit(Request("detect", prompt, frame)) for prompt in PROMPTS]
    victims = futures[::2]
    for victim in victims:
        victim.cancel()
    for future in futures[1::2]:
        assert future.result(10).skill == "detect"
    for victim in victims:
        if victim.cancelled():
            with pytest.raises(CancelledError):
                victim.result(5)
    deadline_s = time.monotonic() + 5
    while photon._worker.engine.has_work and time.monotonic() < deadline_s:
        time.sleep(0.01)
    pool = photon._worker.engine.pool
    assert pool.num_free_pages == pool.num_private_pages


def test_close_ends_everything_pending_and_is_quick(checkpoint: Checkpoint, frame: Frame) -> None:
    photon = Photon(checkpoint, config=EngineConfig(max_rows=1))
    frames = [Frame(np.roll(frame.image, n, axis=0)) for n in range(40)]
    futures = [photon.submit(Request("detect", "cup", asked)) for asked in frames]
    started_s = time.monotonic()
    photon.close()
    photon.close()
    assert time.monotonic() - started_s < 2
    done, pending = wait(futures, timeout=5)
    assert not pending
    for future in done:
        if (error := future.exception()) is not None:
            assert isinstance(error, EngineStopped)
    with pytest.raises(EngineStopped):
        photon.submit(Request("detect", "cup", frame))


def test_many_threads_may_ask_at_once(photon: Photon, frame: Frame) -> None:
    expected = photon.point(frame.image, "cup", max_objects=3)
    answers: list[object] = []

    def ask() -> None:
        answers.append(photon.point(frame.image, "cup", max_objects=3))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(answers) == 8
    for answer in answers:
        assert isinstance(answer, dict)
        places = [(p["x"], p["y"]) for p in answer["points"]]
        assert places == [(p["x"], p["y"]) for p in expected["points"]]


@pytest.mark.parametrize(
    "device",
    ["gpu", "", "cpus", "cpu:1", "cpu:", "cuda:", "cuda:x", "cuda:-1", "cuda:01", None, 0,
     torch.device("meta"), torch.device("cpu", 1)],
)  # fmt: skip
def test_a_device_that_does_not_exist_is_refused(device: Any) -> None:
    with pytest.raises(InputError, match="device must be 'cpu', 'cuda' or 'cuda:N', got "):
        Photon(device=device)


def test_a_gpu_that_is_not_there_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(InputError, match="device 'cuda:999': "):
        Photon("no such model", device="cuda:999")


def test_a_device_may_be_torchs(checkpoint: Checkpoint, frame: Frame) -> None:
    with Photon(checkpoint, device=torch.device("cpu")) as photon:
        assert set(photon.point(frame, "cup", max_objects=1)) == {"points"}


@pytest.mark.parametrize("options", [{"dtype": "bfloat16"}, {"revision": "main"}])
def test_what_a_loaded_checkpoint_is_cannot_be_chosen(
    checkpoint: Checkpoint, options: dict[str, str]
) -> None:
    with pytest.raises(InputError, match="revision and dtype cannot be chosen now"):
        Photon(checkpoint, **options)


@pytest.mark.parametrize("config", [{}, {"max_rows": 3}, 16, False])
def test_what_is_no_config_is_refused(checkpoint: Checkpoint, config: Any) -> None:
    with pytest.raises(InputError, match="config must be an EngineConfig or None, got "):
        Photon(checkpoint, config=config)


@pytest.mark.parametrize("model", [5, None, ["nano"]])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="model must be nano, a folder or an id on the hub"):
        Photon(model)


@pytest.mark.parametrize("request_", [None, "detect", {"skill": "detect"}])
@pytest.mark.parametrize("call", ["submit", "stream", "check"])
def test_what_is_no_request_is_refused(photon: Photon, call: str, request_: Any) -> None:
    with pytest.raises(InputError, match="a request must be a Request, got "):
        getattr(photon, call)(request_)


@pytest.mark.parametrize("folder", [None, 5])
def test_an_adapter_that_is_no_folder_is_refused(photon: Photon, folder: Any) -> None:
    with pytest.raises(InputError, match="an adapter is a folder, got "):
        photon.add_adapter(folder)


def test_references_of_the_wrong_shape_are_refused(photon: Photon, frame: Frame) -> None:
    for refs in (5, (0.1, 0.2), ["ab"], [None]):
        for call in (photon.query, photon.segment):
            with pytest.raises(InputError, match="spatial"):
                call(frame, "cup", spatial_refs=refs)  # type: ignore[operator]


def test_a_folder_without_a_model_is_refused(tmp_path: object) -> None:
    with pytest.raises(ModelError):
        Photon(str(tmp_path))
