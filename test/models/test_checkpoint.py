from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from photon_ros.core.errors import ModelError
from photon_ros.core.prompting import PromptTemplate
from photon_ros.models.moondream.builtin import (
    BUILTIN,
    KNOWN_BY_SKILL,
    builtin_config,
    recognise,
)
from photon_ros.models.moondream.checkpoint import build_prompting, load_checkpoint
from photon_ros.models.moondream.hub import takes_new_tokenizer
from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.nano.checkpoint import WEIGHTS
from photon_ros.skills import SKILLS


class ShoutingTokenizer:
    """A closed vocabulary of one word."""

    def encode(self, text: str) -> list[int]:
        return [42] * len(text.split())

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join("HEY" for _ in ids)


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def released_shapes(name: str) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = MoondreamModel(builtin_config(name))
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def test_everything_needed_to_ask_comes_from_the_folder(tiny_folder: Path) -> None:
    checkpoint = load_checkpoint(tiny_folder)
    prompting = checkpoint.prompting
    assert checkpoint.name == prompting.model_name == "tiny"
    assert prompting.templates == {
        "point": PromptTemplate((1, 9), (3,), " "),
        "detect": PromptTemplate((1, 8), (3,), " "),
    }
    assert (prompting.bos_id, prompting.eos_id) == (2, 0)
    assert (prompting.coord_id, prompting.size_id) == (7, 4)
    assert (prompting.max_context, prompting.prefix_len) == (64, 26)
    assert prompting.coord_values == tuple(b / 16 for b in range(16))
    assert prompting.size_values == pytest.approx([2.0 ** (b - 10) for b in range(11)])
    assert prompting.tokenizer.decode(prompting.tokenizer.encode(" red cup")) == " red cup"


def test_pictures_are_cut_to_the_sizes_of_the_config(tiny_folder: Path) -> None:
    checkpoint = load_checkpoint(str(tiny_folder))
    image = np.zeros((31, 22, 3), np.uint8)
    crops = checkpoint.cut(image)
    assert crops.pixels.shape == (1 + crops.tiling[0] * crops.tiling[1], 20, 20, 3)
    assert len(checkpoint.cut(image, 0).pixels) == 1
    prefix = checkpoint.model.encode_frames([torch.from_numpy(crops.pixels)], [crops.tiling])
    assert prefix.shape == (1, checkpoint.prompting.prefix_len, 32)


def test_a_config_may_name_the_model(tiny_folder: Path) -> None:
    edit_config(tiny_folder, name="shoebox")
    assert load_checkpoint(tiny_folder).name == "shoebox"


@pytest.mark.parametrize("other", [None, {"model_type": "moondream1", "config": {}}])
def test_a_golden_record_stands_in_for_the_config(other: Any, tiny_folder: Path) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    (tiny_folder / "golden.json").write_text(json.dumps({"name": "ref", "config": config}))
    if other is None:
        (tiny_folder / "config.json").unlink()
    else:
        (tiny_folder / "config.json").write_text(json.dumps(other))
    checkpoint = load_checkpoint(tiny_folder)
    assert checkpoint.name == "ref"
    assert checkpoint.config.text.dim == 32


def test_the_config_goes_before_a_golden_record(tiny_folder: Path) -> None:
    (tiny_folder / "golden.json").write_text(json.dumps({"config": {"text": {}, "vision": {}}}))
    assert load_checkpoint(tiny_folder).config.text.dim == 32


def test_another_tokenizer_can_be_brought_along(tiny_folder: Path) -> None:
    (tiny_folder / "tokenizer.json").unlink()
    own = ShoutingTokenizer()
    assert load_checkpoint(tiny_folder, tokenizer=own).prompting.tokenizer is own
    with pytest.raises(ModelError, match=r"no tokenizer: looked for .*tokenizer\.json"):
        load_checkpoint(tiny_folder)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_types_go_by_name_too(dtype: str | torch.dtype, tiny_folder: Path) -> None:
    assert load_checkpoint(tiny_folder, dtype=dtype).model.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float64", torch.int8, "half-ish"])
def test_other_types_are_refused(dtype: str | torch.dtype, tiny_folder: Path) -> None:
    with pytest.raises(ModelError, match="dtype must be one of float32, bfloat16, float16, got"):
        load_checkpoint(tiny_folder, dtype=dtype)


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_devices_that_are_not_there_are_refused(device: str, tiny_folder: Path) -> None:
    with pytest.raises(ModelError, match=f"device '{device}' cannot be used: "):
        load_checkpoint(tiny_folder, device=device)


@pytest.mark.parametrize("content", ["", "{", "\xff"])
def test_unreadable_configs_are_named(content: str, tiny_folder: Path) -> None:
    (tiny_folder / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json is not readable JSON"):
        load_checkpoint(tiny_folder)


def test_a_config_that_is_no_mapping_is_named(tiny_folder: Path) -> None:
    (tiny_folder / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"config\.json must hold a mapping, got list"):
        load_checkpoint(tiny_folder)


def test_a_wrong_config_is_named_with_its_file(tiny_folder: Path) -> None:
    edit_config(tiny_folder, region={})
    with pytest.raises(ModelError, match=r"config\.json: config section 'region' lacks dim"):
        load_checkpoint(tiny_folder)


def test_templates_outside_the_vocabulary_are_refused(tiny_folder: Path) -> None:
    tokenizer = json.loads((tiny_folder / "config.json").read_text())["tokenizer"]
    tokenizer["templates"]["point"]["prefix"] = [300]
    edit_config(tiny_folder, tokenizer=tokenizer)
    with pytest.raises(ModelError, match=r"point\.prefix holds 300"):
        load_checkpoint(tiny_folder)


def test_a_tokenizer_with_too_many_ids_is_refused(tiny_folder: Path) -> None:
    text = json.loads((tiny_folder / "config.json").read_text())["text"]
    edit_config(tiny_folder, text={**text, "vocab_size": 100})
    with pytest.raises(
        ModelError, match=r"has ids up to 2\d\d, but the model's vocabulary has 100"
    ):
        load_checkpoint(tiny_folder)


def test_a_tokenizer_of_another_model_is_refused(tiny_folder: Path) -> None:
    tokenizer = json.loads((tiny_folder / "config.json").read_text())["tokenizer"]
    edit_config(tiny_folder, tokenizer={**tokenizer, "eos_id": 77})
    with pytest.raises(
        ModelError, match=r"endoftext\|> at 0, but the model ends its answers with 77"
    ):
        load_checkpoint(tiny_folder)


def test_unknown_sizes_without_a_config_are_refused(tiny_folder: Path) -> None:
    (tiny_folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"of no known size \(text.wte \(300, 32\)"):
        load_checkpoint(tiny_folder)


@pytest.mark.parametrize(
    ("sizes_of", "end_of_text_id", "name"),
    [
        ("moondream2", 0, "moondream2"),
        ("moondream2", None, "moondream2"),
        ("moondream-0.5b", 50256, "moondream-0.5b"),
    ],
)
def test_released_checkpoints_are_recognised_by_their_sizes(
    sizes_of: str, end_of_text_id: int | None, name: str
) -> None:
    assert recognise(released_shapes(sizes_of), end_of_text_id) == name


def test_revisions_that_cannot_be_told_apart_are_not_guessed() -> None:
    with pytest.raises(ModelError, match=r"starmie-v1 .*\"builtin\": \"moondream2-2025-01\""):
        recognise(released_shapes("moondream2"), 50256)


def test_revisions_are_told_apart_by_their_own_sources() -> None:
    shapes = released_shapes("moondream2")
    assert recognise(shapes, 50256, takes_new_tokenizer=False) == "moondream2-2025-01"
    assert recognise(shapes, 0, takes_new_tokenizer=True) == "moondream2"
    with pytest.raises(ModelError, match=r"put the tokenizer.json of moondream.starmie-v1"):
        recognise(shapes, 50256, takes_new_tokenizer=True)


def test_a_folders_sources_are_read_and_never_run(tmp_path: Path) -> None:
    assert takes_new_tokenizer(tmp_path) is None
    (tmp_path / "vision.py").write_text("raise SystemExit('run!')")
    assert takes_new_tokenizer(tmp_path) is False
    (tmp_path / "moondream.py").write_bytes(b"\xff 'moondream/starmie-v1' (")
    assert takes_new_tokenizer(tmp_path) is True


@pytest.mark.parametrize("skill", list(SKILLS))
def test_known_models_by_skill_are_those_that_have_it(skill: str) -> None:
    names = KNOWN_BY_SKILL[skill]
    for name in BUILTIN:
        config = builtin_config(name)
        prompting = build_prompting(config, name, ShoutingTokenizer())
        assert SKILLS[skill].is_known_to(prompting) == (name in names)
    config = json.loads((WEIGHTS / "config.json").read_text())
    assert (skill in config["tokenizer"]["templates"]) == ("nano" in names)


def test_a_checkpoint_tells_skills_what_its_config_says(tiny_folder: Path) -> None:
    tokenizer = json.loads((tiny_folder / "config.json").read_text())["tokenizer"]
    named = {"answer_id": 3, "thinking_id": 5, "start_ground_points_id": 6, "end_ground_id": 8}
    edit_config(tiny_folder, tokenizer=tokenizer | named)
    prompting = load_checkpoint(tiny_folder).prompting
    assert (prompting.answer_id, prompting.thinking_id) == (3, 5)
    assert (prompting.start_ground_id, prompting.end_ground_id) == (6, 8)
    assert (prompting.coord_id, prompting.size_id, prompting.has_coord_token) == (7, 4, True)


def test_without_ids_of_places_stand_ins_are_used_by_model_and_skills_alike(
    tiny_folder: Path,
) -> None:
    tokenizer = json.loads((tiny_folder / "config.json").read_text())["tokenizer"]
    del tokenizer["coord_id"], tokenizer["size_id"]
    edit_config(tiny_folder, tokenizer=tokenizer)
    checkpoint = load_checkpoint(tiny_folder)
    spec, prompting = checkpoint.model.spec, checkpoint.prompting
    assert not prompting.has_coord_token
    assert (spec.coord_id, spec.size_id) == (prompting.coord_id, prompting.size_id) == (1, 3)
    assert len({spec.coord_id, spec.size_id, spec.eos_id, spec.bos_id}) == 4


def test_a_config_can_name_a_released_one(tiny_folder: Path) -> None:
    (tiny_folder / "config.json").write_text('{"builtin": "moondream-9000"}')
    known = ", ".join(BUILTIN)
    message = f"no built-in configuration 'moondream-9000'; there are: {known}"
    with pytest.raises(ModelError, match=message):
        load_checkpoint(tiny_folder)
    # The right name is taken, and then the weights and the tokenizer do not fit it.
    (tiny_folder / "config.json").write_text('{"builtin": "moondream2-2025-01"}')
    with pytest.raises(ModelError, match="another model's tokenizer"):
        load_checkpoint(tiny_folder)
    with pytest.raises(ModelError, match=r"lacks \d+ of"):
        load_checkpoint(tiny_folder, tokenizer=ShoutingTokenizer())


@pytest.mark.parametrize("name", list(BUILTIN))
def test_released_configs_are_consistent(name: str) -> None:
    config = builtin_config(name)
    assert config.prefix_len == 730
    assert config.text.head_dim == 64
    assert config.text.num_kv_heads == config.text.n_heads
    assert config.vision.enc_dim // config.vision.enc_n_heads == 72
    assert config.vision.window_px == 266
    assert config.region.num_size_bins == config.region.num_coord_bins == 1024
