from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from painted import HEIGHT_PX, WIDTH_PX, paint, scene, write_scene
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore

from photon_ros.core.errors import BagError, InputError
from photon_ros.replay.bag_writer import (
    BagOptions,
    bag_from_video,
    frame_stamp_ns,
    write_bag,
)
from photon_ros.replay.video import Video, exact_rate, parse_fps


def messages_of(bag: Path) -> list[tuple[str, int, Any]]:
    """Return (topic, recording time, message), read without the code under test."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    with Reader(bag) as reader:
        return [
            (connection.topic, log_ns, store.deserialize_cdr(raw, connection.msgtype))
            for connection, log_ns, raw in reader.messages()
        ]


def write_video(path: Path, num_frames: int = 5, fps: float = 10.0) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), fps, (WIDTH_PX, HEIGHT_PX))
    for boxes in scene(num_frames):
        writer.write(paint(boxes)[:, :, ::-1])
    writer.release()
    return path


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("quality", [None, 95])
def test_a_bag_holds_every_frame_with_its_stamp_in_header_and_log(
    tmp_path: Path, storage: Any, quality: int | None
) -> None:
    frames = scene(7)
    options = BagOptions(storage=storage, jpeg_quality=quality, start_ns=5_000_000_000)
    summary = write_scene(tmp_path / "bag", frames, options, Fraction(30))
    stored = messages_of(tmp_path / "bag")
    assert len(stored) == 7
    for k, (topic, log_ns, message) in enumerate(stored):
        stamp_ns = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        assert stamp_ns == log_ns == 5_000_000_000 + round(k * 1e9 / 30)
        assert message.header.frame_id == "camera"
        wanted = paint(frames[k])
        if quality is None:
            assert topic == "/camera/image_raw"
            assert (message.encoding, message.step) == ("rgb8", 3 * WIDTH_PX)
            assert np.array_equal(message.data.reshape(wanted.shape), wanted)
        else:
            assert topic == "/camera/image_raw/compressed"
            assert message.format == "jpeg"
            picture = cv2.imdecode(message.data, cv2.IMREAD_COLOR)[:, :, ::-1]
            assert np.abs(picture.astype(int) - wanted).mean() < 3
    assert summary.num_frames == 7
    assert (summary.width_px, summary.height_px) == (WIDTH_PX, HEIGHT_PX)
    assert (summary.first_stamp_ns, summary.last_stamp_ns) == (stored[0][1], stored[-1][1])
    suffix = ".mcap" if storage == "mcap" else ".db3"
    assert sorted(file.name for file in (tmp_path / "bag").iterdir()) == [
        f"bag{suffix}",
        "metadata.yaml",
    ]


@given(
    index=st.integers(0, 10**9),
    numerator=st.integers(1, 240_000),
    denominator=st.integers(1, 2000),
    start_ns=st.integers(0, 2**61),
)
def test_stamps_are_within_half_a_nanosecond_of_the_exact_value_and_never_drift(
    index: int, numerator: int, denominator: int, start_ns: int
) -> None:
    fps = Fraction(numerator, denominator)
    exact = start_ns + Fraction(index * 10**9) / fps
    assert abs(frame_stamp_ns(index, fps, start_ns) - exact) <= Fraction(1, 2)


def test_ten_hertz_for_a_year_is_still_exact() -> None:
    assert frame_stamp_ns(315_360_000, Fraction(10), 10**9) == 31_536_001_000_000_000


@pytest.mark.parametrize(
    ("text", "fps"),
    [
        ("10", Fraction(10)),
        (" 29.97 ", Fraction(2997, 100)),
        ("30000/1001", Fraction(30000, 1001)),
        ("1e1", Fraction(10)),
        ("0.5", Fraction(1, 2)),
    ],
)
def test_frame_rates_are_exact(text: str, fps: Fraction) -> None:
    assert parse_fps(text) == fps


@pytest.mark.parametrize(
    "text",
    ["", "ten", "0", "-5", "1/0", "nan", "inf", "1e12", "30,0", "1e999999999", "2_5", "9" * 5000],
)
def test_a_frame_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="frame rate"):
        parse_fps(text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": "camera"}, "not a full ROS name"),
        ({"topic": "/"}, "not a full ROS name"),
        ({"topic": "/a//b"}, "not a full ROS name"),
        ({"topic": "/1camera"}, "not a full ROS name"),
        ({"topic": "/a b"}, "not a full ROS name"),
        ({"topic": "/a/"}, "not a full ROS name"),
        ({"start_ns": -1}, ">= 0"),
        ({"storage": "rosbag"}, "mcap or sqlite3"),
        ({"jpeg_quality": 0}, "1..100"),
        ({"jpeg_quality": 101}, "1..100"),
    ],
)
def test_options_that_make_no_bag_are_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        BagOptions(**change)


def test_a_video_keeps_its_own_rate_unless_told_otherwise(tmp_path: Path) -> None:
    video = write_video(tmp_path / "clip.avi", fps=25.0)
    assert bag_from_video(video, tmp_path / "own", BagOptions()).fps == 25
    told = bag_from_video(video, tmp_path / "told", BagOptions(), fps=Fraction(10))
    assert told.fps == 10
    assert [log_ns for _, log_ns, _ in messages_of(tmp_path / "told")] == [
        1_000_000_000 + k * 100_000_000 for k in range(5)
    ]


def test_a_fractional_rate_is_read_back_as_its_ratio(tmp_path: Path) -> None:
    with Video(write_video(tmp_path / "clip.avi", fps=12.5)) as video:
        assert video.fps == Fraction(25, 2)
    for rate in (Fraction(30000, 1001), Fraction(24000, 1001), Fraction(25), Fraction(2997, 100)):
        assert exact_rate(float(rate)) == rate


def test_each_frame_is_reported_once(tmp_path: Path) -> None:
    calls = []
    video = write_video(tmp_path / "clip.avi")
    bag_from_video(video, tmp_path / "bag", BagOptions(), on_frame=lambda: calls.append(1))
    assert len(calls) == 5


def test_frames_are_written_as_they_come(tmp_path: Path) -> None:
    """Nothing is kept: each picture can be dropped before the next one is made."""
    alive = 0

    def frames() -> Iterator[NDArray[np.uint8]]:
        nonlocal alive
        import weakref

        for boxes in scene(20):
            picture = np.array(paint(boxes)[:, :, ::-1])
            alive += 1

            def gone() -> None:
                nonlocal alive
                alive -= 1

            weakref.finalize(picture, gone)
            yield picture
            assert alive <= 2

    write_bag(tmp_path / "bag", frames(), Fraction(10), BagOptions())


def test_an_empty_folder_may_be_the_output(tmp_path: Path) -> None:
    (tmp_path / "bag").mkdir()
    write_scene(tmp_path / "bag", scene(2))
    assert len(messages_of(tmp_path / "bag")) == 2


def test_missing_parents_are_made(tmp_path: Path) -> None:
    write_scene(tmp_path / "a" / "b" / "bag", scene(1))
    assert len(messages_of(tmp_path / "a" / "b" / "bag")) == 1


@pytest.mark.parametrize("kind", ["file", "full", "dangling", "link"])
def test_an_output_that_is_taken_is_refused_and_untouched(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "bag"
    if kind == "file":
        out.write_text("mine")
    elif kind == "full":
        out.mkdir()
        (out / "mine.txt").write_text("mine")
    elif kind == "dangling":
        out.symlink_to(tmp_path / "nowhere")
    else:
        (tmp_path / "elsewhere").mkdir()
        out.symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BagError, match="already"):
        write_scene(out, scene(1))
    assert sorted(tmp_path.rglob("*")) == before


def test_the_current_folder_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bag would take its place, and whoever stands in it would stand nowhere."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out in (Path(), tmp_path / "here"):
        with pytest.raises(BagError, match=r"is the current folder; give a new one"):
            write_scene(out, scene(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, Interrupt])
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_failure_half_way_leaves_nothing(
    tmp_path: Path, error: type[BaseException], storage: Any
) -> None:
    def frames() -> Iterator[NDArray[np.uint8]]:
        yield paint([])
        yield paint([])
        raise error

    with pytest.raises(error):
        write_bag(tmp_path / "bag", frames(), Fraction(10), BagOptions(storage=storage))
    assert list(tmp_path.iterdir()) == []


def test_no_frames_make_no_bag(tmp_path: Path) -> None:
    with pytest.raises(BagError, match="at least one picture"):
        write_bag(tmp_path / "bag", iter([]), Fraction(10), BagOptions())
    assert list(tmp_path.iterdir()) == []


def test_a_stamp_too_large_for_ros_is_refused(tmp_path: Path) -> None:
    late = BagOptions(start_ns=2**31 * 10**9 - 150_000_000)
    with pytest.raises(BagError, match="frame 2 is past"):
        write_scene(tmp_path / "bag", scene(3), late)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_bag_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BagError, match="cannot be written"):
        write_scene(tmp_path / "file" / "bag", scene(1))


def test_sqlite_bags_open_with_plain_sqlite(tmp_path: Path) -> None:
    write_scene(tmp_path / "bag", scene(3), BagOptions(storage="sqlite3"))
    with sqlite3.connect(tmp_path / "bag" / "bag.db3") as database:
        rows = database.execute("SELECT timestamp FROM messages ORDER BY timestamp").fetchall()
    database.close()
    assert [row[0] for row in rows] == [1_000_000_000, 1_100_000_000, 1_200_000_000]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "does not exist"), (b"", "0 bytes"), (b"text, not video\n" * 50, "cannot be read")],
)
def test_what_is_no_video_is_a_bag_error(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "clip.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BagError, match=reason):
        bag_from_video(path, tmp_path / "bag", BagOptions())
    assert not (tmp_path / "bag").exists()


@pytest.mark.parametrize(
    "name", ["one.png", "one.jpg", "one.bmp", "one.tiff", "one.webp", "one.gif"]
)
def test_a_still_picture_is_no_video(name: str, tmp_path: Path) -> None:
    PIL.Image.new("RGB", (64, 48), "red").save(tmp_path / name)
    with pytest.raises(BagError, match=f"{name} is a still picture, not a video"):
        bag_from_video(tmp_path / name, tmp_path / "bag", BagOptions(), fps=Fraction(10))
    assert not (tmp_path / "bag").exists()


def test_moving_pictures_and_a_film_of_one_frame_are_videos(tmp_path: Path) -> None:
    pictures = [PIL.Image.new("RGB", (64, 48), colour) for colour in ("red", "green", "blue")]
    gif = tmp_path / "film.gif"
    pictures[0].save(gif, save_all=True, append_images=pictures[1:], duration=100)
    assert bag_from_video(gif, tmp_path / "gif_bag", BagOptions()).num_frames == 3
    jpegs = tmp_path / "film.mjpeg"
    with jpegs.open("wb") as film:
        for picture in pictures:
            picture.save(film, "JPEG")
    assert bag_from_video(jpegs, tmp_path / "bag", BagOptions(), fps=Fraction(10)).num_frames == 3
    short = write_video(tmp_path / "short.avi", num_frames=1)
    assert bag_from_video(short, tmp_path / "short_bag", BagOptions()).num_frames == 1


def test_a_place_that_takes_no_files_is_named_as_it_was_given() -> None:
    out = Path("/proc/some_bag")
    if not out.parent.is_dir():
        pytest.skip("no /proc here")
    with pytest.raises(BagError) as caught:
        write_bag(out, iter([np.zeros((4, 4, 3), np.uint8)]), Fraction(1), BagOptions())
    assert str(caught.value) == f"bag {out} cannot be written: No such file or directory"


def test_a_folder_is_no_video(tmp_path: Path) -> None:
    with pytest.raises(BagError, match="is not a file"):
        Video(tmp_path)


def test_a_video_cut_off_gives_the_frames_it_has(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.avi", num_frames=30).read_bytes()
    (tmp_path / "cut.avi").write_bytes(whole[: len(whole) // 2])
    summary = bag_from_video(tmp_path / "cut.avi", tmp_path / "bag", BagOptions())
    assert 5 < summary.num_frames < 30


@pytest.mark.parametrize("has_level", [True, False])
def test_a_video_is_read_with_the_logging_of_opencv_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_level: bool
) -> None:
    """cv2.utils.logging came with OpenCV 5; before, the level was set in cv2, or nowhere."""
    video = write_video(tmp_path / "clip.avi", 3)
    levels: list[int] = []
    monkeypatch.delattr(cv2.utils, "logging", raising=False)
    if has_level:
        monkeypatch.setattr(cv2, "setLogLevel", levels.append, raising=False)
    summary = bag_from_video(video, tmp_path / "bag", BagOptions())
    assert summary.num_frames == 3
    assert levels == ([0] if has_level else [])


def test_a_video_without_a_frame_is_named(tmp_path: Path) -> None:
    """A container that is whole, with nothing in it."""
    video = write_video(tmp_path / "clip.avi", 1)
    with Video(video) as opened:
        assert len(list(opened.frames_bgr())) == 1
        with pytest.raises(BagError, match=r"clip\.avi holds no frame that can be decoded"):
            next(opened.frames_bgr())  # it is at its end
