from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import cv2
import pytest
from painted import HEIGHT_PX, WIDTH_PX, paint, scene, write_scene, write_truth

from photon_ros.replay.bag_reader import BagReader
from photon_ros.replay.bag_writer import BagOptions, write_bag

from .conftest import REPOSITORY, Cli

NUM_FRAMES = 6
SCENE = REPOSITORY / "docs" / "scene.jpg"


@pytest.fixture
def video(tmp_path: Path) -> Path:
    path = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25, (WIDTH_PX, HEIGHT_PX))
    for boxes in scene(NUM_FRAMES):
        writer.write(paint(boxes)[:, :, ::-1])
    writer.release()
    return path


@pytest.mark.parametrize(
    ("arguments", "topic", "storage", "stamps"),
    [
        ((), "/camera/image_raw/compressed", "mcap", (1_000_000_000, 1_040_000_000)),
        (
            ("--fps", "30000/1001", "--start-ns", "5", "--raw", "--format", "sqlite3"),
            "/camera/image_raw",
            "sqlite3",
            (5, 33_366_672),
        ),
        (
            ("--fps", "10", "--topic", "/front/rgb", "--jpeg", "80"),
            "/front/rgb/compressed",
            "mcap",
            (1_000_000_000, 1_100_000_000),
        ),
    ],
)
def test_a_video_becomes_a_bag(
    cli: Cli,
    video: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    topic: str,
    storage: str,
    stamps: tuple[int, int],
) -> None:
    done = cli("bag", "from-video", video, "--out", "bag", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"bag: {NUM_FRAMES} frames of 160x120 on {topic}, ")
    with BagReader(tmp_path / "bag") as reader:
        assert (reader.select_topic(), reader.storage) == (topic, storage)
        entries = reader.entries(topic)
    assert len(entries) == NUM_FRAMES
    assert (entries[0].stamp_ns, entries[1].stamp_ns) == stamps


def test_a_second_bag_does_not_overwrite_the_first(cli: Cli, video: Path, tmp_path: Path) -> None:
    assert cli("bag", "from-video", video, "--out", "bag").returncode == 0
    before = {file: file.read_bytes() for file in (tmp_path / "bag").iterdir()}
    done = cli("bag", "from-video", video, "--out", "bag")
    assert done.returncode == 2
    assert "holds files already" in done.stderr
    assert {file: file.read_bytes() for file in (tmp_path / "bag").iterdir()} == before


def test_json_is_the_results_document_and_nothing_else(cli: Cli, tmp_path: Path) -> None:
    write_scene(tmp_path / "bag", scene(NUM_FRAMES))
    write_truth(tmp_path / "truth.json", scene(NUM_FRAMES), [1, 3])
    done = cli(
        *("evaluate", "bag", "--skill", "detect", "--prompt", "red", "--prompt", "green"),
        *("--topic", "/camera/image_raw", "--truth", "truth.json", "--truth-frames-only"),
        *("--max-crops", "0", "--out", "out", "--json"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "out" / "results.json").read_text())
    frames = document["frames"]
    assert frames["received"] == 2
    assert frames["received"] == frames["completed"] + frames["failed"]
    assert document["accuracy"]["num_truth"] == 2
    assert 0.0 <= document["accuracy"]["f1_iou50"] <= 1.0
    assert document["config"]["model"] == "nano"
    assert document["config"]["max_crops"] == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "detections.coco.json",
        "pictures",
        "report.md",
        "results.json",
    ]
    assert len(list((tmp_path / "out" / "pictures").iterdir())) == 2


def test_without_json_there_are_tables(cli_here: Cli, tmp_path: Path) -> None:
    write_scene(tmp_path / "bag", scene(2))
    write_truth(tmp_path / "truth.json", scene(2), [0])
    done = cli_here(
        *("evaluate", "bag", "--prompt", "red", "--truth", "truth.json", "--out", "out"),
        *("--max-crops", "0"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    for text in ("received", "accuracy at IoU 0.5, 1 frame ", "recall", "p95", "report: out"):
        assert text in done.stdout


def test_an_evaluation_in_which_frames_failed_ends_with_1(cli_here: Cli, tmp_path: Path) -> None:
    """The budget cuts every answer that finds something: the picture of the demo, twice."""
    write_bag(tmp_path / "bag", [cv2.imread(str(SCENE))] * 2, Fraction(10), BagOptions())
    asked = ("evaluate", "bag", "--prompt", "person", "--max-crops", "0", "--out", "out")
    done = cli_here(*asked, "--max-objects", "1", "--json")
    frames = json.loads(done.stdout)["frames"]
    assert (done.returncode, frames["completed"], frames["failed"]) == (1, 0, 2)
    assert cli_here(*asked).returncode == 0


def test_from_a_bag_to_its_score_by_way_of_a_labelling_tool(cli_here: Cli, tmp_path: Path) -> None:
    """Take pictures out, label them as a tool exports it, evaluate: no key of ours is needed."""
    write_scene(tmp_path / "bag", scene(NUM_FRAMES))
    done = cli_here("bag", "frames", "bag", "--out", "label", "--every", "2", "--label", "red")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("label: 3 pictures of /camera/image_raw/compressed, and truth.json\n")
    skeleton = json.loads((tmp_path / "label" / "truth.json").read_text())
    exported = {
        "images": [
            {key: image[key] for key in ("id", "width", "height")}
            | {"file_name": f"upload/{image['file_name']}"}
            for image in skeleton["images"]
        ],
        "categories": skeleton["categories"],
        "annotations": [
            {"id": k, "image_id": k, "category_id": 1, "bbox": [10, 20, 30, 40], "iscrowd": 0}
            for k in (1, 2, 3)
        ],
    }
    (tmp_path / "exported.json").write_text(json.dumps(exported))
    done = cli_here(
        *("evaluate", "bag", "--prompt", "red", "--truth", "exported.json", "--json"),
        *("--truth-frames-only", "--max-crops", "0", "--out", "out"),
    )
    document = json.loads(done.stdout)
    assert document["accuracy"]["num_truth"] == 3
    assert [answer["index"] for answer in document["answers"]] == [0, 2, 4]


def test_the_image_topics_of_a_bag_are_listed(cli_here: Cli, tmp_path: Path) -> None:
    write_scene(tmp_path / "bag", scene(2))
    done = cli_here("bag", "info", "bag")
    assert (done.returncode, done.stdout) == (
        0,
        "/camera/image_raw/compressed  sensor_msgs/msg/CompressedImage: 2 images of 160x120\n"
        "  stamps 1000000000 to 1100000000 ns\n",
    )
    (topic,) = json.loads(cli_here("bag", "info", "bag", "--json").stdout)
    assert topic == {
        "topic": "/camera/image_raw/compressed",
        "type": "sensor_msgs/msg/CompressedImage",
        "width": 160,
        "height": 120,
        "num_images": 2,
        "stamps_ns": [1_000_000_000, 1_100_000_000],
    }


def test_one_frame_is_one_frame(cli_here: Cli, tmp_path: Path) -> None:
    writer = cv2.VideoWriter(
        str(tmp_path / "one.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 25, (WIDTH_PX, HEIGHT_PX)
    )
    writer.write(paint([])[:, :, ::-1])
    writer.release()
    done = cli_here("bag", "from-video", "one.avi", "--out", "bag")
    assert done.stdout.startswith("bag: 1 frame of 160x120 on ")


@pytest.mark.ros
def test_a_live_evaluation_from_the_command_line(cli: Cli, tmp_path: Path) -> None:
    write_scene(tmp_path / "bag", scene(NUM_FRAMES))
    done = cli(
        *("evaluate", "bag", "--skill", "detect", "--prompt", "person", "--live", "--rate", "2"),
        *("--max-crops", "0", "--out", "out", "--json"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    frames = document["frames"]
    assert (document["config"]["mode"], document["config"]["rate"]) == ("live", 2.0)
    assert frames["received"] == NUM_FRAMES
    settled = frames["completed"] + frames["failed"] + sum(frames["dropped"].values())
    assert settled == NUM_FRAMES
