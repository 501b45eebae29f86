"""Read the camera images of a recording: ROS 2 (mcap, sqlite3) and ROS 1 bags.

Takes a bag folder, a folder of storage files whose metadata.yaml is missing, or a single
.mcap, .db3 or .bag file. Only image messages are decoded, from the definitions all
distributions share, so a bag with unknown message types beside them is readable.

A file that cannot be read is a BagError; one image that cannot be decoded is a BagFrame that
says so, because the rest of the recording is still good.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from rosbags.interfaces import Connection, ConnectionExtRosbag2
from rosbags.rosbag1 import Reader as Ros1Reader
from rosbags.rosbag2 import Reader as Ros2Reader
from rosbags.serde import SerdeError
from rosbags.typesys import Stores, get_typestore

from photon_ros.bag_files import storage_files
from photon_ros.core.errors import BagError, ImageError
from photon_ros.core.frame import Frame
from photon_ros.picture_files import compressed_size, decode_compressed
from photon_ros.pixels import DepthPolicy, decode_raw

_Reader = Ros1Reader | Ros2Reader

RAW_IMAGE: Final = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE: Final = "sensor_msgs/msg/CompressedImage"
_MAX_NAMES: Final = 12


@dataclass(frozen=True, slots=True)
class BagEntry:
    """Where and when one image message is: ``index`` counts the messages of its topic."""

    index: int
    stamp_ns: int
    log_ns: int


@dataclass(frozen=True, slots=True)
class BagFrame:
    """One image message: a frame, or the reason why it is none.

    Attributes:
        index: running number of the message on its topic, bad ones counted.
        stamp_ns: stamp of its header; the recording time where the header cannot be read.
        frame: the decoded image; None when ``error`` says why there is none.
    """

    index: int
    stamp_ns: int
    frame: Frame | None
    error: str = ""


class BagReader:
    """One open recording; use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = ExitStack()
        self._readers: list[_Reader] = []
        self._is_ros1 = False
        self._store = get_typestore(Stores.ROS2_HUMBLE)

    def __enter__(self) -> BagReader:
        files = storage_files(self.path)
        self._is_ros1 = files[0].suffix == ".bag"
        try:
            with self._reading():
                for file in files:
                    reader: _Reader = Ros1Reader(file) if self._is_ros1 else Ros2Reader(file)
                    self._stack.enter_context(reader)
                    self._readers.append(reader)
            if self._is_ros1:
                self._store = get_typestore(Stores.ROS1_NOETIC)
            self._check_serialization()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn whatever a damaged file makes the storage code raise into one BagError."""
        try:
            yield
        except BagError:
            raise
        # Corrupt bytes surface as almost anything: struct, unicode, sqlite, zstd, index errors.
        except Exception as error:
            detail = " ".join(str(error).split()) or type(error).__name__
            hint = ""
            if "end magic" in detail or "runcated" in detail:
                hint = " (the file is cut off, or its recorder was killed)"
            raise BagError(f"{self.path} cannot be read as a bag: {detail}{hint}") from error

    def _check_serialization(self) -> None:
        formats = {
            connection.ext.serialization_format
            for connection in self._connections()
            if isinstance(connection.ext, ConnectionExtRosbag2)
        }
        foreign = sorted(formats - {"cdr"})
        if foreign:
            raise BagError(
                f"{self.path} is serialized as {', '.join(map(repr, foreign))}; only 'cdr' is read"
            )

    def _connections(self) -> list[Connection]:
        return [connection for reader in self._readers for connection in reader.connections]

    @property
    def storage(self) -> str:
        """What the bag is stored as: "ros1", "mcap" or "sqlite3"."""
        if self._is_ros1:
            return "ros1"
        names = {file.suffix for file in self.path.iterdir()} if self.path.is_dir() else set()
        return "mcap" if ".mcap" in names | {self.path.suffix} else "sqlite3"

    def image_topics(self) -> dict[str, str]:
        """Return {topic: "sensor_msgs/msg/Image" or "sensor_msgs/msg/CompressedImage"}."""
        return {
            connection.topic: connection.msgtype
            for connection in self._connections()
            if connection.msgtype in (RAW_IMAGE, COMPRESSED_IMAGE)
        }

    def select_topic(self, wanted: str | None = None) -> str:
        """Return the image topic to read; raise BagError that names what there is.

        ``wanted`` T also finds T/compressed; None takes the only image topic.
        """
        images = self.image_topics()
        others = {c.topic: c.msgtype for c in self._connections() if c.topic not in images}
        if not images:
            if not any(reader.message_count for reader in self._readers):
                raise BagError(f"{self.path} is an empty bag: it has no messages")
            raise BagError(f"{self.path} has no image topics; it has {_named(others)}")
        if wanted is None:
            if len(images) > 1:
                raise BagError(
                    f"{self.path} has several image topics, choose one with --topic: "
                    f"{', '.join(sorted(images))}"
                )
            return next(iter(images))
        for name in (wanted, f"{wanted}/compressed"):
            if name in images:
                return name
        what = f"holds {others[wanted]}, not images" if wanted in others else "is not in the bag"
        raise BagError(
            f"topic {wanted!r} {what}; image topics of {self.path}: {', '.join(sorted(images))}"
        )

    def entries(self, topic: str) -> list[BagEntry]:
        """Return stamp and recording time of every image of ``topic``, in recording order.

        Reads the headers only. Raises BagError when there is none.
        """
        entries = [
            BagEntry(index, self._stamp_ns(raw, log_ns), log_ns)
            for index, (log_ns, raw) in enumerate(self._messages(topic))
        ]
        if not entries:
            raise BagError(f"{self.path} has no messages on {topic}")
        return entries

    def frames(
        self,
        topic: str,
        wanted: Collection[int] | None = None,
        *,
        depth_policy: DepthPolicy = "reject",
    ) -> Iterator[BagFrame]:
        """Yield the images of ``topic`` in recording order, decoded one at a time.

        Args:
            wanted: indices to decode, as in :meth:`entries`; None decodes all.
        """
        msgtype = self.image_topics()[topic]
        for index, (log_ns, raw) in enumerate(self._messages(topic)):
            if wanted is not None and index not in wanted:
                continue
            stamp_ns = self._stamp_ns(raw, log_ns)
            try:
                frame = self._frame(raw, msgtype, topic, index, stamp_ns, depth_policy)
            except ImageError as error:
                yield BagFrame(index, stamp_ns, None, str(error))
            else:
                yield BagFrame(index, stamp_ns, frame)

    def sizes(self, topic: str, wanted: Collection[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (index, width, height) of the images ``wanted``, in pixels; no JPEG is decoded.

        Images too damaged to tell are left out; :meth:`frames` says what is wrong with them.
        """
        msgtype = self.image_topics()[topic]
        for index, (_, raw) in enumerate(self._messages(topic)):
            if index not in wanted:
                continue
            with suppress(ImageError):
                if msgtype == COMPRESSED_IMAGE:
                    yield index, *compressed_size(self._message(raw, msgtype).data)
                else:  # the header of a damaged raw image may say anything: ask the pixels
                    frame = self._frame(raw, msgtype, topic, index, 0, "normalize")
                    yield index, frame.width_px, frame.height_px

    def _messages(self, topic: str) -> Iterator[tuple[int, bytes]]:
        """Yield (recording time in ns, serialized message) of a topic in recording order."""
        streams = []
        for reader in self._readers:
            connections = [c for c in reader.connections if c.topic == topic]
            if connections:
                streams.append(reader.messages(connections=connections))
        merged = heapq.merge(*streams, key=lambda message: message[1])
        while True:
            with self._reading():
                message = next(merged, None)
            if message is None:
                return
            yield message[1], message[2]

    def _stamp_ns(self, raw: bytes, log_ns: int) -> int:
        """Read the stamp off a serialized std_msgs/Header, the first field of both types."""
        try:
            if self._is_ros1:  # uint32 seq, uint32 seconds, uint32 nanoseconds
                sec, nanosec = struct.unpack_from("<II", raw, 4)
            else:  # encapsulation (its second byte tells the byte order), then sec, nanosec
                sec, nanosec = struct.unpack_from("<iI" if raw[1] & 1 else ">iI", raw, 4)
        except (struct.error, IndexError):
            return log_ns
        return int(sec) * 1_000_000_000 + int(nanosec)

    def _frame(
        self,
        raw: bytes,
        msgtype: str,
        topic: str,
        index: int,
        stamp_ns: int,
        depth_policy: DepthPolicy,
    ) -> Frame:
        message = self._message(raw, msgtype)
        if msgtype == COMPRESSED_IMAGE:
            image = decode_compressed(
                message.data, image_format=message.format, depth_policy=depth_policy
            )
        else:
            image = decode_raw(
                message.data,
                encoding=message.encoding,
                width=message.width,
                height=message.height,
                step=message.step,
                is_bigendian=bool(message.is_bigendian),
                depth_policy=depth_policy,
            )
        return Frame(image, stamp_ns, message.header.frame_id, topic, index)

    def _message(self, raw: bytes, msgtype: str) -> Any:
        try:
            load = self._store.deserialize_ros1 if self._is_ros1 else self._store.deserialize_cdr
            return load(raw, msgtype)
        # The generated decoders raise whatever the lying length or text makes them raise.
        except (SerdeError, struct.error, ValueError, IndexError, AssertionError) as error:
            raise ImageError(f"message is damaged: {error}") from error


def _named(topics: dict[str, str]) -> str:
    names = [f"{topic} ({msgtype})" for topic, msgtype in sorted(topics.items())]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
