"""Ask a model without the engine: many prompts on one picture in lockstep, dense caches.

For measuring only. It decodes as the engine does: an object begins or the answer ends,
whichever is likelier; every bin is the likeliest one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from photon_ros.core.prompting import Prompting
from photon_ros.engine.interfaces import Model
from training.scene import Box

# More than any outline of nano has.
MAX_CORNERS = 24


@dataclass(frozen=True, slots=True)
class Found:
    """One object found; normalised, origin top left.

    Attributes:
        x, y: centre.
        width, height: extent; 0 for a point.
        score: probability that an object began, rather than the answer ended.
        ring: corners (x, y) of its outline; empty where none was asked for.
    """

    x: float
    y: float
    width: float
    height: float
    score: float
    ring: tuple[tuple[float, float], ...] = ()

    @property
    def box(self) -> Box:
        """(x_min, y_min, x_max, y_max), not clamped."""
        half_w, half_h = self.width / 2, self.height / 2
        return self.x - half_w, self.y - half_h, self.x + half_w, self.y + half_h


@dataclass(slots=True)
class _PrefixCache:
    """Attention of B rows behind one shared image: an ``Attend``.

    Attributes:
        prefix: per layer keys and values (1, H, P, E) of BOS and the image.
        own: per layer keys and values (B, H, T, E) of each row.
    """

    prefix: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    own: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    is_prefix: bool = True

    def __call__(self, layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:
        """Return the attended values (B, T, H, E)."""
        q, k, v = (x.transpose(1, 2) for x in (q_BTHE, k_BTGE, v_BTGE))
        if self.is_prefix:
            self.prefix.append((k, v))
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        if layer in self.own:
            k = torch.cat((self.own[layer][0], k), dim=2)
            v = torch.cat((self.own[layer][1], v), dim=2)
        self.own[layer] = k, v
        rows, num_new, num_own = q.shape[0], q.shape[2], k.shape[2]
        keys, values = (x.expand(rows, -1, -1, -1) for x in self.prefix[layer])
        mask = torch.ones(num_new, keys.shape[2] + num_own, dtype=torch.bool)
        mask = mask.tril(keys.shape[2] + num_own - num_new)
        keys, values = torch.cat((keys, k), dim=2), torch.cat((values, v), dim=2)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask).transpose(1, 2)


def _placed(
    ring: list[tuple[float, float]], box: tuple[float, float, float, float]
) -> tuple[tuple[float, float], ...]:
    """Return corners in units of a box (x, y, width, height) in units of the picture.

    As in the product, the box is clamped to the picture first.
    """
    x, y, width, height = box
    left, right = max(0.0, x - width / 2), min(1.0, x + width / 2)
    top, bottom = max(0.0, y - height / 2), min(1.0, y + height / 2)
    return tuple((left + u * (right - left), top + v * (bottom - top)) for u, v in ring)


class Asker:
    """One picture, encoded once, and asked again and again.

    Args:
        model: the model, float32 on the CPU.
        prompting: its ids and templates.
        prefix_PD: embeddings of BOS and the image.
    """

    def __init__(self, model: Model, prompting: Prompting, prefix_PD: Tensor) -> None:
        self._model = model
        self._prompting = prompting
        self._cache = _PrefixCache()
        positions = torch.arange(len(prefix_PD))[None]
        model.decode(prefix_PD[None], positions, self._cache)
        self._cache.is_prefix = False

    def ask(self, skill: str, prompts: list[str], max_objects: int = 20) -> list[list[Found]]:
        """Return what is found for each prompt; all prompts must have as many tokens."""
        if not prompts:
            return []
        hidden = self._begin(skill, prompts)
        answers: list[list[Found]] = [[] for _ in prompts]
        going = torch.ones(len(prompts), dtype=torch.bool)
        for _ in range(max_objects):
            scores = self._begins(hidden)
            going &= scores > 0.5
            if not bool(going.any()):
                break
            hidden, values = self._next_object(hidden, has_size=skill != "point")
            for row in torch.nonzero(going).flatten().tolist():
                x, y, width, height = values[row]
                answers[row].append(Found(x, y, width, height, float(scores[row])))
        return answers

    def segment(
        self,
        prompts: list[str],
        points: list[tuple[float, float]] | None = None,
        max_corners: int = MAX_CORNERS,
    ) -> list[Found | None]:
        """Return the outlined object of each prompt, None where nothing was found.

        Args:
            prompts: what to outline; all must have as many tokens.
            points: for each of them a place (x, y) on the object meant; None for none.
            max_corners: corners after which an outline ends at the latest.
        """
        if not prompts:
            return []
        hidden = self._begin("segment", prompts, points)
        scores = self._begins(hidden)
        hidden, values = self._next_object(hidden, has_size=True)
        found = scores > 0.5
        going = found.clone()
        rings: list[list[tuple[float, float]]] = [[] for _ in prompts]
        for _ in range(max_corners):
            going &= self._begins(hidden) > 0.5
            if not bool(going.any()):
                break
            hidden, corners = self._next_object(hidden, has_size=False)
            for row in torch.nonzero(going).flatten().tolist():
                rings[row].append(corners[row][:2])
        return [
            Found(*value, score=float(score), ring=_placed(ring, value)) if is_found else None
            for value, score, ring, is_found in zip(
                values, scores, rings, found.tolist(), strict=True
            )
        ]

    def _begin(
        self, skill: str, prompts: list[str], points: list[tuple[float, float]] | None = None
    ) -> Tensor:
        """Feed the prompts; return (B, D), the last hidden state of each."""
        model, template = self._model, self._prompting.templates[skill]
        encode = self._prompting.tokenizer.encode
        ids = [[*encode(template.object_prefix + prompt), *template.suffix] for prompt in prompts]
        skill_ids = torch.tensor(template.prefix).expand(len(prompts), -1)
        parts = [model.embed_tokens(skill_ids), model.embed_tokens(torch.tensor(ids))]
        if points is not None:
            values = torch.tensor(points).reshape(-1, 1)
            parts.insert(1, model.embed_coord_values(values).view(len(prompts), 2, -1))
        self._cache.own = {}
        return self._step(torch.cat(parts, dim=1))

    def _begins(self, hidden: Tensor) -> Tensor:
        """Return (B,): the probability that an object or a corner begins here."""
        either = (self._prompting.coord_id, self._prompting.eos_id)
        return self._model.token_logits(hidden, either).softmax(-1)[:, 0]

    def _next_object(
        self, hidden: Tensor, has_size: bool
    ) -> tuple[Tensor, list[tuple[float, float, float, float]]]:
        model, ids = self._model, self._prompting
        x = model.coord_logits(hidden).argmax(-1)
        hidden = self._step(model.embed_coords(x)[:, None])
        y = model.coord_logits(hidden).argmax(-1)
        hidden = self._step(model.embed_coords(y)[:, None])
        sizes = torch.zeros(len(x), 2, dtype=torch.int64)
        if has_size:
            sizes = model.size_logits(hidden).argmax(-1)
            hidden = self._step(model.embed_sizes(sizes)[:, None])
        extent = [0.0, *ids.size_values[1:]] if not has_size else ids.size_values
        values = [
            (ids.coord_values[a], ids.coord_values[b], extent[w], extent[h])
            for a, b, (w, h) in zip(x.tolist(), y.tolist(), sizes.tolist(), strict=True)
        ]
        return hidden, values

    def _step(self, x_BTD: Tensor) -> Tensor:
        """Return (B, D): the last hidden state after more positions."""
        num_own = self._cache.own[0][0].shape[2] if self._cache.own else 0
        first = self._prompting.prefix_len + num_own
        positions = torch.arange(first, first + x_BTD.shape[1]).expand(len(x_BTD), -1)
        return self._model.decode(x_BTD, positions, self._cache)[:, -1]
