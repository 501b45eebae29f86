"""An answer that overflows is an error with a way out; the next one is as if nothing had been."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from photon_ros.core.errors import EngineFault
from photon_ros.core.frame import Frame
from photon_ros.engine.config import EngineConfig
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.photon import Photon


class IllModel:
    """The model; while it is ill, what it sees is not finite."""

    is_ill = False

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode_frames(self, *arguments: Any) -> Tensor:
        embeds: Tensor = self._model.encode_frames(*arguments)
        return embeds * float("nan") if self.is_ill else embeds


@pytest.fixture
def ill(checkpoint: Checkpoint) -> Iterator[tuple[Photon, IllModel]]:
    model = IllModel(checkpoint.model)
    config = EngineConfig(max_rows=4, max_prefixes=2, num_private_pages=12)
    with Photon(replace(checkpoint, model=model), config=config) as opened:
        yield opened, model


def test_a_picture_that_overflows_is_an_error_and_the_next_answers_are_right(
    ill: tuple[Photon, IllModel], photon: Photon, frame: Frame
) -> None:
    opened, model = ill

    def ask(asked: Photon) -> list[Any]:
        return [
            asked.query(frame, "what is this?", max_tokens=20),
            asked.detect(frame, "cup", max_objects=3),
            asked.query(None, "what is it?", max_tokens=20),
        ]

    right = ask(photon)
    for _ in range(3):
        model.is_ill = True
        with pytest.raises(EngineFault, match=r"no finite number.*bfloat16 or float32"):
            opened.query(Frame(frame.image), "what is this?", max_tokens=20)
        with pytest.raises(EngineFault, match="no finite number"):
            opened.detect(Frame(frame.image), "cup")
        with pytest.raises(EngineFault, match="no finite number"):
            opened.encode_image(frame.image)
        model.is_ill = False
        assert ask(opened) == right
