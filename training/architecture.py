"""The size of nano: the Moondream family scaled down to 192-pixel crops and 128 channels."""

from __future__ import annotations

from typing import Any

from photon_ros.models.moondream.config import (
    MoondreamConfig,
    RegionConfig,
    TextConfig,
    TokenizerConfig,
    VisionConfig,
)
from photon_ros.models.nano import vocabulary

TRAINED_SKILLS = ("point", "detect", "segment")


def _template(skill: str) -> dict[str, Any]:
    ids = {"prefix": [vocabulary.SKILL_IDS[skill]], "suffix": [vocabulary.SEPARATOR_ID]}
    return ids | ({"outline": "corners"} if skill == "segment" else {})


CONFIG = MoondreamConfig(
    text=TextConfig(
        dim=128,
        ff_dim=512,
        n_layers=4,
        vocab_size=vocabulary.VOCAB_SIZE,
        max_context=512,
        n_heads=4,
    ),
    vision=VisionConfig(
        enc_dim=128,
        enc_patch_size=16,
        enc_n_layers=4,
        enc_ff_dim=512,
        enc_n_heads=4,
        proj_out_dim=128,
        proj_inner_dim=512,
        crop_size=192,
        max_crops=8,
        overlap_margin=2,
    ),
    region=RegionConfig(
        dim=128,
        coord_feat_dim=128,
        coord_out_dim=256,
        size_feat_dim=128,
        size_out_dim=256,
        inner_dim=256,
    ),
    tokenizer=TokenizerConfig(
        bos_id=vocabulary.BOS_ID,
        eos_id=vocabulary.EOS_ID,
        coord_id=vocabulary.COORD_ID,
        size_id=vocabulary.SIZE_ID,
        templates={skill: _template(skill) for skill in TRAINED_SKILLS},
    ),
)
