from __future__ import annotations

import logging
from typing import Any

import pytest

from photon_ros.core.errors import ModelError
from photon_ros.models.moondream.config import MoondreamConfig


def test_derived_sizes_follow_from_the_file(tiny: dict[str, Any]) -> None:
    config = MoondreamConfig.from_dict(tiny)
    assert config.vision.grid_side == 5
    assert config.vision.num_patches == 25
    assert config.vision.patch_dim == 48
    assert config.vision.margin_px == 4
    assert config.vision.window_px == 12
    assert config.prefix_len == 26
    assert config.text.head_dim == 8
    assert config.text.rotary_dim == 4
    assert config.region.num_coord_bins == 16
    assert config.region.num_size_bins == 11


def test_dict_round_trip(tiny: dict[str, Any]) -> None:
    config = MoondreamConfig.from_dict(tiny)
    assert MoondreamConfig.from_dict(config.to_dict()) == config


def test_key_value_heads_default_to_the_query_heads(tiny: dict[str, Any]) -> None:
    assert MoondreamConfig.from_dict(tiny).text.num_kv_heads == 4
    tiny["text"]["n_kv_heads"] = 2
    assert MoondreamConfig.from_dict(tiny).text.num_kv_heads == 2


def test_older_files_have_no_coordinate_token_and_get_stand_ins(tiny: dict[str, Any]) -> None:
    assert MoondreamConfig.from_dict(tiny).tokenizer.spatial_ids == (7, 4)
    assert MoondreamConfig.from_dict(tiny).tokenizer.has_coord_token
    del tiny["tokenizer"]["coord_id"], tiny["tokenizer"]["size_id"]
    tiny["tokenizer"]["thinking_id"] = None
    config = MoondreamConfig.from_dict(tiny)
    assert not config.tokenizer.has_coord_token
    assert config.tokenizer.thinking_id is None
    assert config.text.rope_theta == 10000.0


@pytest.mark.parametrize(
    ("bos_id", "eos_id", "coord_id", "size_id", "expected"),
    [
        (299, 299, None, None, (0, 1)),
        (0, 0, None, None, (1, 2)),
        (0, 1, None, None, (2, 3)),
        (1, 0, None, 2, (3, 2)),
        (0, 0, 1, None, (1, 2)),
    ],
)
def test_stand_ins_are_two_ids_that_mean_nothing_else_there(
    tiny: dict[str, Any],
    bos_id: int,
    eos_id: int,
    coord_id: int | None,
    size_id: int | None,
    expected: tuple[int, int],
) -> None:
    tiny["tokenizer"] |= {
        "bos_id": bos_id, "eos_id": eos_id, "coord_id": coord_id, "size_id": size_id,
    }  # fmt: skip
    assert MoondreamConfig.from_dict(tiny).tokenizer.spatial_ids == expected


def test_rope_theta_is_read(tiny: dict[str, Any]) -> None:
    tiny["text"]["rope_theta"] = 1500
    assert MoondreamConfig.from_dict(tiny).text.rope_theta == 1500.0


def test_stated_prefix_must_be_that_of_the_grid(tiny: dict[str, Any]) -> None:
    tiny["text"]["prefix_attn"] = 26
    MoondreamConfig.from_dict(tiny)
    tiny["text"]["prefix_attn"] = 730
    with pytest.raises(ModelError, match="prefix_attn is 730, but BOS and the image take 26"):
        MoondreamConfig.from_dict(tiny)


def test_unused_keys_are_mentioned(tiny: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    tiny["vision"]["colour"] = 1
    with caplog.at_level(logging.WARNING):
        MoondreamConfig.from_dict(tiny)
    assert "unused keys colour" in caplog.text


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("text", "dim", 33, "text.dim 33 must be a multiple of text.n_heads 4"),
        ("text", "n_kv_heads", 3, "text.n_heads 4 must be a multiple of text.n_kv_heads 3"),
        ("text", "n_heads", 16, "text head size 2 must be a multiple of 4"),
        ("text", "n_layers", 0, "text.n_layers must be >= 1, got 0"),
        ("text", "n_layers", "2", "text.n_layers must be a number, got '2'"),
        ("text", "n_layers", 2.5, "text.n_layers must be a whole number, got 2.5"),
        ("text", "n_layers", True, "text.n_layers must be a number, got True"),
        ("text", "rope_theta", 0, "text.rope_theta must be above 0"),
        ("text", "max_context", 26, "text.max_context 26 leaves no room"),
        ("text", "moe", {"num_experts": 64}, "mixture of experts"),
        ("vision", "crop_size", 21, "vision.crop_size 21 must be a multiple of vision.enc_patch"),
        ("vision", "enc_n_heads", 5, "vision.enc_dim 24 must be a multiple"),
        ("vision", "overlap_margin", 3, "below half of the 5 patches"),
        ("vision", "overlap_margin", -1, "vision.overlap_margin must be >= 0"),
        ("vision", "max_crops", -1, "vision.max_crops must be >= 0"),
        ("vision", "in_channels", 1, "vision.in_channels must be 3"),
        ("vision", "proj_out_dim", 16, "must be equal"),
        ("region", "dim", 16, "must be equal"),
        ("region", "size_out_dim", 5, "region.size_out_dim 5 must be a multiple of 2"),
        ("region", "size_out_dim", 2, "region.size_out_dim must be >= 4"),
        ("region", "coord_feat_dim", 7, "region.coord_feat_dim 7 must be a multiple of 2"),
        ("tokenizer", "bos_id", 300, r"tokenizer.bos_id must be in \[0, 300\), got 300"),
        ("tokenizer", "coord_id", -1, "tokenizer.coord_id must be >= 0|tokenizer.coord_id must be"),
        ("tokenizer", "templates", [1], "tokenizer.templates must be a mapping"),
    ],
)
def test_impossible_values_are_named(
    tiny: dict[str, Any], section: str, key: str, value: Any, message: str
) -> None:
    tiny[section][key] = value
    with pytest.raises(ModelError, match=message):
        MoondreamConfig.from_dict(tiny)


@pytest.mark.parametrize(
    ("section", "key"), [("text", "dim"), ("vision", "crop_size"), ("tokenizer", "eos_id")]
)
def test_missing_keys_are_named(tiny: dict[str, Any], section: str, key: str) -> None:
    del tiny[section][key]
    with pytest.raises(ModelError, match=f"section '{section}' lacks {key}"):
        MoondreamConfig.from_dict(tiny)


@pytest.mark.parametrize("section", ["text", "vision", "region", "tokenizer"])
def test_missing_sections_are_named(tiny: dict[str, Any], section: str) -> None:
    del tiny[section]
    with pytest.raises(ModelError, match=f"no section '{section}'"):
        MoondreamConfig.from_dict(tiny)


def test_things_that_are_no_mapping_are_refused(tiny: dict[str, Any]) -> None:
    tiny["region"] = 3
    with pytest.raises(ModelError, match="section 'region' must be a mapping, got 3"):
        MoondreamConfig.from_dict(tiny)
    with pytest.raises(ModelError, match="config must be a mapping, got list"):
        MoondreamConfig.from_dict([])  # type: ignore[arg-type]
