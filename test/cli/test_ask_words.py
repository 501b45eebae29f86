"""photon-ros query, caption and segment, on the reference's small checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from painted import paint
from PIL import Image

from photon_ros.cli.ask import answer, summary
from photon_ros.core.frame import Frame
from photon_ros.core.result import Detection, DetectionKind, EndReason, Outline, Result, Timings

from .conftest import Cli

PICTURE = paint([("red", 30, 30, 40, 60)])
FRAME = Frame(PICTURE)
MASK = Detection(
    DetectionKind.MASK, "cup", 0.5, 0.5, 0.5, 0.5, score=0.75,
    polygon=(((0.25, 0.25), (0.75, 0.25), (0.75, 0.75)),),
)  # fmt: skip


@pytest.fixture
def golden(shared: Path) -> Path:
    return shared / "golden" / "moondream"


@pytest.fixture
def picture(golden: Path) -> Path:
    return golden / "images" / "vga.png"


# --- words --------------------------------------------------------------------------------------


def test_a_question_is_answered_as_plain_text(cli: Cli, golden: Path, picture: Path) -> None:
    done = cli("query", picture, "what is the red box?", "--model", golden, "--max-tokens", 32)
    assert (done.stdout, done.stderr) == ("637637435074350044455O4364561\n", "")
    assert done.returncode == 0


def test_an_answer_cut_off_says_so(cli_here: Cli, golden: Path) -> None:
    picture = golden / "images" / "wide.png"
    done = cli_here("query", picture, "how many cup", "--model", golden, "--max-tokens", 20)
    assert done.stdout.splitlines()[-1] == "  cut off: max_tokens was reached"
    assert done.stdout.startswith("912912912585")


def test_a_question_about_no_picture(cli_here: Cli, golden: Path) -> None:
    done = cli_here(
        "query", "-", "where is the person", "--model", golden, "--max-tokens", 16, "--json"
    )
    said = json.loads(done.stdout)
    assert said["answer"] == " descr85650884751278\ufffd83147\ufffd838\r838322pers segme"
    assert "image_width" not in said
    assert (said["skill"], said["end_reason"]) == ("query", "max_tokens")


def test_a_reasoning_is_shown_before_the_answer(cli_here: Cli, golden: Path) -> None:
    picture = golden / "images" / "wide.png"
    arguments = ("query", picture, "person", "--reasoning", "--max-tokens", 14, "--model", golden)
    assert cli_here(*arguments).stdout == "(58867185591255702)\n\n585\n"
    said = json.loads(cli_here(*arguments, "--json").stdout)
    assert said["answer"] == "585"
    assert said["reasoning"]["text"] == "58867185591255702"
    assert said["reasoning"]["grounding"][0]["points"] == [[0.4794921875, 0.4794921875]] * 4


def test_references_are_points_and_boxes(cli_here: Cli, golden: Path) -> None:
    picture = golden / "images" / "hd.png"
    refs = ("--ref", "0.25,0.5", "--ref", "0.1,0.2,0.4,0.9")
    done = cli_here(
        "query", picture, "what is", *refs, "--model", golden, "--max-tokens", 24, "--json"
    )
    assert json.loads(done.stdout)["answer"] == "912\ufffd585912585"


def test_sampling_is_repeatable_by_its_seed(cli_here: Cli, golden: Path, picture: Path) -> None:
    def said(*options: object) -> str:
        return cli_here(
            "query", picture, "what is", "--model", golden, "--max-tokens", 9, *options
        ).stdout

    warm = ("--temperature", 3, "--top-p", 0.99, "--seed")
    assert said(*warm, 1) == said(*warm, 1)
    assert len({said(*warm, seed) for seed in (1, 2, 3)}) > 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--length", "short", "--max-tokens", 30), " long176444554343444 cu814\n"),
        (("--max-tokens", 1), None),
    ],
)
def test_a_picture_is_described(
    cli_here: Cli, golden: Path, picture: Path, options: tuple[object, ...], text: str | None
) -> None:
    done = cli_here("caption", picture, "--model", golden, *options)
    assert done.returncode == 0
    if text is not None:
        assert done.stdout == text
    said = json.loads(cli_here("caption", picture, "--model", golden, *options, "--json").stdout)
    assert said["prompt"] == ("normal" if text is None else "short")
    assert isinstance(said["caption"], str)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("segment", "IMAGE", "cup"), "golden_a has no segment skill; models that do: nano"),
        (("caption", "IMAGE", "--length", "huge"), "writes captions of length short, normal, lo"),
        (("query", "IMAGE", ""), "the prompt of query is empty"),
        (("query", "IMAGE", "a", "--ref", "1,x"), "'1,x' is not X,Y or X,Y,X2,Y2"),
        (("query", "IMAGE", "a", "--ref", "1,2"), "normalised to [0, 1]"),
        (("query", "IMAGE", "a", "--ref", "1"), "is (x, y) or"),
        (("query", "IMAGE", "a", "--top-p", "0"), "top_p must be in (0, 1]"),
        (("query", "IMAGE", "a", "--max-tokens", "0"), "max_tokens must be from 1 to"),
        (("query", "IMAGE", "a", "--temperature", "-1"), "temperature must be from 0 to"),
        (("query", "nowhere.png", "a"), "nowhere.png does not exist"),
        (("caption", "-"), "caption needs a picture"),
        (("detect", "-", "cup"), "detect needs a picture"),
        (("query", "IMAGE", "a", "--revision", "x"), "is not on a hub, so it has no revision 'x'"),
    ],
)
def test_what_cannot_be_asked_is_one_clear_line(
    cli_here: Cli, golden: Path, picture: Path, arguments: tuple[str, ...], reason: str
) -> None:
    words = [str(picture) if word == "IMAGE" else word for word in arguments]
    done = cli_here(*words, "--model", golden)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert reason in done.stderr


def test_nano_says_which_models_answer_in_words(cli_here: Cli, picture: Path) -> None:
    done = cli_here("query", picture, "what is this?", "--model", "nano")
    assert "nano has no query skill; models that do: moondream2, " in done.stderr


# --- outlines, as they are said -----------------------------------------------------------------


def outlined(outline: Outline, *found: Detection, end: EndReason = EndReason.EOS) -> Result:
    timings = Timings(total_ms=12.3456)
    return Result("segment", "cup", found, end_reason=end, timings=timings, outline=outline)


def test_an_outline_is_a_path_and_a_box() -> None:
    path = "M 0 0 L 1 0 L 1 1 Z"
    result = outlined(Outline(path, (0.25, 0.25, 0.75, 0.75), "M 0 0 ..."), MASK)
    said = answer(result, FRAME)
    assert said["path"] == path
    assert said["bbox"] == {"x_min": 0.25, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75}
    assert "parse_error" not in said
    lines = summary(result, FRAME).splitlines()
    assert lines[0] == "1 object for 'cup' in 12 ms"
    assert lines[1].startswith("  cup  0.75  x ")
    assert lines[2] == f"  {path}"


def test_what_is_no_outline_is_shown_as_it_was_written() -> None:
    broken = Outline("", None, "M 1 -", "'-' at the end negates nothing")
    result = outlined(broken, end=EndReason.MAX_TOKENS)
    assert summary(result, FRAME).splitlines() == [
        "0 objects for 'cup' in 12 ms",
        "  no outline: '-' at the end negates nothing",
        "  written: M 1 -",
        "  cut off: max_tokens was reached",
    ]
    said = answer(result, FRAME)
    assert (said["path"], said["bbox"], said["raw_text"]) == ("", None, "M 1 -")
    assert said["parse_error"] == "'-' at the end negates nothing"


def test_a_mask_is_drawn_on_the_overlay(tmp_path: Path) -> None:
    from photon_ros.cli.ask import write_overlay

    path = tmp_path / "out.png"
    write_overlay(path, FRAME, outlined(Outline("M", None), MASK).detections)
    drawn = Image.open(path)
    assert drawn.size == (FRAME.width_px, FRAME.height_px)
    assert drawn.tobytes() != Image.fromarray(PICTURE).tobytes()
