"""Names of a checkpoint's tensors: two layouts of the family, one set of names here.

Names here are those of the released ``model.safetensors`` (without their ``model.`` prefix) and
of the state dict of ``MoondreamModel``. The other layout comes from training and older releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from photon_ros.core.errors import ModelError

_VISUAL = r"vision_encoder\.encoder\.model\.visual"

# Training name -> name here. The order does not matter: at most one matches.
_RENAMES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (rf"{_VISUAL}\.patch_embed\.linear\.(weight|bias)", r"vision.patch_emb.\1"),
        (rf"{_VISUAL}\.pos_embed", r"vision.pos_emb"),
        (rf"{_VISUAL}\.blocks\.(\d+)\.norm([12])\.(weight|bias)", r"vision.blocks.\1.ln\2.\3"),
        (rf"{_VISUAL}\.blocks\.(\d+)\.((?:attn|mlp)\..+)", r"vision.blocks.\1.\2"),
        (rf"{_VISUAL}\.norm\.(weight|bias)", r"vision.post_ln.\1"),
        (r"vision_encoder\.projection\.mlp\.(fc[12]\..+)", r"vision.proj_mlp.\1"),
        (r"text_model\.transformer\.embd\.wte\.weight", r"text.wte"),
        (r"text_model\.transformer\.h\.(\d+)\.((?:ln|mlp)\..+)", r"text.blocks.\1.\2"),
        (r"text_model\.transformer\.h\.(\d+)\.mixer\.Wqkv\.(.+)", r"text.blocks.\1.attn.qkv.\2"),
        (
            r"text_model\.transformer\.h\.(\d+)\.mixer\.out_proj\.(.+)",
            r"text.blocks.\1.attn.proj.\2",
        ),
        (r"text_model\.lm_head\.ln\.(.+)", r"text.post_ln.\1"),
        (r"text_model\.lm_head\.linear\.(.+)", r"text.lm_head.\1"),
        (r"region_model\.coordinate_(encoder|decoder)\.(.+)", r"region.coord_\1.\2"),
        (r"region_model\.size_(encoder|decoder)\.(.+)", r"region.size_\1.\2"),
        (r"region_model\.coordinate_features\.weight", r"region.coord_features"),
        (r"region_model\.size_features\.weight", r"region.size_features"),
    )
)

# Training stores the Fourier features as the weight of a linear: (out, in), not (in, out).
_TRANSPOSED = re.compile(r"region_model\.(?:coordinate|size)_features\.weight")

_WRAPPER = re.compile(r"(?:^|\.)_orig_mod(?=\.|$)")

_MIXTURE_OF_EXPERTS = re.compile(
    r"\.mlp\.(?:experts|output_experts|router)\.|\.h\.\d+\.gate\.|\.moe_quant\.|\.tau_|\.tau\."
    r"|region_model\.coordinate_head\."
)
_QUANTISED = re.compile(r"\.weight\.packed$")


def canonical_name(stored: str) -> tuple[str, bool]:
    """Return the name here of a stored tensor, and whether it has to be transposed.

    A name of neither layout is returned as it is, without its wrapper and ``model.`` prefix.
    """
    plain = _WRAPPER.sub("", stored).removeprefix(".").removeprefix("model.")
    for pattern, name in _RENAMES:
        match = pattern.fullmatch(plain)
        if match is not None:
            return match.expand(name), _TRANSPOSED.fullmatch(plain) is not None
    return plain, False


def refuse_unsupported(stored_names: Iterable[str], where: str) -> None:
    """Raise ModelError when the names are those of a model that cannot be run here."""
    for name in stored_names:
        if _MIXTURE_OF_EXPERTS.search(name):
            raise ModelError(
                f"{where} is a moondream 3 (mixture of experts: it holds {name}); "
                "supported are moondream2, moondream 0.5B and models of their architecture"
            )
        if _QUANTISED.search(name):
            raise ModelError(
                f"{where} holds 4-bit quantised weights ({name}); supported are float16, "
                "bfloat16 and float32"
            )
