"""Result: the typed answer to a Request, with the time each stage took."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class DetectionKind(Enum):
    """What a detection localises its object with."""

    POINT = "point"
    BOX = "box"
    MASK = "mask"


class EndReason(Enum):
    """Why an answer ended."""

    EOS = "eos"  # the model said it was finished
    MAX_OBJECTS = "max_objects"
    MAX_TOKENS = "max_tokens"
    MAX_CONTEXT = "max_context"

    @property
    def is_complete(self) -> bool:
        """True when nothing was cut off by a budget."""
        return self is EndReason.EOS


@dataclass(frozen=True, slots=True)
class Detection:
    """One object found in a frame; coordinates normalised, origin top left.

    ``x`` and ``width`` are in units of the image width, ``y`` and ``height`` of its height.
    Boxes are not clamped to the image; see :meth:`corners`.

    Attributes:
        kind: what the object is localised with.
        label: the prompt that found it.
        x, y: centre.
        width, height: extent; 0 for a point.
        score: P(object | {object, end of answer}) at the object's first token, in [0, 1].
        coord_prob: product of the probabilities of the chosen coordinate and size bins.
        polygon: rings of (x, y) in image units; empty unless ``kind`` is MASK.
    """

    kind: DetectionKind
    label: str
    x: float
    y: float
    width: float = 0.0
    height: float = 0.0
    score: float = 1.0
    coord_prob: float = 1.0
    polygon: tuple[tuple[tuple[float, float], ...], ...] = ()

    def corners(self) -> tuple[float, float, float, float]:
        """Return (x_min, y_min, x_max, y_max), normalised and not clamped."""
        half_w, half_h = self.width / 2, self.height / 2
        return self.x - half_w, self.y - half_h, self.x + half_w, self.y + half_h


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one request went, in milliseconds on the steady clock.

    ``zombie_steps`` counts steps that still computed a row for the request after its end;
    ``batch_size`` is the mean number of rows in its decode steps.
    """

    preprocess_ms: float = 0.0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    postprocess_ms: float = 0.0
    total_ms: float = 0.0
    num_tokens: int = 0
    batch_size: float = 0.0
    zombie_steps: int = 0


@dataclass(frozen=True, slots=True)
class Grounding:
    """Words of a reasoning that are about places in the image.

    Attributes:
        start, end: the words are ``reasoning.text[start:end]``.
        points: (x, y) of each place, normalised.
    """

    start: int
    end: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought aloud before its answer, and every token of it."""

    text: str
    grounding: tuple[Grounding, ...] = ()
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Outline:
    """The outline of one object, as the model drew it.

    Attributes:
        path: SVG path data in units of ``box``, whose corners are (0, 0) and (1, 1); "" when
            there is none.
        box: (x_min, y_min, x_max, y_max), normalised, clamped to the image; None when the model
            gave none.
        raw_text: what the model wrote, piece by piece, separated by blanks.
        parse_error: why that is not a path; "" when it is.
    """

    path: str
    box: tuple[float, float, float, float] | None
    raw_text: str = ""
    parse_error: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one request.

    Attributes:
        skill: the skill that was asked.
        prompt: the prompt that was asked.
        detections: objects found, in the order the model gave them.
        text: the answer of a text skill; "" otherwise.
        end_reason: why the answer ended.
        token_ids: every token sampled for the answer, without the end token.
        timings: where the time went.
        reasoning: what came before the answer, when it was asked for.
        outline: what a "segment" answer drew.
    """

    skill: str
    prompt: str
    detections: tuple[Detection, ...] = ()
    text: str = ""
    end_reason: EndReason = EndReason.EOS
    token_ids: tuple[int, ...] = ()
    timings: Timings = field(default_factory=Timings)
    reasoning: Reasoning | None = None
    outline: Outline | None = None
