"""The demo's folder: an earlier demo's is used again, anybody else's is left alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from photon_ros.core.errors import BagError
from photon_ros.replay.bag_reader import BagReader
from photon_ros.replay.truth import frames_with_truth, read_truth
from scripts import demo


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of three frames."""
    monkeypatch.setattr(demo, "NUM_FRAMES", 3)


def content_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["demo.py", *map(str, arguments)])
    return demo.main()


def test_a_folder_that_no_demo_made_is_refused_and_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it looks like a demo's: the README's first recording is called bag, too."""
    (tmp_path / "bag").mkdir()
    (tmp_path / "bag" / "bag.mcap").write_bytes(b"years of work")
    (tmp_path / "live").mkdir()
    before = content_of(tmp_path)
    assert run_main(monkeypatch, "--out", tmp_path) == 2
    assert capsys.readouterr().err == (
        f"demo: {tmp_path} was not made by the demo; give a new folder\n"
    )
    assert content_of(tmp_path) == before
    assert (tmp_path / "live").is_dir()


def test_a_file_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("mine")
    assert run_main(monkeypatch, "--out", tmp_path / "out") == 2
    assert run_main(monkeypatch, "--out", tmp_path / "out" / "below") == 2
    assert capsys.readouterr().err.count("demo: ") == 2
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.usefixtures("short")
def test_a_demos_folder_is_used_again_and_what_was_added_to_it_stays(tmp_path: Path) -> None:
    out = tmp_path / "demo_out"
    for _ in range(2):
        demo.prepare(out)
        truth = read_truth(demo.render_bag(out))
        with BagReader(out / "bag") as reader:
            topic = reader.select_topic()
            stamps = [entry.stamp_ns for entry in reader.entries(topic)]
        assert len(frames_with_truth(truth, topic, stamps)) == 3
        (out / "clip.avi").write_bytes(b"mine")
        (out / "live").mkdir(exist_ok=True)
        (out / "live" / "notes.txt").write_text("mine")
    demo.prepare(out)
    assert set(content_of(out)) == {demo.MARK, "clip.avi", "live/notes.txt"}


@pytest.mark.usefixtures("short")
def test_what_was_added_to_a_demos_bag_stays_and_stops_the_demo(tmp_path: Path) -> None:
    out = tmp_path / "demo_out"
    demo.prepare(out)
    demo.render_bag(out)
    (out / "bag" / "mine.mcap").write_bytes(b"mine")
    demo.prepare(out)
    with pytest.raises(BagError, match="holds files already"):
        demo.render_bag(out)
    assert (out / "bag" / "mine.mcap").read_bytes() == b"mine"


@pytest.mark.usefixtures("short")
def test_nothing_is_removed_or_written_through_a_link(tmp_path: Path) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "demo_out"
    elsewhere.mkdir()
    (elsewhere / "bag.mcap").write_bytes(b"mine")
    (elsewhere / "truth.json").write_text("mine")
    demo.prepare(out)
    (out / "truth.json").symlink_to(elsewhere / "truth.json")
    demo.prepare(out)
    json.loads(demo.render_bag(out).read_text())
    (out / "bag" / "bag.mcap").unlink()
    (out / "bag" / "metadata.yaml").unlink()
    (out / "bag").rmdir()
    (out / "bag").symlink_to(elsewhere)
    with pytest.raises(demo.DemoError, match=r"bag was not made by the demo"):
        demo.prepare(out)
    assert content_of(elsewhere) == {"bag.mcap": b"mine", "truth.json": b"mine"}


@pytest.mark.usefixtures("short")
def test_a_step_that_could_not_run_stops_the_demo_and_one_with_failed_frames_does_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(demo.DemoError, match="this step failed: photon-ros evaluate"):
        demo.photon_ros("evaluate", str(tmp_path / "no"), "--prompt", "cone", "--out", "out")
    assert "does not exist" in capfd.readouterr().err
    demo.prepare(tmp_path / "demo_out")
    truth = demo.render_bag(tmp_path / "demo_out")
    asked = ("--prompt", "cone", "--max-objects", "1", "--max-crops", "0")
    only = ("--truth", str(truth), "--truth-frames-only", "--out", str(tmp_path / "out"))
    demo.photon_ros("evaluate", str(tmp_path / "demo_out" / "bag"), *asked, *only)
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    assert document["frames"]["failed"] > 0
