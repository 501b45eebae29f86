"""Configurations of the released checkpoints, whose folders do not carry their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from photon_ros.core.errors import ModelError
from photon_ros.models.moondream.config import MoondreamConfig

END_OF_TEXT = "<|endoftext|>"

_REGION = {
    "coord_feat_dim": 256,
    "coord_out_dim": 1024,
    "size_feat_dim": 512,
    "size_out_dim": 2048,
    "inner_dim": 8192,
}


def _sizes(dim: int, num_heads: int, enc_dim: int, enc_ff_dim: int, enc_heads: int) -> Any:
    """Return the sections of one size; the family scales widths and heads, nothing else."""
    return {
        "text": {
            "dim": dim,
            "ff_dim": 4 * dim,
            "n_layers": 24,
            "vocab_size": 51200,
            "max_context": 2048,
            "n_heads": num_heads,
        },
        "vision": {
            "enc_dim": enc_dim,
            "enc_patch_size": 14,
            "enc_n_layers": 27,
            "enc_ff_dim": enc_ff_dim,
            "enc_n_heads": enc_heads,
            "proj_out_dim": dim,
            "proj_inner_dim": 8192,
            "crop_size": 378,
            "max_crops": 12,
            "overlap_margin": 4,
        },
        "region": {"dim": dim, **_REGION},
    }


_SIZES = {"2b": _sizes(2048, 32, 1152, 4304, 16), "0.5b": _sizes(1024, 16, 720, 2690, 10)}

_TOKENS_2025_05 = {
    "bos_id": 0,
    "eos_id": 0,
    "answer_id": 3,
    "thinking_id": 4,
    "coord_id": 5,
    "size_id": 6,
    "start_ground_points_id": 7,
    "end_ground_id": 9,
    "templates": {
        "caption": {
            "short": [1, 32708, 2, 12492, 3],
            "normal": [1, 32708, 2, 6382, 3],
            "long": [1, 32708, 2, 4059, 3],
        },
        "query": {"prefix": [1, 15381, 2], "suffix": [3], "suffix_repeats": 2},
        "detect": {"prefix": [1, 7235, 476, 2], "suffix": [3]},
        "point": {"prefix": [1, 2581, 2], "suffix": [3]},
    },
}

# "\n\n" + a word + ":" in a GPT-2 vocabulary, and "\n\n" after an object.
_TOKENS_2025_01 = {
    "bos_id": 50256,
    "eos_id": 50256,
    "templates": {
        "caption": {"short": [198, 198, 16438, 8305, 25], "normal": [198, 198, 24334, 1159, 25]},
        "query": {
            "prefix": [198, 198, 24361, 25],
            "suffix": [198, 198, 33706, 25],
            "suffix_repeats": 1,
        },
        "detect": {"prefix": [198, 198, 47504, 25], "suffix": [628]},
        "point": {"prefix": [198, 198, 12727, 25], "suffix": [628]},
    },
}

BUILTIN: Mapping[str, Mapping[str, Any]] = {
    "moondream2": {**_SIZES["2b"], "tokenizer": _TOKENS_2025_05},
    "moondream2-2025-01": {**_SIZES["2b"], "tokenizer": _TOKENS_2025_01},
    "moondream-0.5b": {**_SIZES["0.5b"], "tokenizer": _TOKENS_2025_01},
}

# Models that the ones above are compared with in error messages, and what they can do.
_OTHERS = {
    "nano": ("point", "detect", "segment"),
    "moondream3-preview (cannot be loaded here)": (
        "point",
        "detect",
        "segment",
        "query",
        "caption",
    ),
}


def _known_by_skill() -> dict[str, tuple[str, ...]]:
    """Return the names of known models by skill."""
    skills = {name: tuple(model["tokenizer"]["templates"]) for name, model in BUILTIN.items()}
    skills |= _OTHERS
    names = dict.fromkeys(skill for known in skills.values() for skill in known)
    return {
        skill: tuple(model for model, known in skills.items() if skill in known) for skill in names
    }


KNOWN_BY_SKILL: Mapping[str, tuple[str, ...]] = _known_by_skill()


def builtin_config(name: str) -> MoondreamConfig:
    """Return a released checkpoint's configuration; raises ModelError for an unknown name."""
    if name not in BUILTIN:
        raise ModelError(f"no built-in configuration {name!r}; there are: {', '.join(BUILTIN)}")
    return MoondreamConfig.from_dict(BUILTIN[name])


def recognise(
    shapes: Mapping[str, tuple[int, ...]],
    end_of_text_id: int | None,
    takes_new_tokenizer: bool | None = None,
) -> str:
    """Return the name of the released checkpoint that a folder holds.

    Args:
        shapes: shape of each tensor by its name here.
        end_of_text_id: id of "<|endoftext|>" in the folder's tokenizer, None without one.
        takes_new_tokenizer: what the folder's own sources say, None without any.

    Raises:
        ModelError: it is none of them, or it cannot be told which one.
    """
    found = (shapes.get("text.wte"), shapes.get("vision.pos_emb"))
    sizes = {
        ((51200, section["text"]["dim"]), (1, 729, section["vision"]["enc_dim"])): size
        for size, section in _SIZES.items()
    }
    size = sizes.get(found)  # type: ignore[arg-type]
    if size == "0.5b":
        return "moondream-0.5b"
    if size == "2b" and end_of_text_id in (0, None):
        return "moondream2"
    if size == "2b" and takes_new_tokenizer is False:
        return "moondream2-2025-01"
    if size == "2b":
        # Its size does not tell the revisions apart, and the folder of the newer ones carries
        # the tokenizer of the older: guessing would silently ask in the wrong language.
        raise ModelError(
            f"this moondream2 comes with the tokenizer of its revisions before 2025-05 "
            f"({END_OF_TEXT} is {end_of_text_id}). If the weights are newer, put the "
            "tokenizer.json of moondream/starmie-v1 into the folder; if they are not, add a "
            'config.json with {"builtin": "moondream2-2025-01"}'
        )
    raise ModelError(
        f"no config.json, and the weights are of no known size (text.wte {found[0]}, "
        f"vision.pos_emb {found[1]}); known are: {', '.join(BUILTIN)}"
    )
