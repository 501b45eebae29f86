"""The embedded model loads as a checkpoint of the family, from its package or elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from photon_ros.core.errors import ModelError, PromptError, UnknownWordError, UnsupportedSkillError
from photon_ros.models.moondream.image import cut
from photon_ros.models.nano import load_nano
from photon_ros.photon import Photon
from training.architecture import CONFIG, TRAINED_SKILLS
from training.export import export
from training.network import Network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights")
    export(Network(CONFIG), path)
    return path


def test_it_is_a_checkpoint_named_nano_with_the_trained_skills(folder: Path) -> None:
    checkpoint = load_nano(folder=folder)
    assert checkpoint.name == checkpoint.prompting.model_name == "nano"
    assert set(checkpoint.prompting.templates) == set(TRAINED_SKILLS)
    assert set(TRAINED_SKILLS) == {"point", "detect", "segment"}
    assert not checkpoint.prompting.templates["segment"].spells_outline
    assert checkpoint.prompting.prefix_len == 145
    assert len(checkpoint.prompting.coord_values) == 256
    assert len(checkpoint.prompting.size_values) == 128
    assert checkpoint.config == CONFIG


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_take_the_type_asked_for(folder: Path, dtype: str) -> None:
    assert load_nano(dtype=dtype, folder=folder).model.spec.dtype == getattr(torch, dtype)


def test_a_camera_frame_is_cut_as_it_was_in_training(folder: Path) -> None:
    checkpoint = load_nano(folder=folder)
    frame = np.random.default_rng(1).integers(0, 256, (480, 640, 3), np.uint8)
    crops = checkpoint.cut(frame)
    fast = cut(frame, checkpoint.config.vision, None, "fast")
    assert np.array_equal(crops.pixels, fast.pixels), "as the product runs it"
    assert crops.pixels.shape == (7, 192, 192, 3)
    assert crops.tiling == (2, 3)
    assert checkpoint.cut(frame, 0).pixels.shape == (1, 192, 192, 3)


def test_prompts_are_checked_before_any_frame(folder: Path) -> None:
    with Photon(load_nano(folder=folder)) as photon:
        assert photon.skills == ("point", "detect", "segment")
        photon.validate("detect", "people")
        with pytest.raises(UnknownWordError, match="nano does not know 'zebra'"):
            photon.validate("detect", "zebra")
        with pytest.raises(PromptError, match="empty"):
            photon.validate("point", " ")
        with pytest.raises(UnsupportedSkillError):
            photon.validate("caption", "short")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    for path in folder.iterdir():
        if path.name != name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match=str(tmp_path)):
        load_nano(folder=tmp_path)


def test_a_missing_weight_is_named(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(str(tmp_path / "model.safetensors"))
    del tensors["model.text.post_ln.weight"]
    save_file(tensors, str(tmp_path / "model.safetensors"))
    with pytest.raises(ModelError, match=r"text\.post_ln\.weight"):
        load_nano(folder=tmp_path)


def test_the_config_says_what_the_model_is(folder: Path) -> None:
    document = json.loads((folder / "config.json").read_text())
    assert document["name"] == "nano"
    assert set(document) == {"name", "text", "vision", "region", "tokenizer"}


def test_a_tokenizer_with_ids_beyond_the_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "weights"
    shutil.copytree(folder, broken)
    file = broken / "tokenizer.json"
    words = json.loads(file.read_text())
    words["model"]["vocab"]["zebra"] = CONFIG.text.vocab_size
    file.write_text(json.dumps(words))
    size = CONFIG.text.vocab_size
    with pytest.raises(
        ModelError, match=f"has ids up to {size}, but the model's vocabulary has {size}"
    ):
        load_nano(folder=broken)
