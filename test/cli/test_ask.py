from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from painted import paint
from PIL import Image

from photon_ros.cli.ask import answer, summary
from photon_ros.core.errors import ImageError
from photon_ros.core.frame import Frame
from photon_ros.core.result import Detection, DetectionKind, EndReason, Result, Timings
from photon_ros.picture_files import load_image

from .conftest import Cli

PICTURE = paint([("red", 30, 30, 40, 60)])
BOX = Detection(DetectionKind.BOX, "red cup", 0.5, 0.25, 0.25, 0.5, score=0.875)
POINT = Detection(DetectionKind.POINT, "red cup", 0.5, 0.25, score=0.75)
FRAME = Frame(np.zeros((100, 200, 3), np.uint8))


def result(skill: str, *found: Detection, end: EndReason = EndReason.EOS) -> Result:
    return Result(skill, "red cup", found, end_reason=end, timings=Timings(total_ms=12.3456))


# --- what is said -------------------------------------------------------------------------------


def test_an_answer_is_json_with_normalised_corners() -> None:
    assert answer(result("detect", BOX), FRAME) == {
        "objects": [{"x_min": 0.375, "y_min": 0.0, "x_max": 0.625, "y_max": 0.5, "score": 0.875}],
        "skill": "detect",
        "prompt": "red cup",
        "image_width": 200,
        "image_height": 100,
        "end_reason": "eos",
        "total_ms": 12.346,
    }
    assert answer(result("point", POINT), FRAME)["points"] == [{"x": 0.5, "y": 0.25, "score": 0.75}]


def test_a_summary_is_in_pixels() -> None:
    assert summary(result("detect", BOX), FRAME).splitlines() == [
        "1 object for 'red cup' in 12 ms",
        "  red cup  0.88  x 75..125  y 0..50",
    ]
    assert summary(result("point", POINT, POINT), FRAME).splitlines() == [
        "2 points for 'red cup' in 12 ms",
        "  red cup  0.75  x 100  y 25",
        "  red cup  0.75  x 100  y 25",
    ]


def test_nothing_found_and_an_answer_cut_off_are_said() -> None:
    assert summary(result("detect"), FRAME) == "0 objects for 'red cup' in 12 ms"
    cut = summary(result("point", POINT, end=EndReason.MAX_OBJECTS), FRAME)
    assert cut.splitlines()[-1] == "  cut off: max_objects was reached"


def test_a_long_prompt_is_shown_in_part() -> None:
    found = replace(result("detect"), prompt="x" * 1000)
    assert summary(found, FRAME) == f"0 objects for '{'x' * 77}...' in 12 ms"
    exact = replace(found, prompt="x" * 80)
    assert summary(exact, FRAME) == f"0 objects for '{'x' * 80}' in 12 ms"


# --- pictures as people have them ---------------------------------------------------------------


def saved(path: Path, image: Image.Image, **options: Any) -> NDArray[np.uint8]:
    image.save(path, **options)
    return load_image(path)


@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff", "webp", "gif", "ppm", "jpg"])
def test_common_formats_are_read(tmp_path: Path, suffix: str) -> None:
    loaded = saved(tmp_path / f"a.{suffix}", Image.fromarray(PICTURE))
    assert loaded.shape == PICTURE.shape
    assert np.abs(loaded.astype(int) - PICTURE).mean() < 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_the_right_way_up(tmp_path: Path, orientation: int) -> None:
    upright = Image.fromarray(PICTURE)
    transposed = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(transposed[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert np.array_equal(saved(tmp_path / "a.png", stored, exif=exif), PICTURE)


def test_an_animation_shows_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (20, 10), color) for color in ("red", "blue", "lime")]
    loaded = saved(tmp_path / "a.gif", frames[0], save_all=True, append_images=frames[1:])
    assert loaded.shape == (10, 20, 3)
    assert loaded[5, 5].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("mode", "color", "name", "expected"),
    [
        ("RGBA", (0, 0, 0, 0), "a.png", (255, 255, 255)),
        ("LA", (9, 255), "a.png", (9, 9, 9)),
        ("P", 0, "a.png", None),
        ("1", 1, "a.png", (255, 255, 255)),
        ("CMYK", (0, 0, 0, 255), "a.tiff", (0, 0, 0)),
        ("I;16", 0x8080, "a.png", (128, 128, 128)),
    ],
)
def test_every_kind_of_picture_becomes_rgb(
    tmp_path: Path, mode: str, color: Any, name: str, expected: tuple[int, ...] | None
) -> None:
    loaded = saved(tmp_path / name, Image.new(mode, (6, 4), color))
    assert (loaded.shape, loaded.dtype) == ((4, 6, 3), np.uint8)
    if expected is not None:
        assert tuple(loaded[0, 0]) == expected


def test_a_damaged_orientation_block_is_an_image_error(tmp_path: Path) -> None:
    # The picture is to be turned, and its width is noted as text: this shows only while turning.
    tags = struct.pack("<HHI4sHHI4s", 0x0112, 3, 1, b"\6\0\0\0", 0x0100, 2, 4, b"abc\0")
    exif = b"Exif\0\0II*\0\x08\0\0\0\x02\0" + tags + b"\0\0\0\0"
    with pytest.raises(ImageError, match=r"image .*a\.jpg cannot be read"):
        saved(tmp_path / "a.jpg", Image.fromarray(PICTURE), exif=exif)


def test_a_picture_above_fifty_megapixels_is_refused(tmp_path: Path) -> None:
    Image.new("1", (10_000, 5_001)).save(tmp_path / "a.png")
    with pytest.raises(ImageError, match=r"image .*a\.png: image of 10000x5001 is too large"):
        load_image(tmp_path / "a.png")


# --- the whole way ------------------------------------------------------------------------------


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(PICTURE).save(tmp_path / "scene.png")
    return tmp_path / "scene.png"


@pytest.mark.parametrize(
    ("skill", "name", "keys"),
    [
        ("detect", "objects", {"x_min", "y_min", "x_max", "y_max", "score"}),
        ("point", "points", {"x", "y", "score"}),
    ],
)
def test_a_picture_and_a_prompt_give_json_and_an_overlay(
    cli: Cli, cli_here: Cli, picture: Path, tmp_path: Path, skill: str, name: str, keys: set[str]
) -> None:
    overlay = tmp_path / "out.png"
    run = cli if skill == "detect" else cli_here
    done = run(skill, picture, "red", "--json", "--overlay", overlay, "--max-objects", 3)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert set(document) == {
        name, "skill", "prompt", "image_width", "image_height", "end_reason", "total_ms",
    }  # fmt: skip
    assert (document["image_width"], document["image_height"]) == (160, 120)
    assert len(document[name]) <= 3
    for found in document[name]:
        assert set(found) == keys
        assert 0.5 <= found["score"] <= 1.0
    drawn = np.asarray(Image.open(overlay))
    assert drawn.shape == PICTURE.shape
    assert np.array_equal(drawn, PICTURE) == (not document[name])


def test_without_json_it_is_a_sentence(cli_here: Cli, picture: Path) -> None:
    done = cli_here("detect", picture, "red", "--max-crops", "0")
    assert done.returncode == 0
    assert " for 'red' in " in done.stdout.splitlines()[0]


def test_help_answers_at_once_and_loads_nothing_heavy(cli: Cli) -> None:
    import subprocess
    import sys

    code = (
        "import sys, photon_ros.cli\n"
        "heavy = {'torch', 'cv2', 'numpy', 'PIL', 'rosbags', 'rich', 'jinja2', 'safetensors'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
    done = cli("--help")
    assert done.returncode == 0
    for command in ("detect", "point", "evaluate", "bag", "golden"):
        assert command in done.stdout


@pytest.mark.parametrize(
    "command", ["detect", "point", "evaluate", "bag", "bag from-video", "golden"]
)
def test_every_subcommand_explains_itself(cli_here: Cli, command: str) -> None:
    done = cli_here(*command.split(), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: photon-ros {command}")
