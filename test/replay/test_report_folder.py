from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.core.errors import InputError
from photon_ros.replay.report_folder import ReportFolder, picture_name

RESULTS = json.dumps({"schema": "photon_ros.results/1"})


def write_report(out: Path, bag: Path, *, num_pictures: int = 2, coco: bool = False) -> None:
    """Write a report as an evaluation does."""
    with ReportFolder(out, bag) as folder:
        pictures = folder.draft / "pictures"
        pictures.mkdir()
        for index in range(num_pictures):
            (pictures / picture_name(index, 100 * index)).write_bytes(b"jpeg")
        (folder.draft / "report.md").write_text("report")
        (folder.draft / "results.json").write_text(RESULTS)
        if coco:
            (folder.draft / "detections.coco.json").write_text("[]")
        folder.put_in_place()


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    (tmp_path / "bag").mkdir()
    return tmp_path / "bag"


def test_a_report_is_put_in_a_new_folder_and_nothing_else_is(bag: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    write_report(out, bag)
    assert names_in(out) == {
        "report.md",
        "results.json",
        "pictures/frame_000000_0.jpg",
        "pictures/frame_000001_100.jpg",
    }
    assert sorted(path.name for path in out.iterdir()) == ["pictures", "report.md", "results.json"]


def test_what_the_new_report_does_not_have_goes(bag: Path, tmp_path: Path) -> None:
    write_report(tmp_path / "out", bag, num_pictures=5, coco=True)
    write_report(tmp_path / "out", bag, num_pictures=1)
    assert names_in(tmp_path / "out") == {
        "report.md",
        "results.json",
        "pictures/frame_000000_0.jpg",
    }


def test_foreign_files_stay_beside_the_report_and_among_its_pictures(
    bag: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write_report(out, bag)
    mine = {"notes.txt", "pictures/family.jpg", "pictures/frame_1.jpg", "pictures/deep/a.jpg"}
    (out / "pictures" / "deep").mkdir()
    for name in mine:
        (out / name).write_text(name)
    write_report(out, bag, num_pictures=0)
    assert names_in(out) == mine | {"report.md", "results.json"}
    assert all((out / name).read_text() == name for name in mine)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", "{}"),
        ("results.json", "no json"),
        ("results.json", '{"schema": "photon_ros.results.mine/1"}'),
        ("results.json", '{"schema": 5}'),
        ("results.json", '["photon_ros.results/1"]'),
        ("report.md", "mine"),
        ("detections.coco.json", "[]"),
        ("pictures", "a file of that name"),
        ("pictures/frame_000001_5.jpg", "from somewhere"),
    ],
)
def test_a_name_that_is_taken_by_something_else_is_refused(
    bag: Path, tmp_path: Path, name: str, content: str
) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(InputError, match=rf"its {name} was not written by an evaluation; move it"):
        write_report(tmp_path / "out", bag)
    assert names_in(tmp_path / "out") == {name}
    assert path.read_text() == content


@pytest.mark.parametrize("name", ["pictures", "results.json", "report.md"])
def test_nothing_is_removed_or_written_through_a_link(bag: Path, tmp_path: Path, name: str) -> None:
    """A report that lies elsewhere and is linked to here is not this folder's to replace."""
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    write_report(elsewhere, bag)
    write_report(out, bag)
    before = names_in(elsewhere)
    for path in sorted((out / name).glob("*")) if name == "pictures" else [out / name]:
        path.unlink()
    if name == "pictures":
        (out / name).rmdir()
    (out / name).symlink_to(elsewhere / name)
    with pytest.raises(InputError, match=f"its {name} was not written by an evaluation"):
        write_report(out, bag)
    assert names_in(elsewhere) == before
    assert (out / name).is_symlink()


def test_a_link_to_nothing_is_a_name_that_is_taken(bag: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.md").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"its report\.md"):
        write_report(tmp_path / "out", bag)
    assert not (tmp_path / "nowhere").exists()


def test_an_output_folder_that_is_itself_a_link_is_used(bag: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    write_report(tmp_path / "out", bag)
    write_report(tmp_path / "out", bag)
    assert "results.json" in names_in(tmp_path / "disk")
    assert (tmp_path / "out").is_symlink()


def test_a_file_that_appears_during_the_run_is_not_written_over(bag: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with ReportFolder(out, bag) as folder:
        (folder.draft / "pictures").mkdir()
        (folder.draft / "report.md").write_text("new")
        (folder.draft / "results.json").write_text(RESULTS)
        (out / "report.md").write_text("mine")
        with pytest.raises(InputError, match=r"its report\.md was not written"):
            folder.put_in_place()
    assert names_in(out) == {"report.md"}
    assert (out / "report.md").read_text() == "mine"


def test_a_folder_that_was_there_is_kept_after_a_failure(bag: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    def fail() -> None:
        with ReportFolder(tmp_path / "out", bag) as folder:
            (folder.draft / "report.md").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_told_at_once(bag: Path) -> None:
    with pytest.raises(InputError, match=r"/proc/report cannot be used: No such file"):
        write_report(Path("/proc/report"), bag)  # where not even root makes a folder


def test_a_loose_recording_does_not_claim_its_folder(tmp_path: Path) -> None:
    """Only a bag's folder is a recording; a single file may have its report beside it."""
    (tmp_path / "loose.mcap").write_bytes(b"mcap")
    write_report(tmp_path, tmp_path / "loose.mcap")
    assert "results.json" in names_in(tmp_path)


def test_pictures_that_are_the_recording_are_refused(tmp_path: Path) -> None:
    bag = tmp_path / "out" / "pictures"
    bag.mkdir(parents=True)
    with pytest.raises(InputError, match="it lies in the bag"):
        write_report(tmp_path / "out", bag)
    assert list(bag.iterdir()) == []


@given(
    st.sets(
        st.sampled_from(
            [
                "results.json",
                "report.md",
                "detections.coco.json",
                "pictures/frame_000000_0.jpg",
                "pictures/family.jpg",
                "pictures/frame_x.jpg",
                "notes.md",
                "results.json.bak",
            ]
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_no_foreign_byte_is_ever_lost(names: set[str]) -> None:
    """Whatever a folder holds that no evaluation wrote, it holds afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        out, bag = Path(folder) / "out", Path(folder) / "bag"
        (out / "pictures").mkdir(parents=True)
        bag.mkdir()
        for name in names:
            (out / name).write_text(f"my {name}")
        try:
            write_report(out, bag)
        except InputError:
            assert names_in(out) == names
        assert all((out / name).read_text() == f"my {name}" for name in names)
