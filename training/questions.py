"""What is asked about a scene while training, and the true answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from photon_ros.models.nano.vocabulary import CLASSES, COLOURS
from training.cutting import NO_COLOUR, Sample

ANY = -1
ABSENT_SHARE = 0.27
_CONE = CLASSES.index("cone")
_PERSON = CLASSES.index("person")


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt with its answer.

    Attributes:
        skill: "point" or "detect".
        colour: index into COLOURS, or ANY.
        kind: index into CLASSES, or ANY.
        answer: indices of the objects meant, left to right; empty when there is none.
    """

    skill: str
    colour: int
    kind: int
    answer: tuple[int, ...]

    @property
    def prompt(self) -> str:
        """The question in words."""
        kind = "object" if self.kind == ANY else CLASSES[self.kind]
        return kind if self.colour == ANY else f"{COLOURS[self.colour]} {kind}"

    @property
    def num_tokens(self) -> int:
        """Positions of prompt and answer, the end token not counted."""
        return 4 + len(self.answer) * (3 if self.skill == "detect" else 2)


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


def _absent(sample: Sample, rng: np.random.Generator) -> tuple[int, int]:
    """Return (colour, kind) that may be missing; half the time both parts are there, apart."""
    if len(sample.kinds) > 1 and rng.random() < 0.5:
        colours = sample.colours[sample.colours != NO_COLOUR]
        if len(colours):
            return int(rng.choice(colours)), int(rng.choice(sample.kinds))
    colour = int(rng.integers(len(COLOURS))) if rng.random() < 0.6 else ANY
    kind = int(rng.integers(len(CLASSES))) if rng.random() < 0.85 or colour == ANY else ANY
    return colour, kind


def ask(
    sample: Sample, rng: np.random.Generator, max_questions: int, max_tokens: int
) -> list[Question]:
    """Draw different questions about a scene.

    Args:
        sample: the scene.
        rng: source of every random choice.
        max_questions: most questions to ask.
        max_tokens: most positions that all of them together may take; the first question is
            asked whatever it takes.
    """
    questions: dict[tuple[str, int, int], Question] = {}
    taken = 0
    for _ in range(2 * max_questions):
        if len(questions) == max_questions:
            break
        skill = "detect" if rng.random() < 0.6 else "point"
        if sample.is_real and not questions and len(sample.kinds):
            question: Question | None = Question(skill, ANY, _PERSON, _everybody(sample))
        else:
            question = _draw(sample, skill, rng)
        if question is None or (questions and taken + question.num_tokens > max_tokens):
            continue
        key = question.skill, question.colour, question.kind
        if key not in questions:
            questions[key] = question
            taken += question.num_tokens
    return list(questions.values())


def _everybody(sample: Sample) -> tuple[int, ...]:
    return tuple(int(i) for i in np.flatnonzero(sample.kinds == _PERSON))


def _draw(sample: Sample, skill: str, rng: np.random.Generator) -> Question | None:
    """Draw one question, or None when luck gave none that the truth can answer."""
    want_absent = len(sample.kinds) == 0 or rng.random() < ABSENT_SHARE
    for _ in range(6):
        colour, kind = (_absent if want_absent else _present)(sample, rng)
        answer = answer_to(sample, colour, kind)
        if answer is not None and bool(answer) != want_absent:
            return Question(skill, colour, kind, answer)
    return None
