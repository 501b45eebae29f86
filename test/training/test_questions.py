"""Questions: what is asked, and that the answers are true."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.models.nano.vocabulary import CLASSES, COLOURS
from training.cutting import CELL_SIDE, CROP_PX, NO_COLOUR, Sample
from training.questions import ANY, Question, answer_to, ask

RED, BLUE = COLOURS.index("red"), COLOURS.index("blue")
CONE, BALL, PERSON = (CLASSES.index(kind) for kind in ("cone", "ball", "person"))


def sample_of(things: list[tuple[int, int]], is_real: bool = False) -> Sample:
    """A sample of (colour, kind) objects side by side."""
    num = len(things)
    left = (np.arange(num, dtype=np.float32) + 0.25) / max(num, 1)
    width = 0.5 / max(num, 1)
    boxes = np.stack([left, np.full(num, 0.4), left + width, np.full(num, 0.6)], axis=1)
    return Sample(
        whole=np.zeros((CROP_PX, CROP_PX, 3), np.uint8),
        mosaic=None,
        tiling=(1, 1),
        kinds=np.array([kind for _, kind in things], np.int64),
        colours=np.array([colour for colour, _ in things], np.int64),
        boxes=boxes.astype(np.float32),
        cells=np.zeros((CELL_SIDE, CELL_SIDE), np.uint8),
        is_real=is_real,
    )


MIXED = sample_of([(RED, CONE), (BLUE, BALL), (RED, BALL), (BLUE, CONE), (RED, CONE)])


@pytest.mark.parametrize(
    ("colour", "kind", "answer"),
    [
        (ANY, ANY, (0, 1, 2, 3, 4)),
        (RED, ANY, (0, 2, 4)),
        (ANY, CONE, (0, 3, 4)),
        (RED, CONE, (0, 4)),
        (BLUE, PERSON, ()),
    ],
)
def test_an_answer_is_every_object_meant_left_to_right(
    colour: int, kind: int, answer: tuple[int, ...]
) -> None:
    assert answer_to(MIXED, colour, kind) == answer


def test_the_colour_of_people_in_photographs_is_never_asked() -> None:
    sample = sample_of([(NO_COLOUR, PERSON), (RED, CONE)])
    assert answer_to(sample, RED, PERSON) is None
    assert answer_to(sample, RED, ANY) is None
    assert answer_to(sample, ANY, PERSON) == (0,)
    assert answer_to(sample, RED, CONE) == (1,)
    assert answer_to(sample, ANY, ANY) == (0, 1)


def test_in_a_film_only_what_is_labelled_is_asked() -> None:
    sample = sample_of([(NO_COLOUR, PERSON)], is_real=True)
    assert answer_to(sample, ANY, PERSON) == (0,)
    assert answer_to(sample, ANY, ANY) is None
    assert answer_to(sample, ANY, CONE) is None, "its traffic cones are not labelled"
    assert answer_to(sample, RED, PERSON) is None
    assert answer_to(sample, RED, BALL) == ()


def test_in_an_empty_street_nobody_is_found() -> None:
    sample = sample_of([], is_real=True)
    assert answer_to(sample, ANY, PERSON) == ()
    assert answer_to(sample, RED, PERSON) is None, "still not for us to say"


THINGS = st.lists(
    st.tuples(st.integers(0, NO_COLOUR), st.integers(0, len(CLASSES) - 1)), max_size=8
)


@settings(max_examples=80, deadline=None)
@given(
    things=THINGS,
    is_real=st.booleans(),
    seed=st.integers(0, 1000),
    max_questions=st.integers(1, 12),
    max_tokens=st.integers(20, 140),
)
def test_questions_are_different_true_and_within_the_budget(
    things: list[tuple[int, int]], is_real: bool, seed: int, max_questions: int, max_tokens: int
) -> None:
    if is_real:
        things = [(NO_COLOUR, PERSON) for _ in things]
    sample = sample_of(things, is_real)
    asked = ask(sample, np.random.default_rng(seed), max_questions, max_tokens)
    assert 1 <= len(asked) <= max_questions
    assert sum(q.num_tokens for q in asked) <= max(max_tokens, asked[0].num_tokens)
    assert len({(q.skill, q.colour, q.kind) for q in asked}) == len(asked)
    for question in asked:
        assert question.answer == answer_to(sample, question.colour, question.kind)
    if is_real and things:
        assert asked[0].prompt == "person"


def test_about_a_quarter_of_the_prompts_are_absent() -> None:
    rng = np.random.default_rng(0)
    asked = [q for _ in range(300) for q in ask(MIXED, rng, 8, 110)]
    share = sum(not q.answer for q in asked) / len(asked)
    assert 0.2 < share < 0.45
    mixed_up = [q for q in asked if not q.answer and q.colour in (RED, BLUE) and q.kind != ANY]
    assert mixed_up


def test_tokens_of_a_question() -> None:
    assert Question("detect", RED, CONE, (1, 2)).num_tokens == 4 + 6
    assert Question("point", RED, CONE, (1, 2)).num_tokens == 4 + 4
    assert Question("point", RED, CONE, ()).prompt == "red cone"
    assert Question("point", ANY, ANY, ()).prompt == "object"
    assert Question("point", RED, ANY, ()).prompt == "red object"
