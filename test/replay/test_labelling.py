from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faster_coco_eval import COCO
from painted import paint, scene, write_scene
from PIL import Image
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from photon_ros.core.errors import BagError, InputError
from photon_ros.replay.bag_reader import BagReader
from photon_ros.replay.bag_writer import BagOptions
from photon_ros.replay.labelling import export_frames, image_topics
from photon_ros.replay.truth import frames_with_truth, read_truth

NUM_FRAMES = 5
TOPIC = "/camera/image_raw"


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    write_scene(tmp_path / "bag", scene(NUM_FRAMES))
    return tmp_path / "bag"


def rewrite(bag: Path, out: Path, change: Any) -> Path:
    """Copy a bag message by message; ``change`` takes and returns (index, message)."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    kind = "sensor_msgs/msg/CompressedImage"
    with Reader(bag) as reader, Writer(out, version=8, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection(f"{TOPIC}/compressed", kind, typestore=store)
        for index, (_, log_ns, raw) in enumerate(reader.messages()):
            message = change(index, store.deserialize_cdr(raw, kind))
            writer.write(connection, log_ns, store.serialize_cdr(message, kind))
    return out


@pytest.mark.parametrize("quality", [None, 95])
def test_pictures_and_skeleton_name_the_frames_they_are_of(
    tmp_path: Path, quality: int | None
) -> None:
    write_scene(tmp_path / "bag", scene(NUM_FRAMES), BagOptions(jpeg_quality=quality))
    with BagReader(tmp_path / "bag") as reader:
        export = export_frames(reader, tmp_path / "out", every=2, labels=["red", " green", "red"])
        entries = reader.entries(export.topic)
    assert (export.num_frames, export.num_bad) == (3, 0)
    stamps = [entries[k].stamp_ns for k in (0, 2, 4)]
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == [*(f"{stamp}.jpg" for stamp in stamps), "truth.json"]
    for stamp, boxes in zip(stamps, scene(NUM_FRAMES)[::2], strict=True):
        picture = np.asarray(Image.open(tmp_path / "out" / f"{stamp}.jpg")).astype(int)
        assert np.abs(picture - paint(boxes)).mean() < 5
    truth = read_truth(tmp_path / "out" / "truth.json")
    assert truth.labels == ("red", "green")
    found = frames_with_truth(truth, export.topic, [entry.stamp_ns for entry in entries])
    assert sorted(found) == [0, 2, 4]
    assert COCO(str(tmp_path / "out" / "truth.json")).getImgIds() == [1, 2, 3]


def test_a_skeleton_without_labels_is_truth_without_labels(bag: Path, tmp_path: Path) -> None:
    with BagReader(bag) as reader:
        export_frames(reader, tmp_path / "out")
    document = json.loads((tmp_path / "out" / "truth.json").read_text())
    assert (document["annotations"], document["categories"]) == ([], [])
    assert {image["topic"] for image in document["images"]} == {TOPIC}


def test_frames_that_cannot_be_decoded_are_left_out_and_counted(bag: Path, tmp_path: Path) -> None:
    torn = rewrite(
        bag,
        tmp_path / "torn",
        lambda k, message: replace(message, data=message.data[:9]) if k in (1, 4) else message,
    )
    calls = []
    with BagReader(torn) as reader:
        export = export_frames(reader, tmp_path / "out", on_frame=lambda: calls.append(1))
    assert (export.num_frames, export.num_bad, len(calls)) == (3, 2, NUM_FRAMES)
    assert len(json.loads((tmp_path / "out" / "truth.json").read_text())["images"]) == 3


def test_a_recording_of_nothing_readable_leaves_nothing(bag: Path, tmp_path: Path) -> None:
    torn = rewrite(bag, tmp_path / "torn", lambda _, m: replace(m, data=m.data[:9]))
    with BagReader(torn) as reader:
        with pytest.raises(
            BagError, match=r"has no readable image on /camera/image_raw/compressed: "
        ):
            export_frames(reader, tmp_path / "out")
        (topic,) = image_topics(reader)
    assert topic.size_px is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bag", "torn"]


def test_two_frames_of_one_stamp_are_refused(bag: Path, tmp_path: Path) -> None:
    def same(_: int, message: Any) -> Any:
        stamp = replace(message.header.stamp, sec=7, nanosec=8)
        return replace(message, header=replace(message.header, stamp=stamp))

    twice = rewrite(bag, tmp_path / "twice", same)
    with BagReader(twice) as reader:
        with pytest.raises(BagError, match="two frames stamped 7000000008; no label"):
            export_frames(reader, tmp_path / "out")
        assert export_frames(reader, tmp_path / "out", every=NUM_FRAMES).num_frames == 1


def test_an_output_that_holds_something_is_refused(bag: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.jpg").write_text("mine")
    with BagReader(bag) as reader:
        with pytest.raises(BagError, match="holds files already"):
            export_frames(reader, tmp_path / "out")
        with pytest.raises(BagError, match="cannot be written: File exists"):
            export_frames(reader, tmp_path / "out" / "mine.jpg" / "out")
        with pytest.raises(InputError, match="every must be at least 1, got 0"):
            export_frames(reader, tmp_path / "new", every=0)
    assert (tmp_path / "out" / "mine.jpg").read_text() == "mine"


def test_topics_are_listed_with_their_stamps(tmp_path: Path) -> None:
    options = BagOptions(topic="/front/rgb", jpeg_quality=None)
    write_scene(tmp_path / "bag", scene(3), options, Fraction(20))
    with BagReader(tmp_path / "bag") as reader:
        (topic,) = image_topics(reader)
    assert (topic.topic, topic.msgtype, topic.size_px) == (
        "/front/rgb",
        "sensor_msgs/msg/Image",
        (160, 120),
    )
    assert list(topic.stamps_ns) == [1_000_000_000, 1_050_000_000, 1_100_000_000]


def test_a_topic_without_messages_is_listed_as_empty(tmp_path: Path) -> None:
    store = get_typestore(Stores.ROS2_HUMBLE)
    with Writer(tmp_path / "bag", version=8, storage_plugin=StoragePlugin.MCAP) as writer:
        writer.add_connection("/idle", "sensor_msgs/msg/Image", typestore=store)
        text = writer.add_connection("/chatter", "std_msgs/msg/String", typestore=store)
        hello = store.types["std_msgs/msg/String"]("hello")
        writer.write(text, 1, store.serialize_cdr(hello, "std_msgs/msg/String"))
    with BagReader(tmp_path / "bag") as reader:
        (topic,) = image_topics(reader)
    assert (topic.topic, topic.size_px, list(topic.stamps_ns)) == ("/idle", None, [])


def test_a_recording_without_images_says_what_it_has(tmp_path: Path) -> None:
    store = get_typestore(Stores.ROS2_HUMBLE)
    with Writer(tmp_path / "bag", version=8, storage_plugin=StoragePlugin.MCAP) as writer:
        text = writer.add_connection("/chatter", "std_msgs/msg/String", typestore=store)
        hello = store.types["std_msgs/msg/String"]("hello")
        writer.write(text, 1, store.serialize_cdr(hello, "std_msgs/msg/String"))
    with BagReader(tmp_path / "bag") as reader, pytest.raises(BagError, match="/chatter"):
        image_topics(reader)
