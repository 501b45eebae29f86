"""Overlay, mask and markers over real DDS: drawn only for whoever looks, stamped as the frame."""

from __future__ import annotations

import threading
import time
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from rclpy.serialization import serialize_message
from ros_world import RELIABLE, World, image_message, plain_image, wait_until, world
from sensor_msgs.msg import CameraInfo, CompressedImage, Image
from visualization_msgs.msg import Marker, MarkerArray

from photon_ros.core.result import Detection, DetectionKind
from photon_ros.overlay import draw
from photon_ros.ros import camera_outputs

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]

WIDTH, HEIGHT = 160, 120


def scene(red: int = 102, green: int = 128) -> Image:
    """An image whose first pixel puts the fake engine's object near the middle."""
    pixels = np.random.default_rng(3).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    pixels[0, 0] = (red, green, 230)
    return image_message(pixels, stamp_ns=1_700_000_000_123_456_789, frame_id="front/optical")


def subscribe(it: World, kind: Any, topic: str) -> list[Any]:
    """Collect a topic of the node; returns when node and subscriber have seen each other."""
    received: list[Any] = []
    subscription = it.client.create_subscription(kind, topic, received.append, RELIABLE)
    name = subscription.topic_name
    wait_until(
        lambda: any(
            item.topic_name == name and item.get_subscription_count()
            for item in list(it.node.publishers)
        ),
        what=f"a match on {name}",
    )
    wait_until(subscription.get_publisher_count, what=f"the other side of it on {name}")
    return received


def pixels_of(message: Image) -> np.ndarray:
    return np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)


def test_overlay_is_the_frame_with_every_answer_and_the_header_of_the_frame() -> None:
    with world(skills="[detect, point]") as it:
        overlays = subscribe(it, Image, "photon/overlay")
        image = scene()
        it.publisher().publish(image)
        (overlay,) = wait_until(lambda: overlays)
        assert serialize_message(overlay.header) == serialize_message(image.header)
        assert (overlay.width, overlay.height) == (WIDTH, HEIGHT)
        assert (overlay.encoding, overlay.step) == ("rgb8", 3 * WIDTH)
        x, y, score = 102 / 255, 128 / 255, 230 / 255
        wanted = draw(
            pixels_of(image),
            [
                Detection(DetectionKind.BOX, "person", x, y, 0.5, 0.25, score=score),
                Detection(DetectionKind.POINT, "person", x, y, score=score),
            ],
        )
        assert np.array_equal(pixels_of(overlay), wanted)
        assert not np.array_equal(wanted, pixels_of(image)), "nothing was drawn"


def test_compressed_overlay_is_a_jpeg_of_the_size_and_quality_asked_for() -> None:
    with world(overlay__scale=0.5) as it:
        overlays = subscribe(it, CompressedImage, "photon/overlay/compressed")
        publisher = it.publisher()
        image = scene()
        publisher.publish(image)
        first = wait_until(lambda: overlays)[0]
        assert serialize_message(first.header) == serialize_message(image.header)
        assert first.format.startswith("rgb8; jpeg compressed")
        decoded = cv2.imdecode(np.frombuffer(first.data, np.uint8), cv2.IMREAD_COLOR)
        assert decoded.shape == (HEIGHT // 2, WIDTH // 2, 3)
        (result,) = it.set(overlay__jpeg_quality=10)
        assert result.successful
        publisher.publish(image)
        second = wait_until(lambda: overlays[1:])[0]
        assert len(second.data) < 0.7 * len(first.data)


def test_both_overlays_show_the_same_colours() -> None:
    with world() as it:
        raws = subscribe(it, Image, "photon/overlay")
        jpegs = subscribe(it, CompressedImage, "photon/overlay/compressed")
        it.publisher().publish(
            image_message(np.full((HEIGHT, WIDTH, 3), (102, 128, 230), np.uint8))
        )
        raw = pixels_of(wait_until(lambda: raws)[0]).astype(int)
        jpeg = wait_until(lambda: jpegs)[0]
        decoded = cv2.imdecode(np.frombuffer(jpeg.data, np.uint8), cv2.IMREAD_COLOR)
        assert np.abs(decoded[:, :, ::-1].astype(int) - raw).mean() < 5.0


def test_nothing_is_drawn_when_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    for name in ("overlay_of", "mask_message", "marker_array", "jpeg_message", "rgb_message"):
        original = getattr(camera_outputs, name)

        def watched(*args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            drawn.append(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(camera_outputs, name, watched)
    with world(skills="[segment]") as it:
        publisher = it.publisher()
        it.ask(publisher, scene())
        time.sleep(0.3)
        assert drawn == []
        overlays = subscribe(it, Image, "photon/overlay")
        it.ask(publisher, scene())
        wait_until(lambda: overlays)
        assert drawn == ["overlay_of", "rgb_message"], "and nothing but what is looked at"
        drawn.clear()
        it.set(overlay__enable=False)
        it.ask(publisher, scene())
        time.sleep(0.3)
        assert drawn == []


def test_overlay_of_several_cameras_goes_to_the_topic_of_its_camera() -> None:
    with world(cameras="[front, rear]", listen=False) as it:
        front = subscribe(it, Image, "photon/front/overlay")
        rear = subscribe(it, Image, "photon/rear/overlay")
        it.publisher("rear/image").publish(scene())
        wait_until(lambda: rear)
        assert not front


@pytest.mark.parametrize(
    ("arguments", "topic"),
    [
        (("-r", "~/overlay:=/eyes/overlay"), "/eyes/overlay/compressed"),
        (("-r", "~/overlay/compressed:=/small"), "/small"),
    ],
)
def test_the_compressed_overlay_follows_the_overlay_unless_it_is_remapped(
    arguments: tuple[str, ...], topic: str
) -> None:
    with world(arguments=arguments) as it:
        overlays = subscribe(it, CompressedImage, topic)
        it.publisher().publish(scene())
        wait_until(lambda: overlays)


def test_mask_holds_the_instances_and_zero_where_there_are_none() -> None:
    with world(skills="[segment]", prompts__segment="[person, nothing]") as it:
        masks = subscribe(it, Image, "photon/mask")
        publisher = it.publisher()
        image = scene(128, 128)
        answer = it.ask(publisher, image)
        (mask,) = wait_until(lambda: masks)
        assert serialize_message(mask.header) == serialize_message(image.header)
        assert (mask.encoding, mask.step, mask.is_bigendian) == ("mono16", 2 * WIDTH, 0)
        ids = np.frombuffer(mask.data, "<u2").reshape(HEIGHT, WIDTH)
        # Slow and obvious: the lower left half of the box around the middle.
        (found,) = answer.detections
        left, top = found.x - found.width / 2, found.y - found.height / 2
        for row in range(2, HEIGHT, 5):
            for column in range(2, WIDTH, 5):
                across = (column + 0.5 - left) / found.width
                down = (row + 0.5 - top) / found.height
                if min(abs(across - down), abs(across), abs(down - 1)) < 0.05:
                    continue  # on the edge
                is_inside = 0 < across < 1 and 0 < down < 1 and down > across
                assert ids[row, column] == int(is_inside), (row, column)
        it.set(prompts__segment=["nothing"])
        it.ask(publisher, image)
        empty = wait_until(lambda: masks[1:])[0]
        assert not np.frombuffer(empty.data, "<u2").any()


def calibration(**changes: Any) -> CameraInfo:
    """A lens with visible distortion."""
    info = CameraInfo(width=WIDTH, height=HEIGHT, distortion_model="plumb_bob")
    info.k = [150.0, 0.0, 78.0, 0.0, 140.0, 61.0, 0.0, 0.0, 1.0]
    info.d = [-0.25, 0.08, 0.001, -0.002, 0.0]
    info.p = [120.0, 0.0, 80.0, 0.0, 0.0, 120.0, 60.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    for name, value in changes.items():
        setattr(info, name, value)
    return info


def project(x: float, y: float, info: CameraInfo) -> tuple[float, float]:
    """The plumb_bob model, written out: a point at z = 1 to pixels from the top left corner."""
    k1, k2, p1, p2, k3 = info.d
    r2 = x * x + y * y
    radial = 1 + k1 * r2 + k2 * r2**2 + k3 * r2**3
    bent_x = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
    bent_y = y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y
    return info.k[0] * bent_x + info.k[2] + 0.5, info.k[4] * bent_y + info.k[5] + 0.5


def with_camera_info(it: World, info: CameraInfo, topic: str = "camera_info") -> None:
    publisher = it.publisher(topic, CameraInfo)
    publisher.publish(info)
    wait_until(lambda: next(iter(it.node._ports.values())).camera_model.info is not None)


def test_markers_project_back_onto_the_boxes() -> None:
    with world(skills="[detect, point]") as it:
        arrays = subscribe(it, MarkerArray, "photon/markers")
        publisher = it.publisher()
        it.ask(publisher, scene())
        time.sleep(0.2)
        assert not arrays, "without a CameraInfo nothing says where a pixel looks"
        info = calibration()
        with_camera_info(it, info)
        image = scene()
        it.arrays.clear()
        it.ask(publisher, image)
        wait_until(lambda: len(it.arrays) == 2)
        (markers,) = wait_until(lambda: arrays)
        clear, outline, box_label, dot, _ = markers.markers
        assert clear.action == Marker.DELETEALL
        for marker in markers.markers:
            assert serialize_message(marker.header) == serialize_message(image.header)
        (box,) = it.arrays[0].detections
        assert (outline.type, outline.ns) == (Marker.LINE_STRIP, "detect")
        assert outline.points[0] == outline.points[-1]
        assert all(point.z == 1.0 for point in outline.points)
        back = [project(point.x, point.y, info) for point in outline.points[:4]]
        left, right = box.x - box.width / 2, box.x + box.width / 2
        top, bottom = box.y - box.height / 2, box.y + box.height / 2
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        assert np.allclose(back, corners, atol=0.05)
        assert box_label.text == "person 0.90"
        assert (dot.type, dot.ns) == (Marker.SPHERE, "point")
        place = dot.pose.position
        assert project(place.x, place.y, info) == pytest.approx((box.x, box.y), abs=0.05)


def test_an_answer_without_objects_clears_the_markers_and_draws_the_bare_frame() -> None:
    with world(prompts__detect="[nothing]") as it:
        arrays = subscribe(it, MarkerArray, "photon/markers")
        overlays = subscribe(it, Image, "photon/overlay")
        with_camera_info(it, calibration())
        image = scene()
        it.publisher().publish(image)
        (markers,) = wait_until(lambda: arrays)
        (overlay,) = wait_until(lambda: overlays)
        (clear,) = markers.markers
        assert clear.action == Marker.DELETEALL
        for header in (clear.header, overlay.header):
            assert serialize_message(header) == serialize_message(image.header)
        assert np.array_equal(pixels_of(overlay), pixels_of(image))


def test_markers_of_a_rectified_image_go_by_the_rectified_projection() -> None:
    arguments = ("-r", "image:=/cam/image_rect", "-r", "camera_info:=/cam/camera_info")
    with world(arguments=arguments) as it:
        arrays = subscribe(it, MarkerArray, "photon/markers")
        with_camera_info(it, calibration(), "/cam/camera_info")
        it.ask(it.publisher("/cam/image_rect"), scene())
        (markers,) = wait_until(lambda: arrays)
        (box,) = it.arrays[0].detections
        corner = markers.markers[1].points[0]
        assert 120.0 * corner.x + 80.0 + 0.5 == pytest.approx(box.x - box.width / 2, abs=1e-3)
        assert 120.0 * corner.y + 60.0 + 0.5 == pytest.approx(box.y - box.height / 2, abs=1e-3)


def test_a_useless_camera_info_gives_no_markers_and_the_answers_go_on() -> None:
    with world() as it:
        arrays = subscribe(it, MarkerArray, "photon/markers")
        with_camera_info(it, calibration(k=[0.0] * 9))
        publisher = it.publisher()
        assert it.ask(publisher, scene()).detections
        assert it.ask(publisher, plain_image(1)).detections
        time.sleep(0.2)
        assert not arrays


def test_drawing_does_not_hold_up_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    may_draw = threading.Event()
    original = camera_outputs.overlay_of

    def slow(*args: Any, **kwargs: Any) -> Any:
        may_draw.wait(10.0)
        return original(*args, **kwargs)

    monkeypatch.setattr(camera_outputs, "overlay_of", slow)
    with world() as it:
        overlays = subscribe(it, Image, "photon/overlay")
        publisher = it.publisher()
        for number in range(5):
            it.ask(publisher, plain_image(10, stamp_ns=number + 1))
        (result,) = it.set(max_objects=7)
        assert result.successful
        assert not overlays
        may_draw.set()
        wait_until(lambda: overlays and overlays[-1].header.stamp.nanosec == 5)
        # The one that was being drawn, and the newest.
        assert [item.header.stamp.nanosec for item in overlays] == [1, 5]
