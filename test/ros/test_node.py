"""The node over real DDS, with an engine whose answers and times the test chooses."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from fake_photon import FakePhoton
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from ros_world import RELIABLE, image_message, plain_image, wait_until, world
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from photon_ros.core.errors import InputError, ModelError
from photon_ros.msg import PhotonDetection, PhotonDetectionArray
from photon_ros.ros.mailbox import FrameCounts

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]


@pytest.mark.parametrize(
    ("stamp_ns", "frame_id"),
    [
        (1_700_000_000_123_456_789, "front/camera_optical_frame"),
        (0, ""),
        (1, "kamera links: äöü 測"),
        ((2**31 - 1) * 1_000_000_000 + 999_999_999, "x" * 300),
        (-5_000_000_000, "before the epoch"),
    ],
)
def test_header_is_copied_byte_for_byte(stamp_ns: int, frame_id: str) -> None:
    with world() as it:
        image = plain_image(10, stamp_ns=stamp_ns, frame_id=frame_id)
        answer = it.ask(it.publisher(), image)
        assert serialize_message(answer.header) == serialize_message(image.header)


def test_answer_is_in_pixels_with_every_field_set() -> None:
    with world(skills="[detect, point]", prompts__detect="[nothing, person]") as it:
        publisher = it.publisher()
        pixels = np.full((40, 100, 3), (51, 102, 204), np.uint8)
        before_ns = time.time_ns()
        publisher.publish(image_message(pixels, stamp_ns=before_ns))
        detect, point = wait_until(lambda: it.arrays if len(it.arrays) == 2 else None)
        assert (detect.image_width, detect.image_height) == (100, 40)
        assert (detect.skill, list(detect.prompts)) == ("detect", ["nothing", "person"])
        assert (detect.status, detect.error) == (PhotonDetectionArray.OK, "")
        assert (detect.frame_seq, detect.dropped_since_last, detect.camera) == (0, 0, "")
        (box,) = detect.detections
        assert (box.kind, box.label, box.prompt_index) == (PhotonDetection.BOX, "person", 1)
        assert box.score_source == PhotonDetection.TOKEN_PROB
        assert box.score == pytest.approx(204 / 255)
        assert (box.x, box.y) == pytest.approx((0.2 * 100, 0.4 * 40))
        assert (box.width, box.height) == pytest.approx((50.0, 10.0))
        assert len(box.polygon_xy) == len(box.ring_offsets) == 0
        (dot,) = point.detections
        assert (dot.kind, dot.x, dot.y) == (PhotonDetection.POINT, pytest.approx(20), 16)
        assert (dot.width, dot.height) == (0.0, 0.0)
        latency = detect.latency
        assert (latency.tokens, latency.batch_size, latency.zombie_steps) == (3, 1.5, 2)
        assert (latency.preprocess_ms, latency.prefill_ms) == (1.0, 3.0)
        assert (latency.decode_ms, latency.postprocess_ms) == (4.0, 5.0)
        assert latency.queue_ms >= 2.0
        assert 0.0 < latency.transport_ms < 5000.0
        assert 0.0 < latency.decode_image_ms < latency.total_ms < 5000.0
        assert 0.0 < latency.publish_ms < latency.total_ms
        received_ns = latency.receive_stamp.sec * 10**9 + latency.receive_stamp.nanosec
        assert before_ns < received_ns < time.time_ns()


def test_a_foreign_clock_gives_no_transport_time() -> None:
    with world() as it:
        publisher = it.publisher()
        for stamp_ns in (1_000_000_007, time.time_ns() + 10**9):
            answer = it.ask(publisher, plain_image(1, stamp_ns=stamp_ns))
            assert math.isnan(answer.latency.transport_ms)
            assert answer.latency.total_ms > 0.0


@pytest.mark.parametrize(
    "durability", [DurabilityPolicy.VOLATILE, DurabilityPolicy.TRANSIENT_LOCAL]
)
@pytest.mark.parametrize("reliability", [ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE])
def test_a_node_with_its_defaults_hears_a_camera_of_any_qos(
    reliability: ReliabilityPolicy, durability: DurabilityPolicy
) -> None:
    qos = QoSProfile(depth=10, reliability=reliability, durability=durability)
    with world() as it:
        assert it.ask(it.publisher("image", qos=qos), plain_image(1)).detections


def test_empty_answers_are_published() -> None:
    with world(prompts__detect="[nothing]") as it:
        answer = it.ask(it.publisher(), plain_image(1))
        assert answer.status == PhotonDetectionArray.OK
        assert len(answer.detections) == 0
        assert list(answer.prompts) == ["nothing"]


@pytest.mark.parametrize(
    ("prompt", "status", "reason"),
    [
        ("crowd", PhotonDetectionArray.PARTIAL, "crowd: ended by max_objects"),
        ("boom", PhotonDetectionArray.ERROR, "boom: EngineFault: the device is on fire"),
    ],
)
def test_failed_frames_are_published_and_counted(prompt: str, status: int, reason: str) -> None:
    with world(prompts__detect=f"[{prompt}]", max_objects=3) as it:
        answer = it.ask(it.publisher(), plain_image(1))
        assert (answer.status, answer.error) == (status, reason)
        assert len(answer.detections) == (3 if prompt == "crowd" else 0)
        # An account may be written while the frame is still in the engine.
        settled = wait_until(
            lambda: [item for item in list(it.stats) if item.received == 1 and not item.in_flight]
        )
        assert (settled[0].completed, settled[0].failed) == (0, 1)


def _bad_images() -> list[Image]:
    lies = [plain_image(1) for _ in range(6)]
    lies[0].step = 5
    lies[1].width = 2**31
    lies[2].height += 1
    lies[3].encoding = "rgb9"
    lies[4].data = lies[4].data[:-1]
    lies[5].header.stamp.nanosec = 2_000_000_000
    return lies


def test_bad_frames_are_counted_with_their_reason_and_the_node_goes_on() -> None:
    with world(qos__depth=10, qos__reliability="reliable") as it:
        publisher = it.publisher()
        bad = _bad_images()
        for index, message in enumerate(bad):
            publisher.publish(message)
            wait_until(lambda n=index + 1: it.node.counts("").bad == n, what=f"lie {index}")
        publisher.publish(plain_image(1, frame_id="x"))
        raw = serialize_message(plain_image(2, frame_id="xy"))
        publisher.publish(raw.replace(b"xy\0", b"\xff\xfe\0"))  # a frame_id that is not UTF-8
        publisher.publish(raw[:40])  # a message that ends too early
        wait_until(lambda: it.node.counts("").received == len(bad) + 3, what="every frame")
        # The good one may be answered, or replaced by the next; what is under way comes first.
        wait_until(lambda: not (now := it.node.counts("")).in_flight + now.mailboxed)
        wait_until(lambda: len(it.arrays) == it.node.counts("").completed)
        answer = it.ask(publisher, plain_image(77))
        assert answer.detections[0].x == pytest.approx(77 / 255 * 8)
        counts = it.node.counts("")
        assert counts.balanced
        status = wait_until(lambda: [s for s in it.statuses_of("camera") if "bad" in s.message])[-1]
        reasons = {item.key for item in status.values if item.key.startswith("bad: ")}
        assert any("step is 5 bytes" in reason for reason in reasons)
        assert any("rgb9" in reason for reason in reasons)


def test_damaged_compressed_images_are_counted_and_the_node_goes_on() -> None:
    with world(image_transport="compressed") as it:
        publisher = it.publisher("image/compressed", CompressedImage)
        whole = bytes(_jpeg(102).data)
        for number, data in enumerate((whole[:100], b"", b"no picture at all" * 9, whole[:20] * 3)):
            broken = CompressedImage(format="jpeg")
            broken.header.stamp.nanosec = number + 1
            broken.data.frombytes(data)
            publisher.publish(broken)
            wait_until(lambda n=number + 1: it.node.counts("").bad == n, what=f"number {number}")
        assert it.ask(publisher, _jpeg(102)).detections
        assert it.node.counts("").balanced


def test_latest_wins_under_overload_and_the_account_is_always_balanced() -> None:
    with world(service_s=0.03, qos__depth=500, qos__reliability="reliable") as it:
        publisher = it.publisher()
        chance = random.Random(4)
        snapshots: list[FrameCounts] = []
        num_sent = 400
        for index in range(num_sent):
            publisher.publish(plain_image(index % 200, stamp_ns=index + 1))
            if chance.random() < 0.3:
                snapshots.append(it.node.counts(""))
            if index % 4 == 3:  # in bursts: more than the engine can answer on any machine
                time.sleep(0.012)
        wait_until(lambda: it.node.counts("").received == num_sent, what="every frame")
        wait_until(lambda: it.node.counts("").in_flight == it.node.counts("").mailboxed == 0)
        assert all(counts.balanced for counts in snapshots)
        assert any(counts.in_flight for counts in snapshots)
        counts = it.node.counts("")
        assert counts.overwritten > 150
        assert counts.completed + counts.dropped == num_sent
        wait_until(lambda: len(it.arrays) == counts.completed)
        stamps = [a.header.stamp.nanosec for a in it.arrays]
        assert stamps == sorted(set(stamps)), "in order, none twice"
        assert stamps[-1] == num_sent, "the newest frame is answered last"
        assert [a.frame_seq for a in it.arrays] == [stamp - 1 for stamp in stamps]
        # Each array says how many frames were skipped since the one before.
        gaps = [b - a - 1 for a, b in zip([0, *stamps], stamps, strict=False)]
        assert [a.dropped_since_last for a in it.arrays] == gaps
        # Nothing waits longer than one service time: the age does not grow. In a queue the last
        # one would be older than all that were answered before it took.
        late = [a.latency.total_ms for a in it.arrays[-10:]]
        assert max(late) < 2_000.0 < 30.0 * num_sent / 4
        final = wait_until(lambda: [s for s in it.stats if s.received == num_sent])[-1]
        settled = final.completed + final.failed + final.in_flight + final.mailboxed
        dropped = (
            final.dropped_overwritten + final.dropped_stale + final.dropped_rate
            + final.dropped_bad + final.dropped_reset
        )  # fmt: skip
        assert final.received == settled + dropped
        assert final.p50_ms > 25.0
        assert final.fps > 1.0


def test_parameters_are_served_while_the_engine_works() -> None:
    with world() as it:
        it.photon.may_answer.clear()
        publisher = it.publisher()
        publisher.publish(plain_image(1))
        wait_until(lambda: it.photon.requests)
        began_s = time.monotonic()
        (result,) = it.set(max_objects=7)
        assert result.successful
        assert time.monotonic() - began_s < 5.0, "it waited for the engine, which never answers"
        it.photon.may_answer.set()
        wait_until(lambda: it.arrays)


def test_rejected_parameters_say_why_and_change_nothing() -> None:
    with world() as it:
        before = it.node.config
        for values, reason in (
            ({"max_objects": 0}, "max_objects"),
            ({"max_age_ms": -1.0}, "max_age_ms"),
            ({"prompts__detect": ["dragon"]}, "fake does not know 'dragon'; it knows: person"),
            ({"prompts__detect": []}, "prompts.detect is empty"),
            ({"prompts__detect": "person"}, "must be a list of strings"),
            ({"skills": ["fly"]}, "'fly' is not one of point, detect"),
            ({"depth_policy": "guess"}, "'guess' is not one of reject, normalize"),
            ({"device": "cuda"}, "read-only"),
            ({"rate_limit_hz": "fast"}, "rate_limit_hz must be a number, got 'fast'"),
        ):
            (result,) = it.set(**values)
            assert not result.successful, values
            assert reason in result.reason
        assert it.node.config == before
        result = it.set_together(max_objects=9, max_crops=99)
        assert not result.successful
        assert it.node.config == before, "half of an atomic change was applied"


def test_numbers_and_empty_lists_are_taken_as_users_write_them() -> None:
    with world() as it:
        assert all(r.successful for r in it.set(rate_limit_hz=5, prompts__point=[]))
        assert it.node.config.rate_limit_hz == 5.0
        assert it.node.config.prompts_point == ()


def test_prompts_change_live_and_the_version_tells_which_answer_is_whose() -> None:
    with world() as it:
        publisher = it.publisher()
        assert it.ask(publisher, plain_image(1)).prompt_version == 0
        (result,) = it.set(prompts__detect=["nothing", "person"])
        assert result.successful
        answer = it.ask(publisher, plain_image(2))
        assert (answer.prompt_version, list(answer.prompts)) == (1, ["nothing", "person"])
        it.set(max_objects=3)
        assert it.ask(publisher, plain_image(3)).prompt_version == 1
        assert it.photon.requests[-1].max_objects == 3
        assert it.set_together(skills=["point"], prompts__point=["person"]).successful
        answer = it.ask(publisher, plain_image(4))
        assert (answer.prompt_version, answer.skill) == (2, "point")


def test_a_frame_in_the_engine_keeps_the_prompts_it_came_in_with() -> None:
    with world() as it:
        publisher = it.publisher()
        it.photon.may_answer.clear()
        publisher.publish(plain_image(1))
        wait_until(lambda: it.photon.requests)
        it.set(prompts__detect=["nothing"])
        it.photon.may_answer.set()
        answer = wait_until(lambda: it.arrays)[0]
        assert (answer.prompt_version, list(answer.prompts)) == (0, ["person"])


def test_descriptors_tell_type_range_and_meaning() -> None:
    with world() as it:
        objects, rate, depth, device = it.describe(
            "max_objects", "rate_limit_hz", "depth_policy", "device"
        )
        assert (objects.integer_range[0].from_value, objects.integer_range[0].to_value) == (1, 1000)
        assert rate.floating_point_range[0].to_value == 1000.0
        assert depth.additional_constraints == "one of reject, normalize"
        assert device.read_only
        assert not objects.read_only
        assert all(len(item.description) > 10 for item in (objects, rate, depth, device))


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"camera__front__skills": "[point]"}, "no parameter 'camera.front.skills'; known: auto"),
        ({"qos_overrides./image.subscription.depth": 5}, "no parameter 'qos_overrides./image"),
        ({"promts__detect": "[person]"}, "no parameter 'promts.detect'; known: autostart"),
        ({"max_objects": 0}, "max_objects must be from 1 to 1000, got 0"),
        ({"max_objects": "many"}, "max_objects must be a whole number, got 'many'"),
        ({"prompts__detect": "person"}, "prompts.detect must be a list of strings, got 'person'"),
        ({"depth_policy": "guess"}, "depth_policy: 'guess' is not one of reject, normalize"),
    ],
)
def test_a_wrong_parameter_at_the_start_is_an_error_that_says_what_is_allowed(
    parameters: dict[str, object], reason: str
) -> None:
    with pytest.raises(InputError) as caught, world(**parameters):
        pass
    assert reason in str(caught.value)


def test_zero_stamps_follow_their_policy() -> None:
    with world(zero_stamp_policy="receive_time") as it:
        publisher = it.publisher()
        before_s = time.time()
        answer = it.ask(publisher, plain_image(1, stamp_ns=0))
        assert answer.header.stamp == answer.latency.receive_stamp
        assert answer.header.stamp.sec >= int(before_s)
        assert answer.header.frame_id == "camera_optical"
        assert it.ask(publisher, plain_image(1, stamp_ns=5)).header.stamp.nanosec == 5
        it.set(zero_stamp_policy="drop")
        publisher.publish(plain_image(1, stamp_ns=0))
        wait_until(lambda: it.node.counts("").bad == 1)
        it.set(zero_stamp_policy="keep")
        assert it.ask(publisher, plain_image(1, stamp_ns=0)).header == Header(
            frame_id="camera_optical"
        )


def _jpeg(value: int) -> CompressedImage:
    import cv2

    pixels = np.full((16, 16, 3), value, np.uint8)
    message = CompressedImage(format="jpeg")
    message.header.stamp.nanosec = 9
    message.data.frombytes(cv2.imencode(".jpg", pixels)[1].tobytes())
    return message


@pytest.mark.parametrize(
    ("arguments", "topic"),
    [
        ((), "image/compressed"),
        (("-r", "image:=/camera/front/image_raw"), "/camera/front/image_raw/compressed"),
        (("-r", "image:=/front/image_raw/compressed"), "/front/image_raw/compressed"),
        (("-r", "image/compressed:=/other/jpeg"), "/other/jpeg"),
    ],
)
def test_compressed_images_arrive_whichever_name_is_remapped(
    arguments: tuple[str, ...], topic: str
) -> None:
    with world(arguments=arguments, image_transport="compressed") as it:
        answer = it.ask(it.publisher(topic, CompressedImage), _jpeg(102))
        assert answer.header.stamp.nanosec == 9
        assert answer.detections[0].x == pytest.approx(0.4 * 16, abs=0.2)
        assert (answer.image_width, answer.image_height) == (16, 16)


def test_several_cameras_have_topics_accounts_and_names_of_their_own() -> None:
    with world(cameras="[front, rear]", listen=False) as it:
        it.listen("front")
        it.listen("rear")
        front, rear = it.publisher("front/image"), it.publisher("rear/image")
        assert it.ask(front, plain_image(1)).camera == "front"
        assert it.ask(rear, plain_image(2)).camera == "rear"
        assert it.ask(rear, plain_image(3)).frame_seq == 1
        wait_until(lambda: it.node.counts("rear").completed == 2)
        assert it.node.counts("front").completed == 1
        cameras = wait_until(lambda: {s.camera for s in it.stats if s.received})
        assert cameras <= {"front", "rear"}


def test_each_camera_is_asked_its_own_and_a_change_is_in_force_from_its_next_frame() -> None:
    parameters = {"camera__front__prompts__detect": "[crowd]", "camera__rear__skills": "[point]"}
    with world(cameras="[front, rear]", listen=False, max_objects=2, **parameters) as it:
        it.listen("front")
        it.listen("rear")
        front, rear = it.publisher("front/image"), it.publisher("rear/image")

        def asked(publisher: object) -> tuple[str, list[str], int]:
            array = it.ask(publisher, plain_image(1))
            return array.skill, list(array.prompts), array.prompt_version

        assert asked(front) == ("detect", ["crowd"], 0)
        assert asked(rear) == ("point", ["person"], 0)
        (result,) = it.set(camera__rear__prompts__point=["nothing", "person"])
        assert result.successful
        assert asked(rear) == ("point", ["nothing", "person"], 1)
        assert asked(front) == ("detect", ["crowd"], 0)
        # What all cameras are asked changes only those that have nothing of their own.
        assert it.set_together(prompts__point=["crowd"], prompts__detect=["person"]).successful
        assert asked(rear) == ("point", ["nothing", "person"], 1)
        assert it.set_together(
            camera__rear__prompts__point=[], camera__front__prompts__detect=["nothing"]
        ).successful
        assert asked(rear) == ("point", ["crowd"], 2)
        assert asked(front) == ("detect", ["nothing"], 1)


def test_a_frame_in_the_engine_keeps_its_cameras_prompts_and_the_next_has_the_new_ones() -> None:
    with world(cameras="[front, rear]", listen=False) as it:
        it.listen("front")
        it.listen("rear")
        front, rear = it.publisher("front/image"), it.publisher("rear/image")
        it.photon.may_answer.clear()
        for number, publisher in enumerate((front, rear)):
            publisher.publish(plain_image(1, stamp_ns=1))
            wait_until(lambda n=number + 1: len(it.photon.requests) == n)
        assert it.set_together(
            camera__front__skills=["point"], camera__front__prompts__point=["nothing"]
        ).successful
        for publisher in (front, rear):
            publisher.publish(plain_image(2, stamp_ns=2))
        wait_until(lambda: all(it.node.counts(name).mailboxed for name in ("front", "rear")))
        it.photon.may_answer.set()
        wait_until(lambda: len(it.arrays) == 4)
        seen = {
            (array.camera, array.header.stamp.nanosec): (
                array.skill, list(array.prompts), array.prompt_version,
            )
            for array in it.arrays
        }  # fmt: skip
        assert seen == {
            ("front", 1): ("detect", ["person"], 0),
            ("rear", 1): ("detect", ["person"], 0),
            ("front", 2): ("point", ["nothing"], 1),
            ("rear", 2): ("detect", ["person"], 0),
        }


def test_a_cameras_lists_are_refused_with_the_reason_and_described() -> None:
    with world(cameras="[front, rear]", listen=False) as it:
        before = it.node.config
        for values, reason in (
            ({"camera__front__prompts__detect": ["dragon"]}, "fake does not know 'dragon'"),
            ({"camera__front__skills": ["fly"]}, "camera.front.skills: 'fly' is not one of point"),
            ({"camera__side__skills": ["point"]}, "undeclared parameter"),
            ({"prompts__detect": []}, "prompts.detect is empty, camera.front.prompts.detect too"),
        ):
            (result,) = it.set(**values)
            assert not result.successful, values
            assert reason in result.reason
        assert it.node.config == before
        skills, prompts = it.describe("camera.rear.skills", "camera.rear.prompts.detect")
        assert skills.additional_constraints == "one of point, detect, segment"
        assert "empty takes prompts.detect" in prompts.description
        assert not prompts.read_only


def test_the_multi_camera_file_starts_a_node_that_asks_as_it_says() -> None:
    path = Path(__file__).parents[2] / "config" / "multi_camera.yaml"
    photon = FakePhoton()
    photon.known = (*photon.known, "red ball")
    with world(arguments=("--params-file", str(path)), listen=False, photon=photon) as it:
        it.listen("front")
        it.listen("rear")
        array = it.ask(it.publisher("front/image"), plain_image(1))
        assert (array.skill, list(array.prompts)) == ("detect", ["person", "red ball"])
        array = it.ask(it.publisher("rear/image"), plain_image(1))
        assert (array.skill, list(array.prompts)) == ("point", ["person"])


def test_a_slow_camera_is_not_crowded_out_by_a_fast_one() -> None:
    parameters = {"cameras": "[fast, slow]", "qos__reliability": "reliable", "qos__depth": 500}
    with world(service_s=0.02, listen=False, **parameters) as it:
        it.listen("slow")
        fast, slow = it.publisher("fast/image"), it.publisher("slow/image")
        num_slow = 12
        for index in range(num_slow * 20):
            fast.publish(plain_image(1, stamp_ns=index + 1))
            if index % 20 == 0:  # one in 100 ms, when the engine could answer five
                slow.publish(plain_image(2, stamp_ns=index + 1))
            if index % 5 == 4:  # in bursts: more than the engine can answer on any machine
                time.sleep(0.025)
                wait_until(lambda n=index + 1: it.node.counts("fast").received == n)
        wait_until(lambda: it.node.counts("slow").received == num_slow)
        wait_until(lambda: it.node.counts("slow").in_flight == 0)
        counts = it.node.counts("slow")
        assert counts.completed >= num_slow - 2, counts
        # It waits for no more than the frame in the engine and the one that had its turn: of
        # those that came after it hardly any was begun before it.
        begun = [(r.frame.camera, r.frame.stamp_ns) for r in it.photon.requests]
        for place, (camera, stamp_ns) in enumerate(begun):
            if camera == "slow":
                earlier = [other for name, other in begun[:place] if name == "fast"]
                assert sum(other > stamp_ns for other in earlier) <= 5, "a burst at most"
        fast_counts = it.node.counts("fast")
        assert fast_counts.completed > 2 * num_slow, "and the fast one gets what is left"
        assert fast_counts.overwritten > num_slow
        assert counts.balanced
        assert fast_counts.balanced


def test_segment_arrays_carry_the_outline_and_every_skill_is_answered() -> None:
    with world(skills="[segment, detect]", max_tokens=99) as it:
        publisher = it.publisher()
        publisher.publish(plain_image(128, 128, 51))
        segment, detect = wait_until(lambda: it.arrays if len(it.arrays) == 2 else None)
        assert (segment.skill, detect.skill) == ("segment", "detect")
        (mask,) = segment.detections
        assert mask.kind == PhotonDetection.MASK
        assert list(mask.ring_offsets) == [0]
        assert len(mask.polygon_xy) == 6
        assert it.photon.requests[0].max_tokens == 99


def test_every_transition_by_service() -> None:
    with world(start=False, listen=False) as it:
        it.load_error = ModelError("no weights here")
        assert not it.change_state("CONFIGURE"), "a failed load is a FAILURE"
        it.load_error = None
        assert it.change_state("CONFIGURE")
        it.listen()
        assert it.change_state("ACTIVATE")
        publisher = it.publisher()
        it.ask(publisher, plain_image(1))
        it.photon.may_answer.clear()
        publisher.publish(plain_image(2))
        wait_until(lambda: len(it.photon.requests) == 2)
        publisher.publish(plain_image(3))
        wait_until(lambda: it.node.counts("").mailboxed == 1)
        began_s = time.monotonic()
        assert it.change_state("DEACTIVATE")
        assert time.monotonic() - began_s < 2.0
        answer = wait_until(lambda: it.arrays if len(it.arrays) == 2 else None)[1]
        assert answer.status == PhotonDetectionArray.ERROR
        last = wait_until(lambda: [s for s in it.stats if s.received == 3])[-1]
        assert (last.completed, last.failed, last.dropped_reset) == (1, 1, 1)
        assert (last.in_flight, last.mailboxed) == (0, 0)
        it.photon.may_answer.set()
        assert it.change_state("ACTIVATE")
        assert it.ask(it.publisher(), plain_image(4)).status == PhotonDetectionArray.OK
        assert it.change_state("DEACTIVATE")
        assert it.change_state("CLEANUP")
        assert it.change_state("UNCONFIGURED_SHUTDOWN")


def test_detections_2d_follow_where_vision_msgs_is_installed() -> None:
    vision = pytest.importorskip("vision_msgs.msg")
    with world() as it:
        received: list[object] = []
        it.client.create_subscription(
            vision.Detection2DArray, "photon/detections_2d", received.append, RELIABLE
        )
        publisher = it.publisher()
        image = plain_image(102, 51, 204, stamp_ns=8, frame_id="front")
        wait_until(lambda: it.ask(publisher, image) and received, what="a Detection2DArray")
        (detection,) = received[0].detections
        assert serialize_message(received[0].header) == serialize_message(image.header)
        assert detection.results[0].hypothesis.class_id == "person"
        assert detection.bbox.center.position.x == pytest.approx(0.4 * 8)
        assert detection.bbox.size_x == 4.0
