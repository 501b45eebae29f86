"""Several pictures, several prompts: the answers are those of one at a time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from photon_ros.cli.ask_many import pictures_in
from photon_ros.core.errors import ImageError

from .conftest import REPOSITORY, Cli

SCENE = REPOSITORY / "docs" / "scene.jpg"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with the scene, the scene mirrored, and a file that is no picture."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    shutil.copy(SCENE, folder / "a.jpg")
    with Image.open(SCENE) as scene:
        scene.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "b.PNG")
    (folder / "notes.txt").write_text("mine")
    return folder


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        return picture.size


def places(answer: dict[str, Any]) -> list[float]:
    return [value for found in answer["objects"] for value in found.values()]


def test_several_prompts_are_answered_as_if_each_were_alone(cli_here: Cli) -> None:
    done = cli_here("detect", SCENE, "person", "--also", "cone", "--also", "ball", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["prompt"] for answer in answers] == ["person", "cone", "ball"]
    assert {answer["image"] for answer in answers} == {str(SCENE)}
    for answer in answers:
        alone = json.loads(cli_here("detect", SCENE, answer["prompt"], "--json").stdout)
        assert places(answer) == pytest.approx(places(alone), abs=1e-3)
        assert alone.keys() == answer.keys() - {"image"}
    assert len(answers[0]["objects"]) == 2


def test_every_picture_of_a_folder_is_answered_under_its_name(
    cli_here: Cli, pictures: Path
) -> None:
    done = cli_here("point", "pictures", SCENE, "person", "--also", "cone")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    headers = [line for line in lines if "point" not in line and not line.startswith("  ")]
    assert headers == [*(str(path) for path in sorted(Path("pictures").glob("[ab]*"))), str(SCENE)]
    assert sum(" for 'person' in " in line for line in lines) == 3
    assert sum(" for 'cone' in " in line for line in lines) == 3
    assert pictures.is_dir()


def test_a_folder_of_one_picture_is_that_picture(cli_here: Cli, pictures: Path) -> None:
    (pictures / "b.PNG").unlink()
    done = cli_here("detect", "pictures", "person", "--json")
    assert json.loads(done.stdout)["image_width"] == size_of(SCENE)[0]


def test_a_picture_that_cannot_be_read_does_not_stop_the_others(
    cli_here: Cli, pictures: Path
) -> None:
    (pictures / "aa.jpg").write_bytes(SCENE.read_bytes()[:500])
    done = cli_here("detect", "pictures", "person", "--json")
    assert done.returncode == 1
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [Path(answer["image"]).name for answer in answers] == ["a.jpg", "b.PNG"]
    assert len(done.stderr.splitlines()) == 1
    assert "aa.jpg" in done.stderr


def test_the_overlay_shows_the_answers_to_every_prompt(cli_here: Cli, tmp_path: Path) -> None:
    drawn = []
    for k, also in enumerate([(), ("--also", "ball")]):
        done = cli_here("detect", SCENE, "person", *also, "--overlay", f"{k}.png")
        assert (done.returncode, done.stderr) == (0, "")
        drawn.append(np.asarray(Image.open(tmp_path / f"{k}.png")).astype(int))
    assert drawn[0].shape == drawn[1].shape
    assert np.abs(drawn[0] - drawn[1]).max() > 50


def test_options_may_stand_before_between_and_behind(cli_here: Cli) -> None:
    for words in (
        ("--json", SCENE, "person"),
        (SCENE, "--json", "person"),
        (SCENE, "person", "--json"),
    ):
        done = cli_here("detect", *words)
        assert len(json.loads(done.stdout)["objects"]) == 2


def test_names_are_taken_as_given_and_folders_by_name(pictures: Path) -> None:
    assert pictures_in([str(SCENE), str(pictures), str(SCENE)]) == [
        SCENE,
        pictures / "a.jpg",
        pictures / "b.PNG",
        SCENE,
    ]
    with pytest.raises(ImageError, match="image nowhere does not exist"):
        pictures_in([str(pictures), "nowhere"])
