"""What is asked about a scene while training, and the true answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from photon_ros.models.nano.vocabulary import CLASSES, COLOURS
from training.cutting import CELL_SIDE, NO_COLOUR, Sample
from training.outline import NUM_CORNERS

ANY = -1
_CONE = CLASSES.index("cone")
_PERSON = CLASSES.index("person")
_TOKENS_OF_AN_OBJECT = {"point": 2, "detect": 3, "segment": 3 + 2 * NUM_CORNERS}


@dataclass(frozen=True, slots=True)
class Shares:
    """How often what is asked.

    Attributes:
        segment: questions for an outline; of the others, three in five are detect.
        absent: questions about what is not there; where there is anything, about the most of
            them, too, for there is more to ask about what is missing.
        swapped: of those, a colour and a class that are both there, on different objects.
        lookalike: of those, one thing that is there with another colour, or in another class.
        referred: questions for an outline that come with a point.
    """

    segment: float = 0.3
    absent: float = 0.27
    swapped: float = 0.5
    lookalike: float = 0.3
    referred: float = 0.5


TRAINING = Shares()


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt with its answer.

    Attributes:
        skill: "point", "detect" or "segment".
        colour: index into COLOURS, or ANY.
        kind: index into CLASSES, or ANY.
        answer: indices of the objects meant, left to right; empty when there is none. Segment
            means one: the object at ``point``, else the first from the left.
        point: (x, y) in [0, 1] that segment is referred to; None without.
    """

    skill: str
    colour: int
    kind: int
    answer: tuple[int, ...]
    point: tuple[float, float] | None = None

    @property
    def prompt(self) -> str:
        """The question in words."""
        kind = "object" if self.kind == ANY else CLASSES[self.kind]
        return kind if self.colour == ANY else f"{COLOURS[self.colour]} {kind}"

    @property
    def num_tokens(self) -> int:
        """Positions of prompt and answer, the end token not counted."""
        return self.num_prompt_tokens + len(self.answer) * _TOKENS_OF_AN_OBJECT[self.skill]

    @property
    def num_prompt_tokens(self) -> int:
        """Positions of the prompt: skill, point, colour, class, separator."""
        return 4 if self.point is None else 6


def answer_to(sample: Sample, colour: int, kind: int) -> tuple[int, ...] | None:
    """Return the objects meant, or None where the truth does not say."""
    if sample.is_real and (kind in (ANY, _CONE) or (kind == _PERSON and colour != ANY)):
        return None  # only people are labelled in a film, and its cones are really there
    if colour != ANY and kind in (ANY, _PERSON) and (sample.colours == NO_COLOUR).any():
        return None  # nobody said what colour the people in photographs are
    meant = np.ones(len(sample.kinds), np.bool_)
    if colour != ANY:
        meant &= sample.colours == colour
    if kind != ANY:
        meant &= sample.kinds == kind
    return tuple(int(i) for i in np.flatnonzero(meant))


def _present(sample: Sample, rng: np.random.Generator) -> tuple[int, int]:
    """Return (colour, kind) that some object of the scene has."""
    i = int(rng.integers(len(sample.kinds)))
    colour, kind = int(sample.colours[i]), int(sample.kinds[i])
    style = rng.random()
    if style < 0.1:
        return ANY, ANY
    if colour == NO_COLOUR or style < 0.45:
        return ANY, kind
    return (colour, ANY) if style < 0.6 else (colour, kind)


def _absent(sample: Sample, shares: Shares, rng: np.random.Generator) -> tuple[int, int]:
    """Return (colour, kind) that may be missing, mostly close to something that is there."""
    style = rng.random()
    if style < shares.swapped:
        pairs = _missing_pairs(sample)
        if pairs:
            return pairs[int(rng.integers(len(pairs)))]
    elif style < shares.swapped + shares.lookalike and len(sample.kinds):
        return _lookalike(sample, rng)
    colour = int(rng.integers(len(COLOURS))) if rng.random() < 0.6 else ANY
    kind = int(rng.integers(len(CLASSES))) if rng.random() < 0.85 or colour == ANY else ANY
    return colour, kind


def _missing_pairs(sample: Sample) -> list[tuple[int, int]]:
    """Return each (colour, kind) whose parts are both there, but on no object together."""
    colours = {int(colour) for colour in sample.colours} - {NO_COLOUR}
    kinds = {int(kind) for kind in sample.kinds}
    pairs = [(colour, kind) for colour in sorted(colours) for kind in sorted(kinds)]
    return [pair for pair in pairs if answer_to(sample, *pair) == ()]


def _lookalike(sample: Sample, rng: np.random.Generator) -> tuple[int, int]:
    """Return the colour of an object with any class, or its class with any colour."""
    i = int(rng.integers(len(sample.kinds)))
    colour, kind = int(sample.colours[i]), int(sample.kinds[i])
    if colour != NO_COLOUR and rng.random() < 0.5:
        return colour, int(rng.integers(len(CLASSES)))
    return int(rng.integers(len(COLOURS))), kind


def ask(
    sample: Sample,
    rng: np.random.Generator,
    max_questions: int,
    max_tokens: int,
    shares: Shares = TRAINING,
) -> list[Question]:
    """Draw different questions about a scene.

    Args:
        sample: the scene.
        rng: source of every random choice.
        max_questions: most questions to ask.
        max_tokens: most positions that all of them together may take; the first question is
            asked whatever it takes.
        shares: how often what is asked.
    """
    questions: dict[tuple[object, ...], Question] = {}
    taken = num_absent = 0
    max_absent = max_questions if len(sample.kinds) == 0 else shares.absent * max_questions
    for _ in range(2 * max_questions):
        if len(questions) == max_questions:
            break
        skill = _skill(shares, rng)
        if sample.is_real and not questions and len(sample.kinds):
            question = _about(sample, skill, (ANY, _PERSON), shares, rng)
        else:
            question = _draw(sample, skill, shares, rng)
        if question is None or (questions and taken + question.num_tokens > max_tokens):
            continue
        if not question.answer and num_absent >= max_absent:
            continue
        key = question.skill, question.colour, question.kind, question.point and question.answer
        if key not in questions:
            questions[key] = question
            taken += question.num_tokens
            num_absent += not question.answer
    return list(questions.values())


def _skill(shares: Shares, rng: np.random.Generator) -> str:
    style = rng.random()
    if style < shares.segment:
        return "segment"
    return "detect" if style < shares.segment + 0.6 * (1 - shares.segment) else "point"


def _draw(sample: Sample, skill: str, shares: Shares, rng: np.random.Generator) -> Question | None:
    """Draw one question, or None when luck gave none that the truth can answer."""
    want_absent = len(sample.kinds) == 0 or rng.random() < shares.absent
    for _ in range(6):
        meant = _absent(sample, shares, rng) if want_absent else _present(sample, rng)
        question = _about(sample, skill, meant, shares, rng)
        if question is not None and bool(question.answer) != want_absent:
            return question
    return None


def _about(
    sample: Sample,
    skill: str,
    meant: tuple[int, int],
    shares: Shares,
    rng: np.random.Generator,
) -> Question | None:
    """Return the question about (colour, kind), or None where the truth does not say."""
    answer = answer_to(sample, *meant)
    if answer is None or skill != "segment":
        return None if answer is None else Question(skill, *meant, answer)
    if rng.random() >= shares.referred:
        return Question(skill, *meant, answer[:1])
    # Somebody points at what they see, wherever on it; at what is not there, anywhere.
    one = (int(rng.choice(answer)),) if answer else ()
    return Question(skill, *meant, one, _place_on(sample, one, rng))


def _place_on(
    sample: Sample, one: tuple[int, ...], rng: np.random.Generator
) -> tuple[float, float]:
    """Return a random place where an object is seen; anywhere when there is none."""
    if not one:
        return float(rng.random()), float(rng.random())
    rows, columns = np.nonzero(sample.cells == one[0] + 1)
    if not len(rows):  # too small for a cell
        x_min, y_min, x_max, y_max = sample.boxes[one[0]].tolist()
        return (x_min + x_max) / 2, (y_min + y_max) / 2
    k = int(rng.integers(len(rows)))
    # Anywhere in the cell, so that the model does not learn the middles of cells alone.
    x, y = (np.array([columns[k], rows[k]]) + rng.random(2)) / CELL_SIDE
    return float(x), float(y)
