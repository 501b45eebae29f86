from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from photon_ros.core.errors import ModelError
from photon_ros.models.moondream.checkpoint import Checkpoint, load_checkpoint
from photon_ros.models.moondream.key_names import canonical_name
from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.moondream.weights import INDEX_FILE, SINGLE_FILE, WeightFiles

VISUAL = "vision_encoder.encoder.model.visual"

# Release name -> training name, the other way round than the product's table.
TO_TRAINING = (
    (r"vision\.patch_emb\.", f"{VISUAL}.patch_embed.linear."),
    (r"vision\.pos_emb", f"{VISUAL}.pos_embed"),
    (r"vision\.blocks\.(\d+)\.ln([12])\.", rf"{VISUAL}.blocks.\1.norm\2."),
    (r"vision\.blocks\.", f"{VISUAL}.blocks."),
    (r"vision\.post_ln\.", f"{VISUAL}.norm."),
    (r"vision\.proj_mlp\.", "vision_encoder.projection.mlp."),
    (r"text\.wte", "text_model.transformer.embd.wte.weight"),
    (r"text\.blocks\.(\d+)\.attn\.qkv\.", r"text_model.transformer.h.\1.mixer.Wqkv."),
    (r"text\.blocks\.(\d+)\.attn\.proj\.", r"text_model.transformer.h.\1.mixer.out_proj."),
    (r"text\.blocks\.", "text_model.transformer.h."),
    (r"text\.post_ln\.", "text_model.lm_head.ln."),
    (r"text\.lm_head\.", "text_model.lm_head.linear."),
    (r"region\.coord_features", "region_model.coordinate_features.weight"),
    (r"region\.size_features", "region_model.size_features.weight"),
    (r"region\.coord_", "region_model.coordinate_"),
    (r"region\.size_", "region_model.size_"),
)


def training_name(name: str) -> str:
    for pattern, replacement in TO_TRAINING:
        renamed, count = re.subn(f"^{pattern}", replacement, name)
        if count:
            return renamed
    raise AssertionError(name)


def to_training_layout(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        training_name(name): (tensor.t().contiguous() if name.endswith("_features") else tensor)
        for name, tensor in tensors.items()
    }


def rewrite(folder: Path, tensors: dict[str, Tensor]) -> None:
    save_file(tensors, folder / SINGLE_FILE)


def released(folder: Path) -> dict[str, Tensor]:
    stored = load_file(folder / SINGLE_FILE)
    return {name.removeprefix("model."): tensor for name, tensor in stored.items()}


def assert_same_weights(left: MoondreamModel, right: MoondreamModel) -> None:
    wanted, found = left.state_dict(), right.state_dict()
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_loaded_weights_are_the_stored_ones(tiny_folder: Path, tiny_model: MoondreamModel) -> None:
    loaded = load_checkpoint(tiny_folder).model
    assert_same_weights(tiny_model, loaded)
    assert not loaded.training
    assert not any(weight.requires_grad or weight.is_meta for weight in loaded.parameters())
    assert not any(buffer.is_meta for buffer in loaded.buffers())


def test_a_loaded_model_computes_what_was_saved(
    tiny_folder: Path, tiny_model: MoondreamModel
) -> None:
    loaded = load_checkpoint(tiny_folder).model
    crops = torch.randint(0, 256, (3, 20, 20, 3), dtype=torch.uint8)
    bins = torch.tensor([[3, 4]])
    x = torch.randn(2, 3, 32)
    positions = torch.tensor([[1, 2, 3], [30, 40, 63]])

    def outputs(model: MoondreamModel) -> list[Tensor]:
        return [
            model.encode_frames([crops], [(2, 1)]),
            model.embed_sizes(bins),
            model.embed_coords(bins[0]),
            model.decode(x, positions, lambda layer, q, k, v: q + k + v),
        ]

    with torch.no_grad():
        for found, wanted in zip(outputs(loaded), outputs(tiny_model.eval()), strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("prefix", ["", "model.", "_orig_mod.model.", "model._orig_mod."])
def test_release_layout_with_any_prefix(
    prefix: str, tiny_folder: Path, tiny_model: MoondreamModel
) -> None:
    rewrite(tiny_folder, {prefix + name: value for name, value in released(tiny_folder).items()})
    assert_same_weights(tiny_model, load_checkpoint(tiny_folder).model)


@pytest.mark.parametrize("wrapper", ["", "._orig_mod"])
def test_training_layout(wrapper: str, tiny_folder: Path, tiny_model: MoondreamModel) -> None:
    tensors = to_training_layout(released(tiny_folder))
    wrapped = {}
    for name, value in tensors.items():
        head, _, tail = name.partition(".")
        wrapped[f"{head}{wrapper}.{tail}"] = value
    rewrite(tiny_folder, wrapped)
    assert_same_weights(tiny_model, load_checkpoint(tiny_folder).model)


def test_training_names_cover_every_tensor(tiny_model: MoondreamModel) -> None:
    for name in tiny_model.state_dict():
        is_transposed = name.endswith("_features")
        assert canonical_name(training_name(name)) == (name, is_transposed)
        assert canonical_name(name) == (name, False)


def test_golden_weights_in_training_layout(
    golden_folder: Path, golden_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    for name in ("golden.json", "tokenizer.json"):
        shutil.copy(golden_folder / name, tmp_path / name)
    rewrite(tmp_path, to_training_layout(released(golden_folder)))
    assert_same_weights(golden_checkpoint.model, load_checkpoint(tmp_path).model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_converted_on_load(
    stored: torch.dtype, dtype: torch.dtype, tiny_folder: Path
) -> None:
    tensors = {name: tensor.to(stored) for name, tensor in released(tiny_folder).items()}
    rewrite(tiny_folder, tensors)
    model = load_checkpoint(tiny_folder, dtype=dtype).model
    assert model.dtype == dtype
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensors[name].to(dtype)), name
    assert model.text.rotary.table.dtype == torch.float32
    assert model.size_values.dtype == dtype


def test_shards_are_joined(tiny_folder: Path, tiny_model: MoondreamModel) -> None:
    tensors = released(tiny_folder)
    (tiny_folder / SINGLE_FILE).unlink()
    names = sorted(tensors)
    weight_map = {}
    for shard in range(3):
        file = f"model-{shard}.safetensors"
        part = {name: tensors[name] for name in names[shard::3]}
        save_file(part, tiny_folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (tiny_folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    assert_same_weights(tiny_model, load_checkpoint(tiny_folder).model)
    (tiny_folder / "model-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"files that are not there: model-1\.safetensors"):
        load_checkpoint(tiny_folder)


def test_a_lone_file_of_another_name_will_do(tiny_folder: Path, tiny_model: MoondreamModel) -> None:
    file = tiny_folder / "weights.safetensors"
    (tiny_folder / SINGLE_FILE).rename(file)
    assert_same_weights(tiny_model, load_checkpoint(tiny_folder).model)
    assert_same_weights(tiny_model, load_checkpoint(file).model)
    shutil.copy(file, tiny_folder / "other.safetensors")
    with pytest.raises(ModelError, match=r"several weight files \(other.*, weights.*\) but no"):
        load_checkpoint(tiny_folder)


def test_extra_tensors_are_ignored(tiny_folder: Path, tiny_model: MoondreamModel) -> None:
    rewrite(tiny_folder, {**released(tiny_folder), "text.kv_cache": torch.zeros(3)})
    assert_same_weights(tiny_model, load_checkpoint(tiny_folder).model)


def test_missing_tensors_are_named_and_counted(tiny_folder: Path) -> None:
    tensors = released(tiny_folder)
    del tensors["text.blocks.1.attn.qkv.bias"]
    rewrite(tiny_folder, tensors)
    with pytest.raises(ModelError, match=r"lacks 1 of \d+ tensors: text.blocks.1.attn.qkv.bias$"):
        load_checkpoint(tiny_folder)
    rewrite(tiny_folder, {name: t for name, t in tensors.items() if name.startswith("text.")})
    with pytest.raises(ModelError, match=r"lacks \d+ of \d+ tensors: .*vision.* and \d+ more$"):
        load_checkpoint(tiny_folder)


@pytest.mark.parametrize("layout", ["release", "training"])
def test_wrong_shapes_are_named_with_both_shapes(layout: str, tiny_folder: Path) -> None:
    tensors = released(tiny_folder)
    tensors["region.coord_features"] = torch.zeros(1, 9)
    if layout == "training":
        tensors = to_training_layout(tensors)
    rewrite(tiny_folder, tensors)
    message = r"region.coord_features must have shape \(1, 6\), found \(1, 9\)"
    with pytest.raises(ModelError, match=message):
        load_checkpoint(tiny_folder)


def test_integer_weights_are_refused(tiny_folder: Path) -> None:
    tensors = released(tiny_folder)
    tensors["text.lm_head.bias"] = tensors["text.lm_head.bias"].to(torch.int8)
    rewrite(tiny_folder, tensors)
    with pytest.raises(ModelError, match=r"text\.lm_head\.bias is torch\.int8, not a float type"):
        load_checkpoint(tiny_folder)


def test_a_tensor_stored_twice_is_refused(tiny_folder: Path) -> None:
    tensors = released(tiny_folder)
    rewrite(tiny_folder, {**tensors, "model.text.wte": tensors["text.wte"].clone()})
    with pytest.raises(ModelError, match=r"holds the tensor text\.wte twice"):
        load_checkpoint(tiny_folder)


def test_an_empty_file_is_refused(tiny_folder: Path) -> None:
    (tiny_folder / SINGLE_FILE).write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.safetensors is empty \(0 bytes\)"):
        load_checkpoint(tiny_folder)


@pytest.mark.parametrize("num_bytes", [1, 8, 100, 5000, -1])
def test_a_truncated_file_is_refused(num_bytes: int, tiny_folder: Path) -> None:
    file = tiny_folder / SINGLE_FILE
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(ModelError, match=r"model\.safetensors is not a complete safetensors file"):
        load_checkpoint(tiny_folder)


def test_a_file_of_something_else_is_refused(tiny_folder: Path) -> None:
    (tiny_folder / SINGLE_FILE).write_text("version https://git-lfs.github.com/spec/v1\n" * 9)
    with pytest.raises(ModelError, match="not a complete safetensors file"):
        load_checkpoint(tiny_folder)


def test_a_folder_without_weights_says_what_was_looked_for(tiny_folder: Path) -> None:
    (tiny_folder / SINGLE_FILE).unlink()
    with pytest.raises(ModelError, match=r"looked for model\.safetensors, model\.safetensors\.ind"):
        load_checkpoint(tiny_folder)


@pytest.mark.parametrize("name", ["model.pt", "pytorch_model.bin", "model.pth"])
def test_pickled_weights_are_refused_by_name(name: str, tiny_folder: Path) -> None:
    (tiny_folder / SINGLE_FILE).unlink()
    (tiny_folder / name).write_bytes(b"\x80\x04.")
    message = rf"no weights in .*; {re.escape(name)} can run code when opened and is not read"
    with pytest.raises(ModelError, match=message):
        load_checkpoint(tiny_folder)
    with pytest.raises(ModelError, match=rf"must be a \.safetensors file; {re.escape(name)}"):
        load_checkpoint(tiny_folder / name)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model at .*nowhere: neither a folder nor"):
        load_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "index",
    ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 3}}',
     '{"weight_map": {"a": "../model.safetensors"}}', '{"weight_map": {"a": "/etc/passwd"}}'],
)  # fmt: skip
def test_a_broken_index_is_refused(index: str, tiny_folder: Path) -> None:
    (tiny_folder / SINGLE_FILE).unlink()
    (tiny_folder / INDEX_FILE).write_text(index)
    with pytest.raises(ModelError, match=re.escape(INDEX_FILE)):
        load_checkpoint(tiny_folder)


@pytest.mark.parametrize(
    "name",
    [
        "text_model.transformer.h.4.mlp.experts.weight",
        "text_model.transformer.h.4.gate.weight",
        "text_model.transformer.h.0.tau_wq",
        "region_model.coordinate_head.weight",
        "model.text.blocks.4.mlp.router.weight",
    ],
)
def test_moondream_3_is_refused_by_name(name: str, tiny_folder: Path) -> None:
    rewrite(tiny_folder, {**released(tiny_folder), name: torch.zeros(2, 2)})
    with pytest.raises(ModelError, match=f"is a moondream 3 .*{re.escape(name)}"):
        WeightFiles(tiny_folder)


def test_quantised_weights_are_refused_by_name(tiny_folder: Path) -> None:
    name = "model.text.blocks.0.mlp.fc1.weight.packed"
    rewrite(tiny_folder, {**released(tiny_folder), name: torch.zeros(2, dtype=torch.uint8)})
    with pytest.raises(ModelError, match="4-bit quantised weights"):
        load_checkpoint(tiny_folder)


def test_shapes_are_known_without_reading(tiny_folder: Path) -> None:
    rewrite(tiny_folder, to_training_layout(released(tiny_folder)))
    files = WeightFiles(tiny_folder)
    assert files.shape("region.size_features") == (2, 5)
    assert files.shape("text.wte") == (300, 32)
    assert "text.wte" in files
    assert "text.nothing" not in files
