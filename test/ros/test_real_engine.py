"""The node on the real engine: two cameras in the same steps, and outlines as mask and markers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from rclpy.serialization import serialize_message
from ros_world import RELIABLE, World, image_message, wait_until, world
from sensor_msgs.msg import CameraInfo, Image
from visualization_msgs.msg import Marker, MarkerArray

from photon_ros.core.frame import Frame
from photon_ros.core.mask import mask_of
from photon_ros.core.prompting import PromptTemplate
from photon_ros.core.request import Request
from photon_ros.core.result import Detection, DetectionKind
from photon_ros.engine.metrics import StepRecord
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.nano import load_nano
from photon_ros.msg import PhotonDetection, PhotonDetectionArray
from photon_ros.overlay import draw
from photon_ros.photon import Photon

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]

PROMPTS = ("circle", "square")
CAMERAS = ("front", "rear")


def table_scene(shift_px: int) -> np.ndarray:
    """Circles and squares on a grey ground, (240, 320, 3) RGB."""
    image = np.full((240, 320, 3), (150, 150, 145), np.uint8)
    for number, colour in enumerate([(200, 30, 30), (40, 60, 200)]):
        x = 50 + 110 * number + shift_px
        cv2.circle(image, (x, 80), 26, colour, -1, cv2.LINE_AA)
        cv2.rectangle(image, (x - 24, 150), (x + 24, 200), colour[::-1], -1)
    return image


@contextmanager
def two_cameras() -> Iterator[tuple[World, Photon]]:
    photon = Photon("nano")
    asked = f"[{', '.join(PROMPTS)}]"
    with world(
        photon=photon, cameras="[front, rear]", prompts__detect=asked, max_crops=0, listen=False
    ) as it:
        for name in CAMERAS:
            it.listen(name)
        yield it, photon


def steps(photon: Photon, kind: str, since_s: float = 0.0) -> list[StepRecord]:
    records = photon.engine_stats.records.copy()
    return [item for item in records if item.kind == kind and item.launch_s >= since_s]


def boxes(array: PhotonDetectionArray) -> list[tuple[str, float, float, float, float]]:
    return [(d.label, d.x, d.y, d.width, d.height) for d in array.detections]


def test_frames_of_two_cameras_are_encoded_and_decoded_in_the_same_steps() -> None:
    with two_cameras() as (it, photon):
        pictures = {name: table_scene(60 * number) for number, name in enumerate(CAMERAS)}
        publishers = {name: it.publisher(f"{name}/image") for name in CAMERAS}
        began_s = time.monotonic()
        photon._worker.pause()  # so that both are in flight before either is begun
        for name, publisher in publishers.items():
            publisher.publish(image_message(pictures[name], stamp_ns=77))
        num_rows = len(CAMERAS) * len(PROMPTS)
        wait_until(lambda: photon.engine_load.num_waiting == num_rows, what="both cameras")
        photon._worker.resume()
        wait_until(lambda: len(it.arrays) == 2, 60.0, "both answers")

        # A camera has one frame in the engine, and so as many rows as prompts. Whatever is wider
        # holds rows of both.
        (prefill,) = steps(photon, "prefill", began_s)
        assert prefill.num_rows == num_rows
        widths = [step.num_rows - step.num_zombies for step in steps(photon, "decode", began_s)]
        assert max(widths) == num_rows
        arrays = {array.camera: array for array in it.arrays}
        assert set(arrays) == set(CAMERAS)
        for array in arrays.values():
            assert array.status == PhotonDetectionArray.OK
            assert array.latency.batch_size > len(PROMPTS), "it decoded beside the other camera"

        # And each gets what is in its own picture.
        for name, array in arrays.items():
            assert array.detections, "nothing to compare"
            frame = Frame(pictures[name])
            alone = [
                (prompt, d.x * 320, d.y * 240, d.width * 320, d.height * 240)
                for prompt in PROMPTS
                for d in photon.submit(Request("detect", prompt, frame, max_crops=0))
                .result(30.0)
                .detections
            ]
            assert [box[0] for box in boxes(array)] == [box[0] for box in alone]
            assert np.allclose([b[1:] for b in boxes(array)], [b[1:] for b in alone], atol=0.01)
        assert boxes(arrays["front"]) != boxes(arrays["rear"])
        scores = [d.score for array in arrays.values() for d in array.detections]
        assert all(0.5 <= score <= 1.0 for score in scores)
        assert len(set(scores)) > len(scores) / 2, "the scores are made up"


def test_a_slow_camera_gets_its_share_beside_a_fast_one_and_parameters_are_set_meanwhile() -> None:
    with two_cameras() as (it, photon):
        fast, slow = (it.publisher(f"{name}/image") for name in CAMERAS)
        image = image_message(table_scene(0))
        began_s = time.monotonic()
        answered_s: list[float] = []
        num_slow = 10
        for tick in range(num_slow * 10):
            image.header.stamp.sec = 100 + tick
            fast.publish(image)
            if tick % 10 == 0:
                slow.publish(image)
            if tick % 25 == 0:  # the engine is never idle meanwhile
                asked_s = time.monotonic()
                (result,) = it.set(max_objects=20 + tick % 2)
                assert result.successful
                answered_s.append(time.monotonic() - asked_s)
            time.sleep(0.03)
        wait_until(lambda: it.node.counts("rear").in_flight == 0)
        counts = {name: it.node.counts(name) for name in CAMERAS}
        assert counts["rear"].received >= num_slow - 1
        # They take turns: where the engine is slower than both, each gets a half.
        share = min(num_slow, counts["front"].completed)
        assert counts["rear"].completed >= 0.7 * share, counts
        assert counts["front"].completed >= counts["rear"].completed - 1, counts
        assert all(item.balanced for item in counts.values())
        assert any(step.num_rows > len(PROMPTS) for step in steps(photon, "decode", began_s))
        assert max(answered_s) < 5.0, "a parameter waited for the engine"


def test_a_red_thing_is_red_in_whatever_order_the_camera_sends_its_colours() -> None:
    rgb = table_scene(0)
    alpha = np.full((*rgb.shape[:2], 1), 255, np.uint8)
    orders = {
        "rgb8": rgb,
        "bgr8": rgb[:, :, ::-1],
        "rgba8": np.concatenate((rgb, alpha), axis=2),
        "bgra8": np.concatenate((rgb[:, :, ::-1], alpha), axis=2),
    }
    with world(photon=Photon("nano"), prompts__detect="[red circle]", max_crops=0) as it:
        publisher = it.publisher()
        found = {}
        for encoding, pixels in orders.items():
            message = Image(height=240, width=320, encoding=encoding, step=320 * pixels.shape[2])
            message.header.stamp.sec = 5
            message.data.frombytes(np.ascontiguousarray(pixels).tobytes())
            found[encoding] = boxes(it.ask(publisher, message))
        assert all(boxes_found == found["rgb8"] for boxes_found in found.values())
        # The circle on the left is the red one.
        assert found["rgb8"]
        assert all(box[1] < 160 for box in found["rgb8"])


# Outlines


def drawing_checkpoint(seed: int) -> Checkpoint:
    """Nano's architecture with random weights that like to draw, and the skill to do so."""
    checkpoint = load_nano()
    prompting = checkpoint.prompting
    torch.manual_seed(seed)
    model = MoondreamModel(checkpoint.config)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "ln" in name:
                continue
            is_embedding = name in ("text.wte", "vision.pos_emb")
            std = 1.0 if weights.ndim == 1 or is_embedding else 1.6 / weights.shape[-1] ** 0.5
            weights.normal_(std=std * (0.3 if weights.ndim == 1 else 1.0))
        model.text.lm_head.bias[prompting.coord_id] += 4.0
        model.text.lm_head.bias[prompting.eos_id] += 2.5
        # Random sizes are nearly all too small to be seen: these are about half the picture.
        size_bin = int(np.abs(np.array(prompting.size_values) - 0.6).argmin())
        model.region.size_decoder.fc2.bias.view(2, -1)[:, size_bin] += 60.0
    outline = PromptTemplate((12,), prompting.templates["point"].suffix, spells_outline=False)
    templates = {**prompting.templates, "segment": outline}
    return replace(
        checkpoint, model=model.freeze(), prompting=replace(prompting, templates=templates)
    )


LENS = CameraInfo(width=128, height=96)
LENS.k = [110.0, 0.0, 63.5, 0.0, 115.0, 47.5, 0.0, 0.0, 1.0]


def drawn_object(photon: Photon, frame: Frame) -> Detection | None:
    """What the engine draws into a frame, if it is large enough to be looked at."""
    request = Request("segment", "person", frame, max_tokens=41)
    for found in photon.submit(request).result(30.0).detections:
        if found.kind is DetectionKind.MASK:
            inside = mask_of(found.polygon, width_px=frame.width_px, height_px=frame.height_px)
            if inside.sum() > 200:
                return found
    return None


@pytest.fixture(scope="module")
def drawing() -> Iterator[tuple[Photon, Frame, Detection]]:
    """An engine that outlines something in a frame; the first of some random ones."""
    pixels = np.random.default_rng(8).integers(0, 255, (96, 128, 3), np.uint8)
    for seed in range(40):
        photon, frame = Photon(drawing_checkpoint(seed)), Frame(pixels)
        found = drawn_object(photon, frame)
        if found is not None:
            yield photon, frame, found  # the world closes it
            return
        photon.close()
    pytest.fail("none of 40 random models draws anything")


def winding(ring: np.ndarray, x: float, y: float) -> float:
    """How often a ring turns around a point, slow and obvious: the sum of the angles."""
    angles = np.arctan2(ring[:, 1] - y, ring[:, 0] - x)
    turns = np.diff(np.append(angles, angles[0]))
    return float(((turns + np.pi) % (2 * np.pi) - np.pi).sum() / (2 * np.pi))


def distance_px(ring: np.ndarray, x: float, y: float) -> float:
    """Distance of a point from a ring's lines."""
    starts, ends = ring, np.roll(ring, -1, axis=0)
    along = ends - starts
    length2 = np.maximum((along**2).sum(axis=1), 1e-12)
    share = np.clip(((np.array([x, y]) - starts) * along).sum(axis=1) / length2, 0.0, 1.0)
    nearest = starts + share[:, None] * along
    return float(np.hypot(*(nearest - (x, y)).T).min())


def test_an_outline_of_the_real_engine_becomes_array_mask_markers_and_overlay(
    drawing: tuple[Photon, Frame, Detection],
) -> None:
    photon, frame, wanted = drawing
    asked = {"skills": "[segment]", "prompts__segment": "[person]", "max_tokens": 41}
    with world(photon=photon, **asked) as it:
        kinds = {"mask": Image, "overlay": Image, "markers": MarkerArray}
        got: dict[str, list[object]] = {name: [] for name in kinds}
        for name, kind in kinds.items():
            it.client.create_subscription(kind, f"photon/{name}", got[name].append, RELIABLE)
        lens = it.publisher("camera_info", CameraInfo)
        lens.publish(LENS)
        wait_until(lambda: next(iter(it.node._ports.values())).camera_model.info is not None)
        image = image_message(frame.image, stamp_ns=9_000_000_123, frame_id="front/optical")
        publisher = it.publisher()
        # The first ones may come before the subscribers are matched.
        wait_until(lambda: it.ask(publisher, image) and all(got.values()), 60.0, "the pictures")
        array = it.arrays[-1]
        (found,) = array.detections
        mask, overlay, markers = (got[name][-1] for name in kinds)
        for header in (array.header, mask.header, overlay.header, markers.markers[0].header):
            assert serialize_message(header) == serialize_message(image.header)

    ring = np.array(wanted.polygon[0]) * (frame.width_px, frame.height_px)
    assert (found.kind, found.label) == (PhotonDetection.MASK, "person")
    assert list(found.ring_offsets) == [0]
    assert np.allclose(np.array(found.polygon_xy).reshape(-1, 2), ring, atol=1e-3)
    assert found.score == pytest.approx(wanted.score, abs=1e-4)

    ids = np.frombuffer(mask.data, "<u2").reshape(frame.height_px, frame.width_px)
    assert set(np.unique(ids)) == {0, 1}, "an object, and what is around it"
    num_compared = 0
    for row in range(0, frame.height_px, 2):
        for column in range(0, frame.width_px, 2):
            x, y = column + 0.5, row + 0.5
            if distance_px(ring, x, y) > 1.0:
                assert ids[row, column] == int(abs(winding(ring, x, y)) > 0.5), (row, column)
                num_compared += 1
    assert num_compared > 1000

    assert np.array_equal(
        np.frombuffer(overlay.data, np.uint8).reshape(frame.image.shape),
        draw(frame.image, [wanted]),
    )
    clear, outline, label = markers.markers
    assert (clear.action, outline.type) == (Marker.DELETEALL, Marker.LINE_STRIP)
    back = [
        (LENS.k[0] * p.x + LENS.k[2] + 0.5, LENS.k[4] * p.y + LENS.k[5] + 0.5)
        for p in outline.points
    ]
    assert np.allclose(back[:-1], ring, atol=0.01)
    assert back[-1] == back[0]
    assert label.text.startswith("person 0.")
