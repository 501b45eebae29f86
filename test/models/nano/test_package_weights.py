"""The weights inside the package: small, as the model card says, and really perceiving."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.models.nano import load_nano
from photon_ros.models.nano.checkpoint import WEIGHTS
from photon_ros.photon import Photon
from training.architecture import CONFIG
from training.evaluate import evaluate_rendered
from training.export import build_tokenizer
from training.scene import render_scene

CARD = Path(__file__).resolve().parents[3] / "docs" / "nano.md"


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return load_nano()


def test_they_fit_in_the_package() -> None:
    names = sorted(path.name for path in WEIGHTS.iterdir())
    assert names == ["config.json", "model.safetensors", "tokenizer.json"]
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 10e6


def test_the_card_names_these_weights_by_their_hash() -> None:
    digest = hashlib.sha256((WEIGHTS / "model.safetensors").read_bytes()).hexdigest()
    assert digest in CARD.read_text(encoding="utf-8")


def test_config_and_tokenizer_are_those_of_the_trainer(checkpoint: Checkpoint) -> None:
    tokenizer, trained = checkpoint.config.tokenizer, CONFIG.tokenizer
    # Weights may know fewer skills than the trainer teaches by now, never others.
    assert tokenizer.templates.items() <= trained.templates.items()
    assert replace(tokenizer, templates=trained.templates) == trained
    assert replace(checkpoint.config, tokenizer=trained) == CONFIG
    assert (WEIGHTS / "tokenizer.json").read_text() == build_tokenizer().to_str(pretty=True) + "\n"


def test_they_perceive_scenes_never_seen(checkpoint: Checkpoint) -> None:
    """Well below what the card measures, and far above chance, which is near nothing."""
    figures = evaluate_rendered(checkpoint, 60, tiled=False, seed=77)
    assert figures.detect.f1 > 0.8
    assert figures.point.precision > 0.85
    assert figures.point.recall > 0.8
    assert figures.num_false_alarms < 0.1 * figures.num_absent
    assert np.mean(figures.outlines.with_point) > 0.55
    assert np.mean(figures.outlines.without_point) > 0.55


def test_an_empty_room_gives_an_empty_answer(checkpoint: Checkpoint) -> None:
    import numpy as np

    found = 0
    with Photon(checkpoint) as photon:
        for seed in range(6):
            room = render_scene(320, 240, np.random.default_rng(seed), num_objects=0).image
            found += len(photon.detect(room, "red cone", max_crops=0)["objects"])
    assert found <= 1
