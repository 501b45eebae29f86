"""What somebody needs to label a recording: its image topics and stamps, and its pictures.

    OUT/<stamp_ns>.jpg   the pictures; the name is what ties a label to its frame
    OUT/truth.json       COCO JSON without annotations, to label on

Labelling tools keep the file names; so what they export is truth as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image

from photon_ros.core.errors import BagError, InputError
from photon_ros.pixels import DepthPolicy
from photon_ros.replay.bag_reader import BagReader
from photon_ros.replay.new_folder import check_free, new_folder

TRUTH_NAME: Final = "truth.json"
_JPEG_QUALITY: Final = 95


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One image topic of a recording.

    Attributes:
        msgtype: as "sensor_msgs/msg/Image".
        size_px: (width, height) of the first image that tells; None where none does.
        stamps_ns: of the headers, in recording order.
    """

    topic: str
    msgtype: str
    size_px: tuple[int, int] | None
    stamps_ns: Sequence[int]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        width, height = self.size_px or (None, None)
        return {
            "topic": self.topic,
            "type": self.msgtype,
            "width": width,
            "height": height,
            "num_images": len(self.stamps_ns),
            "stamps_ns": list(self.stamps_ns),
        }


def image_topics(reader: BagReader) -> list[TopicInfo]:
    """Return the image topics of a recording by name; raise BagError if it has none."""
    types = reader.image_topics()
    if not types:
        reader.select_topic()  # says what there is instead
    return [_topic_info(reader, topic, types[topic]) for topic in sorted(types)]


def _topic_info(reader: BagReader, topic: str, msgtype: str) -> TopicInfo:
    try:
        entries = reader.entries(topic)
    except BagError:  # announced, and nothing on it
        return TopicInfo(topic, msgtype, None, ())
    size = next(reader.sizes(topic, range(len(entries))), None)
    stamps_ns = [entry.stamp_ns for entry in entries]
    return TopicInfo(topic, msgtype, None if size is None else size[1:], stamps_ns)


@dataclass(frozen=True, slots=True)
class Export:
    """What was written.

    Attributes:
        num_bad: frames that could not be decoded.
    """

    topic: str
    num_frames: int
    num_bad: int


def export_frames(
    reader: BagReader,
    out: Path,
    *,
    topic: str | None = None,
    every: int = 1,
    labels: Iterable[str] = (),
    depth_policy: DepthPolicy = "reject",
    on_frame: Callable[[], None] = lambda: None,
) -> Export:
    """Write the pictures of a topic and the COCO JSON to label them on; return what was written.

    Args:
        out: a new folder; it appears when it is complete.
        topic: image topic; None takes the only one.
        every: take each frame whose running number is a multiple of this.
        labels: names of the categories.
        on_frame: called after each frame.

    Raises:
        BagError: the recording or the folder cannot be used.
        InputError: ``every`` is below 1.
    """
    if every < 1:
        raise InputError(f"every must be at least 1, got {every}")
    check_free(out)
    name = reader.select_topic(topic)
    wanted = _wanted(reader, name, every)
    images: list[Mapping[str, Any]] = []
    errors: list[str] = []
    try:
        with new_folder(out) as folder:
            folder.mkdir()
            for item in reader.frames(name, wanted, depth_policy=depth_policy):
                if item.frame is None:
                    errors.append(item.error)
                else:
                    file_name = f"{item.stamp_ns}.jpg"
                    picture = Image.fromarray(item.frame.image)
                    picture.save(folder / file_name, quality=_JPEG_QUALITY)
                    images.append(_image(len(images) + 1, file_name, name, item.stamp_ns, picture))
                on_frame()
            if not images:
                raise BagError(f"{reader.path} has no readable image on {name}: {errors[0]}")
            document = _skeleton(images, labels)
            (folder / TRUTH_NAME).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise BagError(f"{out} cannot be written: {error.strerror or error}") from error
    return Export(name, len(images), len(errors))


def _wanted(reader: BagReader, topic: str, every: int) -> set[int]:
    """Return the running numbers to take; raise BagError if two have the same stamp."""
    taken: dict[int, int] = {}
    for entry in reader.entries(topic)[::every]:
        if taken.setdefault(entry.stamp_ns, entry.index) != entry.index:
            raise BagError(
                f"topic {topic} has two frames stamped {entry.stamp_ns}; "
                "no label could tell them apart"
            )
    return set(taken.values())


def _image(
    image_id: int, file_name: str, topic: str, stamp_ns: int, picture: Image.Image
) -> Mapping[str, Any]:
    return {
        "id": image_id,
        "file_name": file_name,
        "width": picture.width,
        "height": picture.height,
        "topic": topic.removesuffix("/compressed"),
        "stamp_ns": stamp_ns,
    }


def _skeleton(images: Sequence[Mapping[str, Any]], labels: Iterable[str]) -> dict[str, Any]:
    names = dict.fromkeys(label.strip() for label in labels)
    return {
        "images": list(images),
        "annotations": [],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names, 1)],
    }
