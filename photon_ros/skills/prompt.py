"""Prompt: a request in the model's own ids, and values that stand for places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from photon_ros.core.errors import PromptError
from photon_ros.core.prompting import Prompting

Value = tuple[int, tuple[float, ...]]
"""Index into the prompt's ids, and a coordinate (x,) or a size (width, height) fed there."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a sequence starts with: ids, some of which stand for values."""

    ids: tuple[int, ...]
    values: tuple[Value, ...] = ()


def build_prompt(
    prompting: Prompting,
    parts: Sequence[Sequence[int]],
    *,
    refs: Sequence[tuple[float, ...]] = (),
    has_frame: bool = True,
    num_characters: int = 0,
) -> Prompt:
    """Join the parts of a prompt, the spatial references after the first one.

    Without an image the prompt starts with BOS, which otherwise comes before the image.

    Raises:
        PromptError: it does not fit the model's context; says how long it is and what fits.
    """
    ids = [] if has_frame else [prompting.bos_id]
    ids += parts[0]
    values: list[Value] = []
    for ref in refs:
        for value in _values_of(ref):
            values.append((len(ids), value))
            ids.append(prompting.coord_id if len(value) == 1 else prompting.size_id)
    for part in parts[1:]:
        ids += part
    room = prompting.max_context - (prompting.prefix_len if has_frame else 0)
    if len(ids) > room:
        beside = "beside the image " if has_frame else ""
        raise PromptError(
            f"the prompt of {num_characters} characters makes {len(ids)} tokens; {beside}the "
            f"context of {prompting.model_name} holds {room}"
        )
    return Prompt(tuple(ids), tuple(values))


def _values_of(ref: tuple[float, ...]) -> list[tuple[float, ...]]:
    """Return a point as x, y, and a box as x and y of its centre and (width, height)."""
    if len(ref) == 2:
        return [(ref[0],), (ref[1],)]
    x_min, y_min, x_max, y_max = ref
    centre = [((x_min + x_max) / 2,), ((y_min + y_max) / 2,)]
    return [*centre, (x_max - x_min, y_max - y_min)]


def require_text(text: str, what: str) -> None:
    """Raise PromptError when a prompt says nothing."""
    if not text.strip():
        raise PromptError(f"the prompt of {what} is empty; say what to look for")
