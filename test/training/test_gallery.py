"""The pictures of the model card: held-out scenes with what the packaged model answers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from photon_ros.photon import Photon
from training import gallery
from training.evaluate import HELD_OUT_SEED, labelled_frames
from training.pool import Mix, Renderer

SHARED = os.environ.get("PHOTON_SHARED")


@pytest.fixture
def one_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "NUM_PICTURES", 1)


@pytest.mark.usefixtures("one_picture")
def test_a_rendered_picture_shows_a_held_out_scene_with_boxes_drawn() -> None:
    with Photon("nano") as photon:
        (picture,) = gallery.rendered_pictures(photon)
    renderer = Renderer(HELD_OUT_SEED, Mix(0, 1, 0, 0), clip=None)
    indices = range(gallery._FIRST_SCENE, gallery._FIRST_SCENE + 50)
    scenes = (renderer.scene(index)[0] for index in indices)
    scene = next(scene for scene in scenes if len(scene.objects) >= gallery._LEAST_OBJECTS)
    assert picture.shape == scene.image.shape
    changed = (picture != scene.image).any(-1)
    assert 0.001 < changed.mean() < 0.9
    x_min, y_min, _, _ = (int(v) for v in scene.objects[0].box)
    corner = changed[max(0, y_min - 3) : y_min + 4, max(0, x_min - 3) : x_min + 4]
    assert corner.any(), "the truth is dashed around each object"


@pytest.mark.usefixtures("one_picture")
def test_pictures_are_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gallery.main(["--out", str(tmp_path / "new")]) == 0
    written = [path.name for path in sorted((tmp_path / "new").iterdir())]
    assert written == ["scene_1.jpg"]
    assert capsys.readouterr().out.split() == [str(tmp_path / "new" / "scene_1.jpg")]
    with Image.open(tmp_path / "new" / "scene_1.jpg") as picture:
        assert picture.mode == "RGB"


def test_a_film_without_labels_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gallery.main(["--out", str(tmp_path), "--clip", "film.avi"]) == 2
    assert "gallery: --clip and --labels go together" in capsys.readouterr().err


@pytest.mark.usefixtures("one_picture")
@pytest.mark.skipif(SHARED is None, reason="PHOTON_SHARED is not set")
def test_a_film_picture_shows_the_first_labelled_frame() -> None:
    folder = Path(str(SHARED)) / "data" / "pets09"
    labels = folder / "person_coco.json"
    with Photon("nano") as photon:
        (picture,) = gallery.film_pictures(photon, folder / "vtest.avi", labels)
    assert picture.shape == (576, 768, 3)
    number, truth = labelled_frames(labels)[0]
    assert number == 1
    assert truth.shape[1] == 4
    assert (truth[:, 2:] > truth[:, :2]).all()
    x_min, y_min = (truth[0, :2] * np.array([768, 576])).astype(int)
    assert (picture[y_min - 2 : y_min + 3, x_min : x_min + 8] > 200).any(), "a dashed white line"
