"""Request: one question about one frame, frozen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Final

from photon_ros.core.errors import InputError
from photon_ros.core.frame import Frame

# Far beyond what any model answers: a larger figure is a slip of the keyboard.
MAX_OBJECTS: Final = 1000
MAX_TOKENS: Final = 100_000
MAX_CROPS: Final = 64
MAX_TEMPERATURE: Final = 10_000.0


@dataclass(frozen=True, slots=True)
class Request:
    """One skill and one prompt on one frame.

    Attributes:
        skill: "point", "detect", ... (see photon_ros.skills).
        prompt: what to look for, plain text; a question for "query", a length for "caption".
        frame: the image asked about; None asks without an image (text skills only).
        max_objects: objects after which the answer ends; 1 to MAX_OBJECTS.
        max_tokens: text tokens after which an answer ends; 1 to MAX_TOKENS. A reasoning before the
            answer may have as many again.
        max_crops: budget of local crops, up to MAX_CROPS; 0 looks at the global crop only, None
            takes the model's own limit.
        temperature: 0 picks the most likely token; above 0, up to MAX_TEMPERATURE, samples.
        top_p: mass of the tokens sampled from, in (0, 1].
        seed: makes sampling repeatable.
        deadline_s: time on the ``time.monotonic`` clock after which nobody wants the answer.
        reasoning: think aloud before the answer; only "query", and only models that can.
        spatial_refs: what the prompt is about, normalised to the image: points (x, y) and boxes
            (x_min, y_min, x_max, y_max); only "query" and "segment".
        adapter: name of a LoRA adapter that was added; None asks the model as it is.
    """

    skill: str
    prompt: str
    frame: Frame | None = None
    max_objects: int = 50
    max_tokens: int = 768
    max_crops: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    deadline_s: float | None = None
    reasoning: bool = False
    spatial_refs: tuple[tuple[float, ...], ...] = ()
    adapter: str | None = None

    def __post_init__(self) -> None:
        for name in ("skill", "prompt"):
            if not isinstance(word := getattr(self, name), str):
                raise InputError(f"{name} must be a string, got {word!r}")
        if not isinstance(self.frame, Frame | None):
            raise InputError(f"frame must be a Frame or None, got {type(self.frame).__name__}")
        check_count("max_objects", self.max_objects, 1, MAX_OBJECTS)
        check_count("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        if self.max_crops is not None:
            check_count("max_crops", self.max_crops, 0, MAX_CROPS)
        check_sampling(self.temperature, self.top_p, self.seed)
        check_deadline(self.deadline_s)
        if not isinstance(self.reasoning, bool):
            raise InputError(f"reasoning must be True or False, got {self.reasoning!r}")
        if not isinstance(self.adapter, str | None):
            raise InputError(f"adapter must be the name of one or None, got {self.adapter!r}")
        object.__setattr__(self, "spatial_refs", spatial_refs_of(self.spatial_refs))


def check_sampling(temperature: float, top_p: float, seed: int) -> None:
    """Raise InputError where tokens cannot be sampled so.

    An infinite temperature would make NaN of the logits of ids that may not come, and argmax
    takes a NaN before any number.
    """
    check_number("temperature", temperature)
    if not 0 <= temperature <= MAX_TEMPERATURE:
        raise InputError(f"temperature must be from 0 to {MAX_TEMPERATURE:g}, got {temperature}")
    check_number("top_p", top_p)
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must be in (0, 1], got {top_p}")
    check_whole("seed", seed)


def check_deadline(deadline_s: float | None) -> None:
    """Raise InputError for a deadline that is neither None nor a time."""
    if deadline_s is not None:
        check_number("deadline_s", deadline_s)
        if math.isnan(deadline_s):
            raise InputError("deadline_s must be a time, got nan")


def check_number(name: str, value: object) -> None:
    """Raise InputError, naming the field, unless it is a number."""
    if not isinstance(value, Real):
        raise InputError(f"{name} must be a number, got {value!r}")


def check_whole(name: str, value: object) -> None:
    """Raise InputError, naming the field, unless it is a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} must be a whole number, got {value!r}")


def check_count(name: str, value: int, least: int, most: int) -> None:
    """Raise InputError, naming the field, unless it is a whole number within the bounds."""
    check_whole(name, value)
    if not least <= value <= most:
        raise InputError(f"{name} must be from {least} to {most}, got {value}")


def spatial_refs_of(refs: object) -> tuple[tuple[float, ...], ...]:
    """Return points (x, y) and boxes (x_min, y_min, x_max, y_max) as tuples of numbers.

    Raises InputError for anything else, and for places outside [0, 1].
    """
    if isinstance(refs, str) or not isinstance(refs, Iterable):
        raise InputError(f"spatial_refs must be a list of points and boxes, got {refs!r}")
    return tuple([_ref_of(ref) for ref in refs])


def _ref_of(ref: object) -> tuple[float, ...]:
    values = tuple(ref) if isinstance(ref, Iterable) and not isinstance(ref, str) else ()
    if len(values) not in (2, 4):
        raise InputError(
            f"a spatial reference is (x, y) or (x_min, y_min, x_max, y_max), got {ref!r}"
        )
    for value in values:
        check_number("a spatial reference", value)
    if not all(0 <= value <= 1 for value in values):
        raise InputError(f"a spatial reference is normalised to [0, 1], got {values}")
    if len(values) == 4 and (values[0] > values[2] or values[1] > values[3]):
        raise InputError(f"the box {values} has its minimum above its maximum")
    return values
