"""From parameters to an engine: what of it the parameters decide."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from photon_ros.core.errors import InputError
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.models.moondream.image import cut
from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.nano import load_nano
from photon_ros.models.nano.checkpoint import WEIGHTS
from photon_ros.photon import Photon
from photon_ros.ros import load
from photon_ros.ros.load import load_photon
from photon_ros.ros.params import NodeConfig


@pytest.mark.parametrize(
    ("resize", "wanted"), [("exact", "exact"), ("fast", "fast"), ("auto", "fast")]
)
def test_pictures_are_cut_as_the_parameter_says(resize: str, wanted: str) -> None:
    config = NodeConfig().changed({"resize": resize, "max_crops": 0})
    pixels = np.random.default_rng(2).integers(0, 255, (300, 400, 3), np.uint8)
    vision = load_nano().config.vision
    ways = {way: cut(pixels, vision, None, way).pixels for way in ("exact", "fast")}
    assert not np.array_equal(ways["exact"], ways["fast"])
    photon = load_photon(config, "cpu")
    try:
        crops = photon._crops.crops_of(photon._crops.key_of(Frame(pixels), None)).result(10.0)
        assert np.array_equal(crops.pixels, ways[wanted])
    finally:
        photon.close()


def test_what_can_only_be_given_at_the_start_reaches_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {}

    class Watched(Photon):
        def __init__(self, model: str, **settings: Any) -> None:
            given.update(settings, model=model)
            super().__init__(model, **settings)

    monkeypatch.setattr(load, "Photon", Watched)
    config = NodeConfig().changed(
        {
            "model.path": "nano", "dtype": "bfloat16", "engine.max_streams": 3,
            "engine.kv_pages": 70, "engine.cuda_graphs": False, "engine.pipelined": False,
        }
    )  # fmt: skip
    photon = load_photon(config, "cpu")
    try:
        assert photon.engine_load.num_pages == 70
        assert (given["model"], given["device"]) == ("nano", "cpu")
        assert (given["dtype"], given["cuda_graphs"]) == ("bfloat16", False)
        assert (given["config"].max_rows, given["config"].pipelined) == (3, False)
        frame = Frame(np.full((96, 128, 3), 90, np.uint8))
        futures = [photon.submit(Request("detect", "person", frame)) for _ in range(5)]
        assert all(future.result(30.0) for future in futures)
        assert max(step.num_rows for step in photon.engine_stats.records) <= 3
    finally:
        photon.close()


def test_a_cpu_computes_no_step_behind_an_answers_last_token() -> None:
    photon = load_photon(NodeConfig(), "cpu")
    try:
        frame = Frame(np.full((96, 128, 3), 90, np.uint8))
        result = photon.submit(Request("detect", "person", frame, max_objects=2)).result(30.0)
        photon.submit(Request("detect", "cone", frame)).result(30.0)
        assert result.timings.zombie_steps == 0
        assert sum(step.num_zombies for step in photon.engine_stats.records) == 0
    finally:
        photon.close()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("cpu_threads", "expected"), [(0, 1), (1, 1), (3, 3)])
def test_the_engines_thread_computes_with_as_many_threads_as_asked_and_nano_with_one(
    cpu_threads: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    encode = MoondreamModel.encode_frames

    def watched(self: MoondreamModel, *args: Any) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return encode(self, *args)

    monkeypatch.setattr(MoondreamModel, "encode_frames", watched)
    load_photon(NodeConfig().changed({"engine.cpu_threads": cpu_threads}), "cpu").close()
    assert seen
    assert set(seen) == {expected}


@pytest.mark.usefixtures("two_threads")
def test_another_model_keeps_torchs_own_number_of_threads(tmp_path: Path) -> None:
    shutil.copytree(WEIGHTS, tmp_path / "other")
    config = NodeConfig().changed({"model.path": str(tmp_path / "other")})
    load_photon(config, "cpu").close()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_revision_that_would_have_no_effect_is_refused(is_folder: bool, tmp_path: Path) -> None:
    path = str(tmp_path) if is_folder else "nano"
    config = NodeConfig().changed({"model.path": path, "model.revision": "v1"})
    with pytest.raises(InputError, match=r"model.revision 'v1' is that of a hub id, and model"):
        load_photon(config, "cpu")


@pytest.mark.parametrize("kv_pages", [1, 9])
def test_too_few_pages_for_a_frames_questions_are_refused_with_the_number_needed(
    kv_pages: int,
) -> None:
    config = NodeConfig().changed({"engine.kv_pages": kv_pages})
    with pytest.raises(InputError, match=rf"engine.kv_pages {kv_pages} with max_objects 50 "):
        load_photon(config, "cpu")
    if kv_pages == 9:
        with pytest.raises(InputError, match=r"detect 'person': the request needs 10 KV pages"):
            load_photon(config, "cpu")


def test_just_enough_pages_answer_a_frame() -> None:
    photon = load_photon(NodeConfig().changed({"engine.kv_pages": 10}), "cpu")
    try:
        frame = Frame(np.full((96, 128, 3), 90, np.uint8))
        assert photon.submit(Request("detect", "person", frame, max_objects=50)).result(30.0)
    finally:
        photon.close()


def test_every_question_that_does_not_fit_is_named() -> None:
    asked = {"skills": ["detect", "segment"], "prompts.segment": ["person"]}
    config = NodeConfig().changed({**asked, "engine.kv_pages": 9, "max_tokens": 768})
    with pytest.raises(InputError, match=r"detect 'person': .*; segment 'person': .* KV pages"):
        load_photon(config, "cpu")
