from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from painted import paint, scene, write_scene
from rosbags.rosbag1 import Writer as Ros1Writer
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from photon_ros.core.errors import BagError
from photon_ros.replay.bag_reader import BagReader
from photon_ros.replay.bag_writer import BagOptions

ROS2 = get_typestore(Stores.ROS2_HUMBLE)
ROS1 = get_typestore(Stores.ROS1_NOETIC)


def image_message(pixels: Any, stamp_ns: int, store: Any = ROS2, **change: Any) -> Any:
    header: dict[str, Any] = {
        "stamp": store.types["builtin_interfaces/msg/Time"](stamp_ns // 10**9, stamp_ns % 10**9),
        "frame_id": "cam",
    }
    if store is ROS1:
        header["seq"] = 0
    fields: dict[str, Any] = {
        "header": store.types["std_msgs/msg/Header"](**header),
        "height": pixels.shape[0],
        "width": pixels.shape[1],
        "encoding": "rgb8",
        "is_bigendian": 0,
        "step": 3 * pixels.shape[1],
        "data": pixels.reshape(-1),
    }
    return store.types["sensor_msgs/msg/Image"](**(fields | change))


def write_messages(
    path: Path,
    messages: Sequence[tuple[str, int, str, Any]],
    storage: StoragePlugin = StoragePlugin.MCAP,
    serialization: str = "cdr",
) -> Path:
    """Write (topic, log_ns, message type, message or bytes)."""
    with Writer(path, version=8, storage_plugin=storage) as bag:
        connections: dict[str, Any] = {}
        for topic, log_ns, kind, message in messages:
            if topic not in connections:
                connections[topic] = bag.add_connection(
                    topic, kind, typestore=ROS2, serialization_format=serialization
                )
            raw = message if isinstance(message, bytes) else ROS2.serialize_cdr(message, kind)
            bag.write(connections[topic], log_ns, raw)
    return path


IMAGE = "sensor_msgs/msg/Image"
STRING = "std_msgs/msg/String"
TEXT = ROS2.types[STRING]("hello")
PICTURE = paint([("red", 10, 20, 30, 40)])


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("quality", [None, 95])
def test_what_was_written_is_read_back(tmp_path: Path, storage: Any, quality: int | None) -> None:
    frames = scene(6)
    write_scene(tmp_path / "bag", frames, BagOptions(storage=storage, jpeg_quality=quality))
    with BagReader(tmp_path / "bag") as reader:
        assert reader.storage == storage
        topic = reader.select_topic("/camera/image_raw")
        entries = reader.entries(topic)
        items = list(reader.frames(topic))
    assert [entry.stamp_ns for entry in entries] == [
        1_000_000_000 + 100_000_000 * k for k in range(6)
    ]
    assert [item.index for item in items] == list(range(6))
    for entry, item, boxes in zip(entries, items, frames, strict=True):
        assert item.frame is not None
        assert item.stamp_ns == item.frame.stamp_ns == entry.stamp_ns == entry.log_ns
        assert (item.frame.frame_id, item.frame.camera) == ("camera", topic)
        assert item.frame.sequence == item.index
        error = np.abs(item.frame.image.astype(int) - paint(boxes))
        assert error.max() == 0 if quality is None else error.mean() < 3


def test_a_single_file_is_enough(tmp_path: Path) -> None:
    for storage, suffix in (("mcap", ".mcap"), ("sqlite3", ".db3")):
        folder = tmp_path / storage
        write_scene(folder, scene(3), BagOptions(storage=storage))  # type: ignore[arg-type]
        (folder / "metadata.yaml").unlink()
        for path in (folder, folder / f"{storage}{suffix}"):
            with BagReader(path) as reader:
                topic = reader.select_topic()
                assert reader.storage == storage
                assert len(list(reader.frames(topic))) == 3


def test_a_split_recording_without_metadata_is_read_in_order(tmp_path: Path) -> None:
    for part in range(3):
        stamps = [part * 2, part * 2 + 1]
        write_messages(
            tmp_path / f"part{part}",
            [("/cam", k * 10**9, IMAGE, image_message(PICTURE, k * 10**9)) for k in stamps],
        )
    joined = tmp_path / "joined"
    joined.mkdir()
    for part in (2, 0, 1):
        (tmp_path / f"part{part}" / f"part{part}.mcap").rename(joined / f"{9 - part}.mcap")
    with BagReader(joined) as reader:
        assert [entry.stamp_ns // 10**9 for entry in reader.entries("/cam")] == list(range(6))


def test_ros1_bags_are_read(tmp_path: Path) -> None:
    with Ros1Writer(tmp_path / "old.bag") as bag:
        connection = bag.add_connection("/cam", IMAGE, typestore=ROS1)
        for k in (1, 2):
            message = image_message(PICTURE, k * 10**9 + 5, ROS1)
            bag.write(connection, k * 10**9 + 77, ROS1.serialize_ros1(message, IMAGE))
    with BagReader(tmp_path / "old.bag") as reader:
        assert reader.storage == "ros1"
        topic = reader.select_topic()
        assert [(e.stamp_ns, e.log_ns) for e in reader.entries(topic)] == [
            (1_000_000_005, 1_000_000_077),
            (2_000_000_005, 2_000_000_077),
        ]
        frames = [item.frame for item in reader.frames(topic)]
    assert all(frame is not None and np.array_equal(frame.image, PICTURE) for frame in frames)


def test_only_wanted_frames_are_decoded(tmp_path: Path) -> None:
    write_scene(tmp_path / "bag", scene(8))
    with BagReader(tmp_path / "bag") as reader:
        topic = reader.select_topic()
        assert [item.index for item in reader.frames(topic, {2, 5, 99})] == [2, 5]
        assert list(reader.frames(topic, set())) == []


@pytest.mark.parametrize("quality", [None, 95])
def test_sizes_are_those_of_the_wanted_frames(tmp_path: Path, quality: int | None) -> None:
    write_scene(tmp_path / "bag", scene(8), BagOptions(jpeg_quality=quality))
    with BagReader(tmp_path / "bag") as reader:
        sizes = reader.sizes(reader.select_topic(), {2, 5, 99})
        assert list(sizes) == [(2, 160, 120), (5, 160, 120)]


@pytest.mark.parametrize("change", [{"width": 0}, {"width": 170}, {"encoding": "martian"}])
def test_a_damaged_image_has_no_size(tmp_path: Path, change: dict[str, Any]) -> None:
    messages = [image_message(PICTURE, 0), image_message(PICTURE, 1, **change)]
    raws: list[Any] = [*messages, b"\x00\x01\x00\x00"]
    write_messages(tmp_path / "bag", [("/cam", k, IMAGE, raw) for k, raw in enumerate(raws)])
    with BagReader(tmp_path / "bag") as reader:
        assert list(reader.sizes("/cam", {0, 1, 2})) == [(0, 160, 120)]


def test_the_stamp_is_the_headers_not_the_recorders(tmp_path: Path) -> None:
    late = [("/cam", 50 * 10**9 - k, IMAGE, image_message(PICTURE, k)) for k in (7, 6)]
    write_messages(tmp_path / "bag", late)
    with BagReader(tmp_path / "bag") as reader:
        assert [entry.stamp_ns for entry in reader.entries("/cam")] == [7, 6]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"encoding": "martian"}, "encoding 'martian'"),
        ({"step": 1}, "step is 1"),
        ({"width": 0}, "no pixels"),
        ({"data": np.zeros(5, np.uint8)}, "has 5 bytes"),
        ({"encoding": "16UC1", "step": 640}, "depth_policy"),
    ],
)
def test_one_bad_image_is_told_and_the_rest_still_read(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    messages = [image_message(PICTURE, k) for k in range(3)]
    messages[1] = image_message(PICTURE, 1, **change)
    write_messages(tmp_path / "bag", [("/cam", k, IMAGE, m) for k, m in enumerate(messages)])
    with BagReader(tmp_path / "bag") as reader:
        items = list(reader.frames("/cam"))
    assert [item.frame is None for item in items] == [False, True, False]
    assert reason in items[1].error
    assert items[1].stamp_ns == 1


@pytest.mark.parametrize("raw", [b"", b"\x00\x01\x00\x00", b"\x00\x01\x00\x00" + b"\xff" * 40])
def test_a_message_that_is_cut_off_is_a_bad_frame_at_its_recording_time(
    tmp_path: Path, raw: bytes
) -> None:
    write_messages(tmp_path / "bag", [("/cam", 42, IMAGE, raw)])
    with BagReader(tmp_path / "bag") as reader:
        [entry] = reader.entries("/cam")
        [item] = reader.frames("/cam")
    assert item.frame is None
    assert "damaged" in item.error
    assert item.stamp_ns == entry.stamp_ns
    if len(raw) < 12:
        assert entry.stamp_ns == 42


# --- topics ----------------------------------------------------------------------------------


def two_cameras(path: Path) -> Path:
    return write_messages(
        path,
        [
            ("/left/image_raw", 1, IMAGE, image_message(PICTURE, 1)),
            ("/right/image_raw", 2, IMAGE, image_message(PICTURE, 2)),
            ("/chatter", 3, STRING, TEXT),
        ],
    )


def test_the_only_image_topic_is_taken_unasked(tmp_path: Path) -> None:
    bag = write_messages(
        tmp_path / "bag",
        [("/chatter", 1, STRING, TEXT), ("/cam", 2, IMAGE, image_message(PICTURE, 2))],
    )
    with BagReader(bag) as reader:
        assert reader.select_topic() == "/cam"


def test_of_several_image_topics_one_must_be_chosen(tmp_path: Path) -> None:
    with BagReader(two_cameras(tmp_path / "bag")) as reader:
        with pytest.raises(BagError, match=r"several image topics.*left.*right"):
            reader.select_topic()
        assert reader.select_topic("/right/image_raw") == "/right/image_raw"


def test_an_unknown_topic_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    with (
        BagReader(two_cameras(tmp_path / "bag")) as reader,
        pytest.raises(BagError, match=r"'/back' is not in the bag.*left/image_raw, /right"),
    ):
        reader.select_topic("/back")


def test_a_topic_of_another_type_is_told_apart_from_an_unknown_one(tmp_path: Path) -> None:
    with (
        BagReader(two_cameras(tmp_path / "bag")) as reader,
        pytest.raises(BagError, match="'/chatter' holds std_msgs/msg/String, not images"),
    ):
        reader.select_topic("/chatter")


def test_a_bag_without_images_names_what_it_has(tmp_path: Path) -> None:
    bag = write_messages(tmp_path / "bag", [("/chatter", 1, STRING, TEXT)])
    with (
        BagReader(bag) as reader,
        pytest.raises(BagError, match=r"no image topics; it has /chatter \(std_msgs/msg/String\)"),
    ):
        reader.select_topic()


def test_many_other_topics_are_not_all_listed(tmp_path: Path) -> None:
    bag = write_messages(tmp_path / "bag", [(f"/topic_{k:03}", k, STRING, TEXT) for k in range(40)])
    with BagReader(bag) as reader, pytest.raises(BagError, match="and 28 more") as caught:
        reader.select_topic()
    assert len(str(caught.value)) < 800


def test_a_topic_without_messages_is_an_error(tmp_path: Path) -> None:
    with Writer(tmp_path / "bag", version=8) as bag:
        bag.add_connection("/cam", IMAGE, typestore=ROS2)
        text = bag.add_connection("/chatter", STRING, typestore=ROS2)
        bag.write(text, 1, ROS2.serialize_cdr(TEXT, STRING))
    with (
        BagReader(tmp_path / "bag") as reader,
        pytest.raises(BagError, match="no messages on /cam"),
    ):
        reader.entries(reader.select_topic())


def test_a_bag_in_another_serialization_is_refused(tmp_path: Path) -> None:
    bag = write_messages(tmp_path / "bag", [("/cam", 1, IMAGE, b"data")], serialization="martian")
    with pytest.raises(BagError, match="martian"), BagReader(bag):
        pass
    single = write_messages(
        tmp_path / "two", [("/cam", 1, IMAGE, b"data")], serialization="martian"
    )
    with pytest.raises(BagError, match="serialized as 'martian'"), BagReader(single / "two.mcap"):
        pass


# --- files that are no recordings ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.mcap", None, "does not exist"),
        ("notes.txt", b"text", "is not a bag"),
        ("empty.mcap", b"", "0 bytes"),
        ("empty.bag", b"", "0 bytes"),
        ("text.mcap", b"text, not a bag" * 10, "cannot be read as a bag"),
        ("text.db3", b"text, not a bag" * 10, "cannot be read as a bag"),
        ("text.bag", b"text, not a bag" * 10, "cannot be read as a bag"),
    ],
)
def test_a_file_that_is_no_bag_is_a_bag_error(
    tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BagError, match=reason) as caught, BagReader(path):
        pass
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("metadata", [None, "", "a: [", "rosbag2_bagfile_information: 3", "x: y"])
def test_a_folder_that_is_no_bag_is_a_bag_error(tmp_path: Path, metadata: str | None) -> None:
    if metadata is not None:
        (tmp_path / "metadata.yaml").write_text(metadata)
    with (
        pytest.raises(BagError, match=r"is not a bag|cannot be read as a bag"),
        BagReader(tmp_path),
    ):
        pass


def everything(path: Path) -> int:
    """Read a recording as an evaluation would; return how many frames it gave."""
    with BagReader(path) as reader:
        topic = reader.select_topic()
        reader.entries(topic)
        return sum(item.frame is not None for item in reader.frames(topic))


@pytest.fixture(scope="module", params=["mcap", "sqlite3"])
def sound_bag(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    bag = tmp_path_factory.mktemp("sound") / "bag"
    write_scene(bag, scene(4), BagOptions(storage=request.param))
    return bag


def storage_file(bag: Path) -> Path:
    return next(file for file in bag.iterdir() if file.suffix != ".yaml")


def is_read_or_refused_in_one_line(path: Path) -> bool:
    """Return False if reading raises anything but a BagError of one line."""
    try:
        return everything(path) <= 4
    except BagError as error:
        return "\n" not in str(error)


@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_recording_cut_anywhere_is_a_bag_error_or_shorter(
    sound_bag: Path, tmp_path: Path, data: st.DataObject
) -> None:
    cut = tmp_path / "bag"
    shutil.copytree(sound_bag, cut, dirs_exist_ok=True)
    whole = storage_file(sound_bag).read_bytes()
    storage_file(cut).write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert is_read_or_refused_in_one_line(cut)
    assert is_read_or_refused_in_one_line(storage_file(cut))


@given(data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_recording_with_damaged_bytes_never_raises_anything_else(
    sound_bag: Path, tmp_path: Path, data: st.DataObject
) -> None:
    damaged = tmp_path / "bag"
    shutil.copytree(sound_bag, damaged, dirs_exist_ok=True)
    content = bytearray(storage_file(sound_bag).read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(content) - 9))
        content[place : place + 8] = data.draw(st.binary(min_size=8, max_size=8))
    storage_file(damaged).write_bytes(content)
    assert is_read_or_refused_in_one_line(damaged)


# --- recordings made by others ---------------------------------------------------------------


def test_a_real_ros1_camera_bag(shared: Path) -> None:
    with BagReader(shared / "data/bags/aruco_images.bag") as reader:
        topic = reader.select_topic()
        assert topic == "/raspicam_node/image/compressed"
        [item] = reader.frames(topic)
    assert item.frame is not None
    assert (item.frame.width_px, item.frame.height_px) == (1280, 960)
    assert item.frame.frame_id == "raspicam"
    assert item.stamp_ns == 1491682360314066469


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("empty_bag_0.db3", "is an empty bag"),
        ("only_services.mcap", "no image topics; it has /add_two_ints/_service_event"),
        ("truncated.mcap", "cut off"),
        ("wrong_rmw_test_0.mcap", "'wrong_format'; only 'cdr' is read"),
        ("README.md", "is not a bag"),
    ],
)
def test_public_recordings_without_images_say_why(shared: Path, name: str, reason: str) -> None:
    with pytest.raises(BagError, match=reason):
        everything(shared / "data/bags" / name)
