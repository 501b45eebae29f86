"""What callers ask in one call: a Request, and the shape that its answer is given in.

The shapes are those of the moondream Python client, with a score beside each place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from photon_ros.core.request import Request, spatial_refs_of
from photon_ros.core.result import Detection, Reasoning, Result
from photon_ros.pictures import Picture, frame_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Answer = TypeVar("Answer")
Objects = dict[str, list[dict[str, float]]]


class SpatialOptions(TypedDict, total=False):
    """Options of point and detect.

    Attributes:
        max_objects: objects after which the answer ends (50).
        max_crops: budget of local crops; 0 looks at the whole image only, None (the default)
            takes the model's own limit.
    """

    max_objects: int
    max_crops: int | None


class TextOptions(TypedDict, total=False):
    """Options of query, caption and segment.

    Attributes:
        max_tokens: tokens after which the answer ends (768).
        temperature: 0 (the default) takes the most likely token, above it samples.
        top_p: mass of the tokens sampled from (1).
        seed: makes sampling repeatable (0).
        max_crops: as in :class:`SpatialOptions`.
    """

    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    max_crops: int | None


@dataclass(frozen=True, slots=True)
class Question(Generic[Answer]):
    """A request and what its result is turned into."""

    request: Request
    shape: Callable[[Result], Answer]


def spatial_question(
    skill: str,
    image: Picture,
    prompt: str,
    **options: Unpack[SpatialOptions],
) -> Question[Objects]:
    """Return what asks for the points or boxes of what ``prompt`` names."""
    _check_options(skill, options, SpatialOptions)
    return Question(Request(skill, prompt, frame_of(image), **options), shaped)


def text_question(
    skill: str,
    image: Picture | None,
    prompt: str,
    *,
    reasoning: bool = False,
    spatial_refs: Sequence[Sequence[float]] = (),
    **options: Unpack[TextOptions],
) -> Question[dict[str, Any]]:
    """Return what asks for an answer in words, a description or an outline."""
    _check_options(skill, options, TextOptions)
    frame = None if image is None else frame_of(image)
    refs = spatial_refs_of(spatial_refs)
    request = Request(skill, prompt, frame, reasoning=reasoning, spatial_refs=refs, **options)
    return Question(request, shaped)


def _check_options(skill: str, options: Mapping[str, object], known: type) -> None:
    """Raise TypeError, as Python does, but for the call that people wrote."""
    names = known.__annotations__
    if unknown := sorted(set(options) - set(names)):
        raise TypeError(f"{skill} takes no option {unknown[0]!r}; it takes {', '.join(names)}")


def shaped(result: Result) -> dict[str, Any]:
    """Return an answer in the shape of its skill."""
    return _SHAPES[result.skill](result)


def reasoning_dict(reasoning: Reasoning) -> dict[str, Any]:
    """Return ``{"text", "grounding": [{"start_idx", "end_idx", "points"}]}``."""
    return {
        "text": reasoning.text,
        "grounding": [
            {
                "start_idx": grounding.start,
                "end_idx": grounding.end,
                "points": [list(point) for point in grounding.points],
            }
            for grounding in reasoning.grounding
        ],
    }


def point_dict(found: Detection) -> dict[str, float]:
    """Return ``{"x", "y", "score"}``, normalised."""
    return {"x": found.x, "y": found.y, "score": found.score}


def box_dict(found: Detection) -> dict[str, float]:
    """Return ``{"x_min", "y_min", "x_max", "y_max", "score"}``, normalised and not clamped."""
    x_min, y_min, x_max, y_max = found.corners()
    return {"x_min": x_min, "y_min": y_min, "x_max": x_max, "y_max": y_max, "score": found.score}


def outline_dict(result: Result) -> dict[str, Any]:
    """Return ``{"path", "bbox"}``; ``bbox`` is None when the model gave none.

    What is no path is "" and comes with "parse_error" and "raw_text".
    """
    outline = result.outline
    if outline is None:
        return {"path": "", "bbox": None}
    names = ("x_min", "y_min", "x_max", "y_max")
    bbox = None if outline.box is None else dict(zip(names, outline.box, strict=True))
    answer: dict[str, Any] = {"path": outline.path, "bbox": bbox}
    if outline.parse_error:
        answer |= {"parse_error": outline.parse_error, "raw_text": outline.raw_text}
    return answer


def _points(result: Result) -> Objects:
    return {"points": [point_dict(found) for found in result.detections]}


def _boxes(result: Result) -> Objects:
    return {"objects": [box_dict(found) for found in result.detections]}


def _answer(result: Result) -> dict[str, Any]:
    answer = {"answer": result.text}
    if result.reasoning is None:
        return answer
    return {"reasoning": reasoning_dict(result.reasoning), **answer}


def _caption(result: Result) -> dict[str, Any]:
    return {"caption": result.text}


_SHAPES: Mapping[str, Callable[[Result], dict[str, Any]]] = {
    "point": _points,
    "detect": _boxes,
    "segment": outline_dict,
    "query": _answer,
    "caption": _caption,
}
