"""Write a ROS 2 bag of one camera from a stream of pictures.

The bag appears under its name only when it is complete: it is built beside it and moved into
place at the end, so a failure or an interrupt leaves nothing that looks like a recording.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from rosbags.rosbag2 import StoragePlugin, Writer, WriterError
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.stores.ros2_humble import (
    builtin_interfaces__msg__Time as Time,
)
from rosbags.typesys.stores.ros2_humble import (
    sensor_msgs__msg__CompressedImage as CompressedImage,
)
from rosbags.typesys.stores.ros2_humble import (
    sensor_msgs__msg__Image as Image,
)
from rosbags.typesys.stores.ros2_humble import (
    std_msgs__msg__Header as Header,
)

from photon_ros.core.errors import BagError, InputError
from photon_ros.replay.new_folder import check_free, new_folder
from photon_ros.replay.video import Video

BagFormat = Literal["mcap", "sqlite3"]

NS_PER_S: Final = 1_000_000_000
DEFAULT_TOPIC: Final = "/camera/image_raw"
DEFAULT_START_NS: Final = NS_PER_S
DEFAULT_JPEG_QUALITY: Final = 95
_TOPIC_NAME: Final = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+")
_PLUGINS: Final = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}
# Version 8 keeps quality of service as text, which every distribution since Humble reads.
_METADATA_VERSION: Final = 8


@dataclass(frozen=True, slots=True)
class BagOptions:
    """How the pictures are stored.

    Attributes:
        topic: topic of the raw images; JPEG images go to ``topic``/compressed.
        start_ns: stamp of the first frame, nanoseconds.
        storage: storage plugin of the bag.
        jpeg_quality: 1..100, or None for raw rgb8 images.
    """

    topic: str = DEFAULT_TOPIC
    start_ns: int = DEFAULT_START_NS
    storage: BagFormat = "mcap"
    jpeg_quality: int | None = DEFAULT_JPEG_QUALITY

    def __post_init__(self) -> None:
        if not _TOPIC_NAME.fullmatch(self.topic):
            raise InputError(f"topic {self.topic!r} is not a full ROS name (as in {DEFAULT_TOPIC})")
        if self.start_ns < 0:
            raise InputError(f"start must be >= 0 ns, got {self.start_ns}")
        if self.storage not in _PLUGINS:
            raise InputError(f"format must be mcap or sqlite3, got {self.storage!r}")
        if self.jpeg_quality is not None and not 1 <= self.jpeg_quality <= 100:
            raise InputError(f"JPEG quality must be in 1..100, got {self.jpeg_quality}")

    @property
    def image_topic(self) -> str:
        """The topic the images are really on."""
        return self.topic if self.jpeg_quality is None else f"{self.topic}/compressed"


@dataclass(frozen=True, slots=True)
class BagSummary:
    """What was written."""

    topic: str
    num_frames: int
    width_px: int
    height_px: int
    fps: Fraction
    first_stamp_ns: int
    last_stamp_ns: int
    size_bytes: int


def frame_stamp_ns(index: int, fps: Fraction, start_ns: int) -> int:
    """Return start + index / fps, rounded to the nearest nanosecond, exact for any index."""
    doubled = 2 * index * NS_PER_S * fps.denominator
    return start_ns + (doubled + fps.numerator) // (2 * fps.numerator)


def bag_from_video(
    video_path: Path,
    out: Path,
    options: BagOptions,
    *,
    fps: Fraction | None = None,
    on_frame: Callable[[], None] = lambda: None,
) -> BagSummary:
    """Write the frames of a video as a bag; raise BagError and leave nothing on failure.

    Args:
        fps: overrides the frame rate that the video states.
        on_frame: called after each frame written.
    """
    check_free(out)
    with Video(video_path) as video:
        rate = video.fps if fps is None else fps
        return write_bag(out, video.frames_bgr(), rate, options, on_frame=on_frame)


def write_bag(
    out: Path,
    frames_bgr: Iterable[NDArray[np.uint8]],
    fps: Fraction,
    options: BagOptions,
    *,
    on_frame: Callable[[], None] = lambda: None,
) -> BagSummary:
    """Write pictures, (height, width, 3) uint8 blue first, as a bag at ``out``."""
    try:
        # The storage file is named after its folder, so the name must be the final one.
        with new_folder(out) as building:
            summary = _write(building, frames_bgr, fps, options, on_frame)
    except (OSError, sqlite3.Error, WriterError) as error:
        raise BagError(f"bag {out} cannot be written: {_reason(error)}") from error
    return summary


def _reason(error: Exception) -> str:
    """Return what went wrong without the name of the file, which is not the one asked for."""
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


def _write(
    path: Path,
    frames_bgr: Iterable[NDArray[np.uint8]],
    fps: Fraction,
    options: BagOptions,
    on_frame: Callable[[], None],
) -> BagSummary:
    typestore = get_typestore(Stores.ROS2_HUMBLE)
    kind = Image if options.jpeg_quality is None else CompressedImage
    stamp_ns, num_frames = options.start_ns, 0
    shape: tuple[int, ...] = (0, 0, 3)
    with Writer(path, version=_METADATA_VERSION, storage_plugin=_PLUGINS[options.storage]) as bag:
        connection = bag.add_connection(options.image_topic, kind.__msgtype__, typestore=typestore)
        for frame in frames_bgr:
            stamp_ns = frame_stamp_ns(num_frames, fps, options.start_ns)
            if stamp_ns >= 2**31 * NS_PER_S:
                raise BagError(f"stamp of frame {num_frames} is past what a ROS stamp can hold")
            message = _message(frame, stamp_ns, options.jpeg_quality)
            bag.write(connection, stamp_ns, typestore.serialize_cdr(message, kind.__msgtype__))
            num_frames, shape = num_frames + 1, frame.shape
            on_frame()
        if not num_frames:
            raise BagError("a bag needs at least one picture")
    return BagSummary(
        topic=options.image_topic,
        num_frames=num_frames,
        width_px=shape[1],
        height_px=shape[0],
        fps=fps,
        first_stamp_ns=options.start_ns,
        last_stamp_ns=stamp_ns,
        size_bytes=sum(file.stat().st_size for file in path.iterdir()),
    )


def _message(
    frame_bgr: NDArray[np.uint8], stamp_ns: int, jpeg_quality: int | None
) -> Image | CompressedImage:
    header = Header(
        stamp=Time(sec=stamp_ns // NS_PER_S, nanosec=stamp_ns % NS_PER_S), frame_id="camera"
    )
    if jpeg_quality is not None:
        ok, jpeg = cv2.imencode(".jpg", frame_bgr, [cv2.IMWRITE_JPEG_QUALITY, jpeg_quality])
        if not ok:
            raise BagError(f"a frame of shape {frame_bgr.shape} cannot be stored as JPEG")
        return CompressedImage(header=header, format="jpeg", data=jpeg.reshape(-1))
    height, width = frame_bgr.shape[:2]
    rgb = np.ascontiguousarray(frame_bgr[:, :, ::-1])
    return Image(
        header=header,
        height=height,
        width=width,
        encoding="rgb8",
        is_bigendian=0,
        step=3 * width,
        data=rgb.reshape(-1),
    )
