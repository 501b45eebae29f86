"""Questions: what is asked, and that the answers are true."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.models.nano.vocabulary import CLASSES, COLOURS
from training.cutting import CELL_SIDE, CROP_PX, NO_COLOUR, Sample, cut
from training.outline import NUM_CORNERS
from training.pool import Mix, Renderer
from training.questions import ANY, TRAINING, Question, Shares, answer_to, ask

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
        corners=np.full((num, NUM_CORNERS, 2), 0.5, np.float32),
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
    keys = {(q.skill, q.colour, q.kind, q.point and q.answer) for q in asked}
    assert len(keys) == len(asked)
    for question in asked:
        meant = answer_to(sample, question.colour, question.kind)
        assert meant is not None
        if question.skill != "segment":
            assert question.answer == meant
            assert question.point is None
        elif question.point is None:
            assert question.answer == meant[:1], "the first from the left"
        else:
            assert len(question.answer) == min(1, len(meant))
            assert set(question.answer) <= set(meant)
            assert all(0 <= value <= 1 for value in question.point)
    if is_real and things:
        assert asked[0].prompt == "person"


@pytest.mark.parametrize("share", [0.1, 0.35])
def test_as_many_prompts_are_absent_as_asked_for(share: float) -> None:
    rng = np.random.default_rng(0)
    asked = [q for _ in range(3000) for q in ask(MIXED, rng, 1, 110, Shares(absent=share))]
    assert sum(not q.answer for q in asked) / len(asked) == pytest.approx(share, abs=0.04)


def test_what_is_missing_never_crowds_out_what_is_there() -> None:
    lone = sample_of([(RED, CONE)])
    for seed in range(100):
        asked = ask(lone, np.random.default_rng(seed), 10, 400)
        assert sum(not q.answer for q in asked) <= 4
        assert any(q.answer for q in asked)
    empty = ask(sample_of([]), np.random.default_rng(0), 10, 400)
    assert len(empty) > 8, "in an empty scene there is nothing else to ask about"


def test_absent_prompts_are_mostly_close_to_what_is_there() -> None:
    """Both words there but apart, or one of them there, or nothing of either."""
    rng = np.random.default_rng(0)
    rooms = [(RED, CONE), (BLUE, BALL), (RED, BALL)]  # a blue cone is missing
    asked = [q for _ in range(2000) for q in ask(sample_of(rooms), rng, 1, 110, Shares(absent=1))]
    assert not any(q.answer for q in asked)
    pairs = [q for q in asked if q.colour != ANY and q.kind != ANY]
    swapped = [q for q in pairs if (q.colour, q.kind) == (BLUE, CONE)]
    one_word = [q for q in pairs if (q.colour in (RED, BLUE)) != (q.kind in (CONE, BALL))]
    assert len(swapped) > 0.3 * len(asked)
    assert len(one_word) > 0.25 * len(asked)
    assert any(q.colour in (RED, BLUE) for q in one_word)
    assert any(q.kind in (CONE, BALL) for q in one_word)
    assert len(swapped) + len(one_word) < len(asked)


def test_outlines_are_asked_as_often_as_said_half_of_them_with_a_point() -> None:
    rng = np.random.default_rng(0)
    asked = [q for _ in range(3000) for q in ask(MIXED, rng, 1, 110)]
    outlines = [q for q in asked if q.skill == "segment"]
    assert len(outlines) / len(asked) == pytest.approx(TRAINING.segment, abs=0.03)
    referred = sum(q.point is not None for q in outlines) / len(outlines)
    assert referred == pytest.approx(0.5, abs=0.05)
    assert {q.answer for q in outlines if q.point is None} >= {(), (0,), (1,)}
    assert {q.answer for q in outlines if q.point and q.kind == CONE} >= {(0,), (3,), (4,)}


def test_without_outlines_boxes_and_points_are_all_that_is_asked() -> None:
    rng = np.random.default_rng(0)
    asked = [q for _ in range(500) for q in ask(MIXED, rng, 8, 110, Shares(segment=0))]
    detect = sum(q.skill == "detect" for q in asked) / len(asked)
    assert {q.skill for q in asked} == {"detect", "point"}
    assert detect == pytest.approx(0.6, abs=0.06)


def test_a_point_lies_where_its_object_is_seen() -> None:
    renderer = Renderer(4, Mix(1, 0, 0, 0), None)
    rng = np.random.default_rng(1)
    num_on = num_points = 0
    for index in range(40):
        scene, tiling, is_real = renderer.scene(index)
        sample = cut(scene, tiling, is_real)
        for question in ask(sample, rng, 6, 400, Shares(segment=1, referred=1, absent=0)):
            assert question.point is not None
            x, y = question.point
            height, width = scene.ids.shape
            seen = scene.ids[int(y * height * 0.9999), int(x * width * 0.9999)]
            num_on += int(seen) == question.answer[0] + 1 if question.answer else 0
            num_points += bool(question.answer)
            if question.answer:
                x_min, y_min, x_max, y_max = sample.boxes[question.answer[0]]
                near = 1 / CELL_SIDE
                assert x_min - near <= x <= x_max + near
                assert y_min - near <= y <= y_max + near
    assert num_points > 60
    assert num_on > 0.8 * num_points  # the rest is off by part of a cell


def test_tokens_of_a_question() -> None:
    assert Question("detect", RED, CONE, (1, 2)).num_tokens == 4 + 6
    assert Question("point", RED, CONE, (1, 2)).num_tokens == 4 + 4
    assert Question("segment", RED, CONE, (1,)).num_tokens == 4 + 3 + 32
    assert Question("segment", RED, CONE, (1,), (0.1, 0.2)).num_tokens == 6 + 3 + 32
    assert Question("segment", RED, CONE, (), (0.1, 0.2)).num_tokens == 6
    assert Question("point", RED, CONE, ()).prompt == "red cone"
    assert Question("point", ANY, ANY, ()).prompt == "object"
    assert Question("point", RED, ANY, ()).prompt == "red object"
