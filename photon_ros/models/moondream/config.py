"""Sizes, token ids and prompt templates of one checkpoint, frozen and checked once.

Field names are the keys of the family's configuration files; derived sizes are properties.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, TypeVar

from photon_ros.core.errors import ModelError

_log = logging.getLogger(__name__)
_Section = TypeVar("_Section")


@dataclass(frozen=True, slots=True)
class TextConfig:
    """Sizes of the text decoder. ``n_kv_heads`` None means as many as ``n_heads``."""

    dim: int
    ff_dim: int
    n_layers: int
    vocab_size: int
    max_context: int
    n_heads: int
    n_kv_heads: int | None = None
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        _require_positive("text", self)
        if self.rope_theta <= 0:
            raise ModelError(f"text.rope_theta must be above 0, got {self.rope_theta}")
        _require_divides("text.dim", self.dim, "text.n_heads", self.n_heads)
        _require_divides("text.n_heads", self.n_heads, "text.n_kv_heads", self.num_kv_heads)
        _require_divides("text head size", self.head_dim, "4 (half of it is rotated in pairs)", 4)

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.n_heads

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of each head that carry the position."""
        return self.head_dim // 2


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes of the vision encoder, its crops and its projection.

    ``crop_size`` and ``enc_patch_size`` are in pixels, ``overlap_margin`` in patches.
    """

    enc_dim: int
    enc_patch_size: int
    enc_n_layers: int
    enc_ff_dim: int
    enc_n_heads: int
    proj_out_dim: int
    proj_inner_dim: int
    crop_size: int
    max_crops: int
    overlap_margin: int
    in_channels: int = 3

    def __post_init__(self) -> None:
        _require_positive("vision", self, may_be_zero=("max_crops", "overlap_margin"))
        _require_divides("vision.enc_dim", self.enc_dim, "vision.enc_n_heads", self.enc_n_heads)
        _require_divides(
            "vision.crop_size", self.crop_size, "vision.enc_patch_size", self.enc_patch_size
        )
        if self.in_channels != 3:
            raise ModelError(f"vision.in_channels must be 3 (RGB), got {self.in_channels}")
        if 2 * self.overlap_margin >= self.grid_side:
            raise ModelError(
                f"vision.overlap_margin must be below half of the {self.grid_side} patches "
                f"of a crop, got {self.overlap_margin}"
            )

    @property
    def grid_side(self) -> int:
        """Patches along one side of a crop."""
        return self.crop_size // self.enc_patch_size

    @property
    def num_patches(self) -> int:
        """Patches of a crop, which is also the number of image embeddings of a frame."""
        return self.grid_side**2

    @property
    def patch_dim(self) -> int:
        """Values of one flattened patch."""
        return self.in_channels * self.enc_patch_size**2

    @property
    def margin_px(self) -> int:
        """Pixels on each side of a local crop that its neighbour sees better."""
        return self.overlap_margin * self.enc_patch_size

    @property
    def window_px(self) -> int:
        """Pixels from one local crop to the next."""
        return self.crop_size - 2 * self.margin_px


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """Sizes of the region model. ``size_out_dim`` counts width bins and height bins."""

    dim: int
    coord_feat_dim: int
    coord_out_dim: int
    size_feat_dim: int
    size_out_dim: int
    inner_dim: int

    def __post_init__(self) -> None:
        _require_positive("region", self)
        for name in ("coord_feat_dim", "size_feat_dim", "size_out_dim"):
            _require_divides(f"region.{name}", getattr(self, name), "2", 2)
        if self.num_size_bins < 2:
            raise ModelError(f"region.size_out_dim must be >= 4, got {self.size_out_dim}")

    @property
    def num_coord_bins(self) -> int:
        """Bins of x and of y."""
        return self.coord_out_dim

    @property
    def num_size_bins(self) -> int:
        """Bins of a width and of a height."""
        return self.size_out_dim // 2


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Special token ids, and the prompt templates as they stand in the file.

    The family's older vocabularies have no tokens for a coordinate and a size: their files name
    neither ``coord_id`` nor ``size_id``.
    """

    bos_id: int
    eos_id: int
    coord_id: int | None = None
    size_id: int | None = None
    answer_id: int | None = None
    thinking_id: int | None = None
    start_ground_points_id: int | None = None
    end_ground_id: int | None = None
    templates: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_coord_token(self) -> bool:
        """True when the vocabulary has a token for a coordinate."""
        return self.coord_id is not None

    @property
    def spatial_ids(self) -> tuple[int, int]:
        """Ids of a coordinate and of a size; stand-ins where the vocabulary has none.

        A stand-in is a text token, but only where no text can be meant: it is never the end
        token, nor BOS, nor the other one of the two.
        """
        taken = {self.bos_id, self.eos_id, self.coord_id, self.size_id}
        free = (token_id for token_id in itertools.count() if token_id not in taken)
        coord_id = next(free) if self.coord_id is None else self.coord_id
        return coord_id, next(free) if self.size_id is None else self.size_id

    def special_ids(self) -> dict[str, int]:
        """Return the special ids that the checkpoint has, by field name."""
        ids = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: ids[name] for name in ids if name.endswith("_id") and ids[name] is not None}


@dataclass(frozen=True, slots=True)
class MoondreamConfig:
    """Everything about a checkpoint but its weights."""

    text: TextConfig
    vision: VisionConfig
    region: RegionConfig
    tokenizer: TokenizerConfig

    def __post_init__(self) -> None:
        if not self.text.dim == self.vision.proj_out_dim == self.region.dim:
            raise ModelError(
                f"text.dim {self.text.dim}, vision.proj_out_dim {self.vision.proj_out_dim} and "
                f"region.dim {self.region.dim} must be equal"
            )
        if self.prefix_len >= self.text.max_context:
            raise ModelError(
                f"text.max_context {self.text.max_context} leaves no room for a prompt after "
                f"the {self.prefix_len} positions of an image"
            )
        for name, token_id in self.tokenizer.special_ids().items():
            if not 0 <= token_id < self.text.vocab_size:
                raise ModelError(
                    f"tokenizer.{name} must be in [0, {self.text.vocab_size}), got {token_id}"
                )

    @property
    def prefix_len(self) -> int:
        """Positions of BOS and the image."""
        return 1 + self.vision.num_patches

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MoondreamConfig:
        """Read the layout ``{"text": ..., "vision": ..., "region": ..., "tokenizer": ...}``.

        Raises:
            ModelError: a section or key is missing, of the wrong type or out of range, or the
                configuration is that of a mixture-of-experts model.
        """
        if not isinstance(data, Mapping):
            raise ModelError(f"config must be a mapping, got {type(data).__name__}")
        text = _section(data, "text")
        if text.get("moe"):
            raise ModelError("config describes a mixture of experts (moondream 3); not supported")
        config = cls(
            text=_build(TextConfig, "text", text, ignored=("prefix_attn", "moe")),
            vision=_build(VisionConfig, "vision", _section(data, "vision")),
            region=_build(RegionConfig, "region", _section(data, "region")),
            tokenizer=_build(TokenizerConfig, "tokenizer", _section(data, "tokenizer")),
        )
        # The file repeats what follows from the crop and patch sizes; believe neither if they
        # disagree, as the attention mask would silently be wrong.
        stated = text.get("prefix_attn", config.prefix_len)
        if stated != config.prefix_len:
            raise ModelError(
                f"text.prefix_attn is {stated}, but BOS and the image take {config.prefix_len}"
            )
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return the layout that :meth:`from_dict` reads."""
        return {
            "text": asdict(self.text),
            "vision": asdict(self.vision),
            "region": asdict(self.region),
            "tokenizer": asdict(self.tokenizer),
        }


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if name not in data:
        raise ModelError(
            f"config has no section {name!r}; it needs text, vision, region, tokenizer"
        )
    section = data[name]
    if not isinstance(section, Mapping):
        raise ModelError(f"config section {name!r} must be a mapping, got {section!r}")
    return section


def _build(
    kind: type[_Section], name: str, section: Mapping[str, Any], ignored: tuple[str, ...] = ()
) -> _Section:
    """Build one frozen section, naming what is missing or of the wrong type."""
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    required = [
        key
        for key, item in known.items()
        if item.default is MISSING and item.default_factory is MISSING
    ]
    missing = [key for key in required if section.get(key) is None]
    if missing:
        raise ModelError(f"config section {name!r} lacks {', '.join(missing)}")
    unknown = [key for key in section if key not in known and key not in ignored]
    if unknown:
        _log.warning("config section %r: unused keys %s", name, ", ".join(map(str, unknown)))
    values: dict[str, Any] = {}
    for key in known:
        if section.get(key) is not None:
            values[key] = _checked(f"{name}.{key}", section[key])
    return kind(**values)


def _checked(name: str, value: Any) -> Any:
    """Return ``value`` if its type is that of the field ``name``; whole floats become ints."""
    if name == "tokenizer.templates":
        if not isinstance(value, Mapping):
            raise ModelError(f"{name} must be a mapping, got {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ModelError(f"{name} must be a number, got {value!r}")
    if name == "text.rope_theta":
        return float(value)
    if value != int(value):
        raise ModelError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def _require_positive(name: str, section: Any, may_be_zero: tuple[str, ...] = ()) -> None:
    for item in fields(section):
        value = getattr(section, item.name)
        least = 0 if item.name in may_be_zero else 1
        if isinstance(value, int) and value < least:
            raise ModelError(f"{name}.{item.name} must be >= {least}, got {value}")


def _require_divides(name: str, value: int, divisor_name: str, divisor: int) -> None:
    if value % divisor:
        divisor_text = divisor_name if divisor_name[0].isdigit() else f"{divisor_name} {divisor}"
        raise ModelError(f"{name} {value} must be a multiple of {divisor_text}")
