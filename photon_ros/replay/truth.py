"""Ground truth of a recording: COCO JSON whose images name a topic and a stamp.

    {"images": [{"id", "topic", "stamp_ns", "width", "height"}],
     "annotations": [{"image_id", "category_id", "bbox": [x, y, width, height], "iscrowd"}],
     "categories": [{"id", "name"}]}

Boxes are in pixels of the image, origin top left. A truth topic T is also the truth of
T/compressed: the same pictures, stored differently.

Labelling tools write ordinary COCO, without the two keys: an image without a topic is of any
topic, and one without a stamp has it in its file_name, as "frames/1700000000123456789.jpg".
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from photon_ros.core.errors import BagError

Box = tuple[float, float, float, float]
"""(x_min, y_min, x_max, y_max), normalised to the image."""

_MAX_NAMES: Final = 5
_MAX_SHOWN: Final = 80
_MAX_INTEGER: Final = 2**63 - 1
_STAMP: Final = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class TrueBox:
    """One labelled object; ``is_crowd`` marks a region where detections are not judged."""

    label: str
    box: Box
    is_crowd: bool = False


@dataclass(frozen=True, slots=True)
class TruthImage:
    """One labelled frame.

    Attributes:
        topic: "" for any topic.
        image_id: its id in the truth file.
    """

    topic: str
    stamp_ns: int
    width_px: int
    height_px: int
    boxes: tuple[TrueBox, ...]
    image_id: int = 0


class Truth:
    """The labels of a recording, by topic and stamp."""

    def __init__(
        self, path: Path, images: Iterable[TruthImage], categories: Mapping[int, str]
    ) -> None:
        self.path = path
        self.labels = tuple(categories.values())
        self._categories = dict(categories)
        self._images = {(image.topic, image.stamp_ns): image for image in images}

    def for_topic(self, topic: str) -> dict[int, TruthImage]:
        """Return {stamp_ns: labels} of a recorded topic; raise BagError if it has none."""
        names = {topic, topic.removesuffix("/compressed"), ""}
        found: dict[int, TruthImage] = {}
        for (name, stamp_ns), image in self._images.items():
            if name in names and found.setdefault(stamp_ns, image) is not image:
                raise BagError(f"truth {self.path} labels {topic} at stamp_ns {stamp_ns} twice")
        if not found:
            there = sorted({name for name, _ in self._images})
            raise BagError(
                f"truth {self.path} has no images of topic {topic}; it has: {_listed(there)}"
            )
        return found

    def category_ids(self, prompts: Iterable[str]) -> dict[str, int]:
        """Return {prompt: the lowest id of its label} for the prompts that are labelled."""
        ids: dict[str, int] = {}
        for category_id, label in sorted(self._categories.items(), reverse=True):
            ids[label_key(label)] = category_id
        return {prompt: ids[label_key(prompt)] for prompt in prompts if label_key(prompt) in ids}

    def check_labels(self, prompts: Iterable[str]) -> None:
        """Raise BagError if a prompt is not among the labels: it could only be judged wrong."""
        known = {label_key(label) for label in self.labels}
        missing = sorted({prompt for prompt in prompts if label_key(prompt) not in known})
        if missing:
            raise BagError(
                f"truth {self.path} does not label {_listed(missing)}; "
                f"it labels: {_listed(sorted(self.labels))}"
            )


def label_key(label: str) -> str:
    """Return the form in which labels and prompts are compared."""
    return " ".join(label.lower().split())


def frames_with_truth(
    truth: Truth, topic: str, stamps_ns: Sequence[int], *, may_miss: bool = False
) -> dict[int, TruthImage]:
    """Return {index of the frame: its labels} for the recorded stamps of ``topic``.

    Raises BagError when labels have more than one frame, or none: with ``may_miss`` only where
    no labels have any.
    """
    wanted = truth.for_topic(topic)
    found: dict[int, int] = {}
    for index, stamp_ns in enumerate(stamps_ns):
        if stamp_ns in wanted and found.setdefault(stamp_ns, index) != index:
            raise BagError(
                f"topic {topic} has two frames stamped {stamp_ns}; "
                f"truth {truth.path} cannot tell them apart"
            )
    unknown = sorted(wanted.keys() - found.keys())
    if unknown and not (may_miss and found):
        hint = "" if may_miss else "; of a bag that was cut, score the rest by --truth-may-miss"
        raise BagError(
            f"truth {truth.path}: {len(unknown)} of {len(wanted)} stamps are not on {topic}: "
            f"{_listed(map(str, unknown))} (the bag has {min(stamps_ns)} to {max(stamps_ns)}{hint})"
        )
    return {index: wanted[stamp_ns] for stamp_ns, index in found.items()}


def check_sizes(
    truth: Truth, labelled: Mapping[int, TruthImage], sizes: Iterable[tuple[int, int, int]]
) -> None:
    """Raise BagError if a labelled frame has another size than its truth says.

    Args:
        sizes: (index, width, height) of frames, in pixels.
    """
    for index, width_px, height_px in sizes:
        image = labelled[index]
        if (image.width_px, image.height_px) != (width_px, height_px):
            raise BagError(
                f"truth {truth.path}: image of topic {image.topic} at stamp_ns {image.stamp_ns} is "
                f"{image.width_px}x{image.height_px}, the recorded frame is {width_px}x{height_px}"
            )


def read_truth(path: Path) -> Truth:
    """Read and check a truth file; raise BagError that names the first thing wrong with it."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BagError(f"truth {path} cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BagError(f"truth {path} is not JSON: {error}") from error
    except ValueError as error:  # Python converts no integer of thousands of digits
        raise BagError(f"truth {path} has an integer with too many digits") from error
    try:
        return _truth(path, document)
    except _MalformedError as error:
        raise BagError(f"truth {path}: {error}") from None


class _MalformedError(Exception):
    """Something in the document is not as the format says."""


def _truth(path: Path, document: Any) -> Truth:
    if not isinstance(document, dict):
        raise _MalformedError("expected an object with images, annotations and categories")
    labels: dict[int, str] = {}  # several ids may have the same name: their boxes are one label's
    for item in _items(document, "categories"):
        category_id = _integer(item, "id", "category")
        if category_id in labels:
            raise _MalformedError(f"two categories have id {category_id}")
        labels[category_id] = _text(item, "name", "category")
    images: dict[int, Mapping[str, Any]] = {}
    for item in _items(document, "images"):
        image_id = _integer(item, "id", "image")
        if image_id in images:
            raise _MalformedError(f"two images have id {image_id}")
        images[image_id] = item
    boxes: dict[int, list[TrueBox]] = {image_id: [] for image_id in images}
    for item in _items(document, "annotations"):
        image_id = _integer(item, "image_id", "annotation")
        if image_id not in images:
            raise _MalformedError(f"an annotation names image {image_id}, which is not there")
        boxes[image_id].append(_true_box(item, images[image_id], labels))
    found = [_image(item, tuple(boxes[image_id]), image_id) for image_id, item in images.items()]
    if not found:
        raise _MalformedError("it has no images")
    counts = Counter((image.topic, image.stamp_ns) for image in found)
    twice = next((key for key, count in counts.items() if count > 1), None)
    if twice is not None:
        where = f"of topic {twice[0]}" if twice[0] else "without a topic"
        raise _MalformedError(f"two images are {where} at stamp_ns {twice[1]}")
    return Truth(path, found, labels)


def _image(item: Mapping[str, Any], boxes: tuple[TrueBox, ...], image_id: int) -> TruthImage:
    return TruthImage(
        topic=_text(item, "topic", "image") if "topic" in item else "",
        stamp_ns=_image_stamp_ns(item),
        width_px=_size(item, "width"),
        height_px=_size(item, "height"),
        boxes=boxes,
        image_id=image_id,
    )


def _image_stamp_ns(item: Mapping[str, Any]) -> int:
    if "stamp_ns" in item or "file_name" not in item:
        return _integer(item, "stamp_ns", "image")
    name = item["file_name"]
    stem = PurePosixPath(name.replace("\\", "/")).stem if isinstance(name, str) else ""
    if not _STAMP.fullmatch(stem):
        raise _MalformedError(
            "image needs an integer stamp_ns, or a file_name that is one (as 1700000000123.jpg), "
            f"got {_shown(name)}"
        )
    return _integer({"stamp_ns": int(stem)}, "stamp_ns", "image")


def _true_box(
    item: Mapping[str, Any], image: Mapping[str, Any], labels: Mapping[int, str]
) -> TrueBox:
    category = _integer(item, "category_id", "annotation")
    if category not in labels:
        raise _MalformedError(f"an annotation names category {category}, which is not there")
    x, y, width, height = _bbox(item)
    image_w, image_h = _size(image, "width"), _size(image, "height")
    box = (x / image_w, y / image_h, (x + width) / image_w, (y + height) / image_h)
    is_crowd = item.get("iscrowd", 0)
    if not isinstance(is_crowd, int) or is_crowd not in (0, 1):
        raise _MalformedError(
            f"annotation {item.get('id')} needs an iscrowd of 0 or 1, got {_shown(is_crowd)}"
        )
    return TrueBox(labels[category], box, is_crowd == 1)


def _bbox(item: Mapping[str, Any]) -> list[float]:
    bbox = item.get("bbox")
    is_four = isinstance(bbox, list) and len(bbox) == 4 and all(map(_is_number, bbox))
    if not is_four or min(bbox[2:]) <= 0:  # type: ignore[index]
        raise _MalformedError(
            f"annotation {item.get('id')} needs a bbox [x, y, width, height] with positive "
            f"width and height, got {_shown(bbox)}"
        )
    return [float(value) for value in bbox]  # type: ignore[union-attr]


def _items(document: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    items = document.get(name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _MalformedError(f"{name} must be a list of objects")
    return items


def _integer(item: Mapping[str, Any], name: str, kind: str) -> int:
    value = item.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _MalformedError(f"{kind} needs an integer {name}, got {_shown(value)}")
    if abs(value) > _MAX_INTEGER:
        raise _MalformedError(f"{kind} needs a {name} of at most 64 bits, got {_shown(value)}")
    return value


def _size(item: Mapping[str, Any], name: str) -> int:
    value = _integer(item, name, "image")
    if value < 1:
        raise _MalformedError(f"image needs a positive {name}, got {value}")
    return value


def _text(item: Mapping[str, Any], name: str, kind: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value.strip():
        raise _MalformedError(f"{kind} needs a {name}, got {_shown(value)}")
    return value


def _is_number(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    # An integer may be larger than any float, and math.isfinite takes none of those.
    return abs(value) <= sys.float_info.max


def _shown(value: object) -> str:
    """Return a value as JSON, cut where it is too long for a line."""
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
