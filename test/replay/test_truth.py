from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from painted import HEIGHT_PX, WIDTH_PX, scene, truth_document

from photon_ros.core.errors import BagError
from photon_ros.replay.truth import Truth, check_sizes, frames_with_truth, label_key, read_truth

TOPIC = "/camera/image_raw"
STAMPS = [1_000_000_000 + 100_000_000 * k for k in range(6)]


@pytest.fixture
def document() -> dict[str, Any]:
    return truth_document(scene(6), [0, 2, 5])


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Any], Truth]:
    def write_and_read(document: Any) -> Truth:
        path = tmp_path / "truth.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_truth(path)

    return write_and_read


Read = Callable[[Any], Truth]


def test_boxes_are_normalised_to_the_image(read: Read, document: dict[str, Any]) -> None:
    truth = read(document)
    image = truth.for_topic(TOPIC)[STAMPS[2]]
    assert (image.width_px, image.height_px) == (WIDTH_PX, HEIGHT_PX)
    red, green = image.boxes
    assert (red.label, green.label) == ("red", "green")
    assert red.box == pytest.approx((18 / 160, 20 / 120, 48 / 160, 60 / 120))
    assert not red.is_crowd


def test_a_topic_also_names_its_compressed_twin(read: Read, document: dict[str, Any]) -> None:
    truth = read(document)
    assert truth.for_topic(f"{TOPIC}/compressed") == truth.for_topic(TOPIC)
    with pytest.raises(BagError, match="no images of topic /other; it has: /camera/image_raw"):
        truth.for_topic("/other")


def test_truth_of_the_compressed_topic_itself_is_found(read: Read) -> None:
    truth = read(truth_document(scene(2), [0], topic=f"{TOPIC}/compressed"))
    assert list(truth.for_topic(f"{TOPIC}/compressed")) == [STAMPS[0]]
    with pytest.raises(BagError, match="no images of topic"):
        truth.for_topic(TOPIC)


def test_frames_are_found_by_their_stamp_wherever_they_are(
    read: Read, document: dict[str, Any]
) -> None:
    shuffled = [STAMPS[k] for k in (5, 3, 0, 1, 2, 4)]
    found = frames_with_truth(read(document), f"{TOPIC}/compressed", shuffled)
    assert {index: image.stamp_ns for index, image in found.items()} == {
        0: STAMPS[5],
        2: STAMPS[0],
        4: STAMPS[2],
    }


def test_unknown_stamps_are_named_but_not_all_of_them(read: Read) -> None:
    truth = read(truth_document(scene(30), range(30)))
    with pytest.raises(BagError) as caught:
        frames_with_truth(truth, TOPIC, STAMPS[:3])
    message = str(caught.value)
    assert "27 of 30 stamps are not on /camera/image_raw: 1300000000, 1400000000" in message
    assert "and 22 more" in message
    assert f"the bag has {STAMPS[0]} to {STAMPS[2]}" in message


def test_two_frames_with_a_labelled_stamp_cannot_be_told_apart(
    read: Read, document: dict[str, Any]
) -> None:
    with pytest.raises(BagError, match=f"two frames stamped {STAMPS[0]}"):
        frames_with_truth(read(document), TOPIC, [*STAMPS, STAMPS[0]])
    # Where nothing is labelled it does not matter.
    assert len(frames_with_truth(read(document), TOPIC, [*STAMPS, STAMPS[1]])) == 3


def test_a_prompt_that_is_not_labelled_is_refused(read: Read, document: dict[str, Any]) -> None:
    truth = read(document)
    truth.check_labels(["red", "  Green "])
    with pytest.raises(BagError, match="does not label dog; it labels: blue, green, red"):
        truth.check_labels(["red", "dog"])


@given(st.text(), st.text())
def test_labels_are_compared_without_case_and_spacing(a: str, b: str) -> None:
    assert label_key(f" {a}\t{b} ") == label_key(f"{a} {b}")
    assert label_key(label_key(a)) == label_key(a)


def test_a_crowd_region_is_marked(read: Read, document: dict[str, Any]) -> None:
    document["annotations"][0]["iscrowd"] = 1
    assert read(document).for_topic(TOPIC)[STAMPS[0]].boxes[0].is_crowd


@pytest.mark.parametrize("value", [True, False, 0, ...])
def test_the_usual_ways_to_say_crowd_are_understood(
    read: Read, document: dict[str, Any], value: Any
) -> None:
    damage("annotations.0.iscrowd", value)(document)
    assert read(document).for_topic(TOPIC)[STAMPS[0]].boxes[0].is_crowd is (value is True)


def test_a_truth_of_many_images_is_read_in_linear_time(read: Read) -> None:
    """Where it took a minute for 20,000: every stamp was looked up among all."""
    images = [
        {"id": k, "topic": TOPIC, "stamp_ns": k, "width": 10, "height": 10} for k in range(20_000)
    ]
    began_s = time.process_time()
    truth = read({"images": images, "annotations": [], "categories": []})
    assert time.process_time() - began_s < 5
    assert len(truth.for_topic(TOPIC)) == 20_000


def test_an_image_without_boxes_is_labelled_as_empty(read: Read, document: dict[str, Any]) -> None:
    document["annotations"] = []
    assert read(document).for_topic(TOPIC)[STAMPS[0]].boxes == ()


def test_keys_of_other_tools_do_no_harm(read: Read, document: dict[str, Any]) -> None:
    document["info"] = {"year": 2026}
    document["annotations"][0]["segmentation"] = [[0, 0, 1, 1]]
    document["images"][0]["file_name"] = "a.png"
    assert len(read(document).for_topic(TOPIC)) == 3


def damage(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change: ``images.0.topic`` is set to the value, or removed for ``...``."""

    def change(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = document
        for name in parents:
            place = place[int(name) if name.isdigit() else name]
        key = int(last) if last.isdigit() else last
        if value is ...:
            del place[key]
        else:
            place[key] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("images", ..., "images must be a list"),
        ("images", {}, "images must be a list"),
        ("images", [], "annotation names image 1"),
        ("annotations", ..., "annotations must be a list"),
        ("annotations", ["x"], "annotations must be a list of objects"),
        ("categories", None, "categories must be a list"),
        ("images.0.id", "one", "image needs an integer id"),
        ("images.0.id", 2, "two images have id 2"),
        ("images.0.topic", None, "image needs a topic, got null"),
        ("images.0.topic", " ", "image needs a topic"),
        ("images.0.stamp_ns", 1.5, "integer stamp_ns, got 1.5"),
        ("images.0.stamp_ns", True, "integer stamp_ns"),
        ("images.0.stamp_ns", ..., "integer stamp_ns"),
        ("images.1.stamp_ns", STAMPS[0], "two images are of topic"),
        ("images.0.width", 0, "positive width"),
        ("images.0.height", -3, "positive height"),
        ("annotations.0.image_id", 77, "names image 77"),
        ("annotations.0.category_id", 77, "names category 77"),
        ("annotations.0.bbox", ..., "needs a bbox"),
        ("annotations.0.bbox", [1, 2, 3], "needs a bbox"),
        ("annotations.0.bbox", [1, 2, 0, 4], "positive width and height"),
        ("annotations.0.bbox", [1, 2, "3", 4], "needs a bbox"),
        ("annotations.0.bbox", [1, 2, True, 4], "needs a bbox"),
        ("images.0.width", 10**400, r"a width of at most 64 bits, got 10{79}\.\.\.$"),
        ("images.0.stamp_ns", -(10**400), "a stamp_ns of at most 64 bits"),
        ("annotations.0.image_id", 2**63, "image_id of at most 64 bits"),
        ("annotations.0.bbox", [10**400, 2, 3, 4], r"needs a bbox .*, got \[10{78}\.\.\.$"),
        ("annotations.0.bbox", [1, 2, 10**400, 4], "needs a bbox"),
        ("annotations.0.bbox", [1, 2, float("inf"), 4], "needs a bbox"),
        ("annotations.0.iscrowd", "1", 'annotation 1 needs an iscrowd of 0 or 1, got "1"'),
        ("annotations.0.iscrowd", 2, "iscrowd of 0 or 1, got 2"),
        ("annotations.0.iscrowd", None, "iscrowd of 0 or 1, got null"),
        ("categories.1.id", 1, "two categories have id 1"),
        ("categories.0.name", 5, "category needs a name"),
        ("categories.0.id", ..., "category needs an integer id"),
    ],
)
def test_what_is_wrong_with_a_document_is_said(
    read: Read, document: dict[str, Any], path: str, value: Any, reason: str
) -> None:
    damage(path, value)(document)
    with pytest.raises(BagError, match=reason):
        read(document)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "expected an object"),
        ("null", "expected an object"),
        ("[" * 100_000, "is not JSON"),
        ("1" * 5000, "has an integer with too many digits"),
        ('{"images": [], "annotations": [], "categories": []}', "it has no images"),
        ('{"images": [NaN], "annotations": [], "categories": []}', "images must be a list"),
    ],
)
def test_text_that_is_no_truth_is_refused(read: Read, text: str, reason: str) -> None:
    with pytest.raises(BagError, match=reason):
        read(text)


def test_boxes_at_the_end_of_the_number_range_are_taken(
    read: Read, document: dict[str, Any]
) -> None:
    document["images"][0]["width"] = 1
    document["annotations"][0]["bbox"] = [10**308, 0, 10**308, 1]
    box = read(document).for_topic(TOPIC)[STAMPS[0]].boxes[0].box
    assert box[0] == 1e308
    assert box[2] == float("inf")


def test_two_categories_of_one_name_are_one_label(read: Read, document: dict[str, Any]) -> None:
    document["categories"].append({"id": 50, "name": "red"})
    document["annotations"][0]["category_id"] = 50
    truth = read(document)
    truth.check_labels(["red"])
    assert truth.for_topic(TOPIC)[STAMPS[0]].boxes[0].label == "red"


def test_a_frame_of_another_size_than_its_truth_is_named(
    read: Read, document: dict[str, Any]
) -> None:
    truth = read(document)
    labelled = frames_with_truth(truth, TOPIC, STAMPS)
    check_sizes(truth, labelled, [(index, WIDTH_PX, HEIGHT_PX) for index in labelled])
    sizes = [(0, WIDTH_PX, HEIGHT_PX), (2, HEIGHT_PX, WIDTH_PX)]
    with pytest.raises(
        BagError,
        match=rf"image of topic {TOPIC} at stamp_ns {STAMPS[2]} is 160x120, "
        r"the recorded frame is 120x160",
    ):
        check_sizes(truth, labelled, sizes)


def test_not_a_number_is_no_size(read: Read, document: dict[str, Any]) -> None:
    document["annotations"][0]["bbox"] = [0, 0, float("nan"), 1]
    with pytest.raises(BagError, match="needs a bbox"):
        read(document)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00binary"])
def test_a_file_that_cannot_be_read_is_a_bag_error(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "truth.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BagError, match=str(path)):
        read_truth(path)
    with pytest.raises(BagError, match="cannot be read"):
        read_truth(tmp_path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(
    section=st.sampled_from(["images", "annotations", "categories"]),
    key=st.sampled_from(["id", "topic", "stamp_ns", "width", "bbox", "image_id", "name"]),
    value=json_values,
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_value_anywhere_is_taken_or_refused_in_words(
    read: Read, section: str, key: str, value: Any
) -> None:
    document = truth_document(scene(3), [0, 1])
    document[section][0][key] = value
    try:
        read(document)
    except BagError:
        return


def test_what_a_labelling_tool_writes_is_truth(read: Read, document: dict[str, Any]) -> None:
    """Ordinary COCO keeps the name of the file, and none of our keys."""
    folders = ["", "images/train/", "C:\\\\frames\\\\"]
    for image, folder in zip(document["images"], folders, strict=True):
        image["file_name"] = f"{folder}{image.pop('stamp_ns')}.jpg"
        del image["topic"]
    truth = read(document)
    for topic in (TOPIC, "/another"):
        assert sorted(truth.for_topic(topic)) == [STAMPS[0], STAMPS[2], STAMPS[5]]
    assert [len(truth.for_topic(TOPIC)[STAMPS[k]].boxes) for k in (0, 2, 5)] == [2, 2, 1]


@pytest.mark.parametrize("name", ["a.png", "", "1e9.jpg", "12_34.jpg", "9" * 20 + ".jpg", 5, None])
def test_a_file_name_that_is_no_stamp_is_told(
    read: Read, document: dict[str, Any], name: object
) -> None:
    del document["images"][1]["stamp_ns"]
    document["images"][1]["file_name"] = name
    with pytest.raises(BagError, match="image needs an integer stamp_ns, or a file_name that is"):
        read(document)


def test_a_stamp_labelled_with_and_without_a_topic_is_labelled_twice(
    read: Read, document: dict[str, Any]
) -> None:
    document["images"][1]["stamp_ns"] = STAMPS[0]
    del document["images"][1]["topic"]
    with pytest.raises(BagError, match=rf"labels {TOPIC} at stamp_ns {STAMPS[0]} twice"):
        read(document).for_topic(TOPIC)
    assert len(read(document).for_topic("/another")) == 1


def test_prompts_get_the_lowest_id_of_their_label(read: Read, document: dict[str, Any]) -> None:
    document["categories"] += [{"id": 77, "name": "red"}, {"id": -3, "name": " Green"}]
    assert read(document).category_ids(["RED", "green", "dog"]) == {"RED": 1, "green": -3}


def test_the_public_labels_of_a_real_clip(shared: Path) -> None:
    truth = read_truth(shared / "data/pets09/person_coco.json")
    assert truth.labels == ("person",)
    images = truth.for_topic("/camera/image_raw/compressed")
    assert len(images) == 8
    assert sum(len(image.boxes) for image in images.values()) == 38
