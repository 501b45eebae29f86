"""Real messages to frames and answers to messages, after a round through serialisation."""

from __future__ import annotations

import array
import math
import struct
from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import Image

from photon_ros.core.frame import Frame
from photon_ros.core.result import Detection, DetectionKind, EndReason, Result
from photon_ros.msg import PhotonDetection, PhotonDetectionArray
from photon_ros.pixels import ENCODINGS
from photon_ros.ros.answer import Answer, FrameJob
from photon_ros.ros.arrival import BadFrame, Decoded, transport_ms
from photon_ros.ros.conversions import (
    array_from_answer,
    decode_message,
    stamp_ns,
    stats_message,
    time_message,
)
from photon_ros.ros.latency import LatencySummary
from photon_ros.ros.mailbox import FrameCounts
from photon_ros.ros.params import NodeConfig

pytestmark = pytest.mark.ros

WIDTH, HEIGHT = 6, 4
# A picture of 2x2 blocks, so that halved chroma and Bayer patterns lose nothing inside a block.
COLOURS = [
    [(200, 40, 90), (20, 180, 60), (120, 120, 120)],
    [(10, 20, 230), (250, 250, 5), (0, 0, 0)],
]
PICTURE = [[COLOURS[y // 2][x // 2] for x in range(WIDTH)] for y in range(HEIGHT)]
GREY = [[(40 * x + 7 * y) % 256 for x in range(WIDTH)] for y in range(HEIGHT)]


def yuv_of(red: int, green: int, blue: int) -> tuple[int, int, int]:
    """BT.601 with footroom, as its definition has it."""
    y = 16 + 65.481 * red / 255 + 128.553 * green / 255 + 24.966 * blue / 255
    u = 128 - 37.797 * red / 255 - 74.203 * green / 255 + 112.0 * blue / 255
    v = 128 + 112.0 * red / 255 - 93.786 * green / 255 - 18.214 * blue / 255
    return round(y), round(u), round(v)


def channels(order: str) -> Callable[[], list[bytes]]:
    def rows() -> list[bytes]:
        places = {"r": 0, "g": 1, "b": 2}
        return [
            b"".join(
                bytes(200 if name == "a" else pixel[places[name]] for name in order)
                for pixel in row
            )
            for row in PICTURE
        ]

    return rows


def packed_yuv(order: str) -> Callable[[], list[bytes]]:
    def rows() -> list[bytes]:
        packed = []
        for row in PICTURE:
            line = b""
            for left in range(0, WIDTH, 2):
                (y0, u, v), (y1, _, _) = yuv_of(*row[left]), yuv_of(*row[left + 1])
                line += bytes({"0": y0, "1": y1, "u": u, "v": v}[name] for name in order)
            packed.append(line)
        return packed

    return rows


def nv12() -> list[bytes]:
    luma = [bytes(yuv_of(*pixel)[0] for pixel in row) for row in PICTURE]
    chroma = [
        b"".join(bytes(yuv_of(*row[left])[1:]) for left in range(0, WIDTH, 2))
        for row in PICTURE[::2]
    ]
    return luma + chroma


def numbers(code: str, scale: float, big: bool) -> Callable[[], list[bytes]]:
    def rows() -> list[bytes]:
        order = ">" if big else "<"
        kind = float if code == "f" else int
        return [
            struct.pack(f"{order}{WIDTH}{code}", *(kind(v * scale) for v in row)) for row in GREY
        ]

    return rows


def stretched_grey() -> list[list[tuple[int, int, int]]]:
    """What depth_policy normalize makes of GREY: its own range over 0..255, 0 where nothing is."""
    valid = [value for row in GREY for value in row if value != 0]
    near, far = min(valid), max(valid)
    return [
        [(0 if value == 0 else round(255 * (value - near) / (far - near)),) * 3 for value in row]
        for row in GREY
    ]


def bayer(pattern: str) -> Callable[[], list[bytes]]:
    def rows() -> list[bytes]:
        places = {"r": 0, "g": 1, "b": 2}
        return [
            bytes((90, 150, 210)[places[pattern[2 * (y % 2) + x % 2]]] for x in range(WIDTH))
            for y in range(HEIGHT)
        ]

    return rows


SAME = PICTURE
GREY_RGB = [[(value,) * 3 for value in row] for row in GREY]
PLAIN = [[(90, 150, 210)] * WIDTH for _ in range(HEIGHT)]
# encoding, rows as stored, big-endian, the picture wanted, tolerance of rounding
CASES = [
    ("mono8", lambda: [bytes(row) for row in GREY], False, GREY_RGB, 0),
    ("mono16", numbers("H", 257, False), False, GREY_RGB, 0),
    ("mono16", numbers("H", 257, True), True, GREY_RGB, 0),
    ("rgb8", channels("rgb"), False, SAME, 0),
    ("rgba8", channels("rgba"), False, SAME, 0),
    ("bgr8", channels("bgr"), False, SAME, 0),
    ("bgra8", channels("bgra"), False, SAME, 0),
    ("bayer_rggb8", bayer("rggb"), False, PLAIN, 0),
    ("bayer_bggr8", bayer("bggr"), False, PLAIN, 0),
    ("bayer_gbrg8", bayer("gbrg"), False, PLAIN, 0),
    ("bayer_grbg8", bayer("grbg"), False, PLAIN, 0),
    ("yuv422", packed_yuv("u0v1"), False, SAME, 3),
    ("uyvy", packed_yuv("u0v1"), False, SAME, 3),
    ("yuv422_yuy2", packed_yuv("0u1v"), False, SAME, 3),
    ("yuyv", packed_yuv("0u1v"), False, SAME, 3),
    ("nv12", nv12, False, SAME, 3),
    ("16UC1", numbers("H", 1, False), False, stretched_grey(), 1),
    ("16UC1", numbers("H", 1, True), True, stretched_grey(), 1),
    ("32FC1", numbers("f", 1, False), False, None, 1),
    ("32FC1", numbers("f", 1, True), True, None, 1),
]


def test_the_cases_below_are_all_encodings() -> None:
    assert {case[0] for case in CASES} == set(ENCODINGS)


def received(rows: list[bytes], encoding: str, *, padding: int, big: bool) -> Image:
    """The message as it comes out of the middleware."""
    message = Image(
        width=WIDTH,
        height=HEIGHT,
        encoding=encoding,
        step=len(rows[0]) + padding,
        is_bigendian=int(big),
    )
    data = array.array("B")
    data.frombytes(b"".join(row + b"\x5a" * padding for row in rows))
    message.data = data
    return deserialize_message(serialize_message(message), Image)


def decoded(message: Image, **changes: object) -> Decoded:
    return decode_message(
        message,
        camera="front",
        sequence=8,
        receive_stamp_ns=123,
        config=NodeConfig().changed(changes),
    )


@pytest.mark.parametrize("padding", [0, 3, 16])
@pytest.mark.parametrize(
    ("encoding", "rows", "big", "wanted", "tolerance"),
    CASES,
    ids=[f"{case[0]}{'-big' if case[2] else ''}" for case in CASES],
)
def test_every_encoding_equals_a_slow_conversion(
    encoding: str,
    rows: Callable[[], list[bytes]],
    big: bool,
    wanted: list[list[tuple[int, int, int]]] | None,
    tolerance: int,
    padding: int,
) -> None:
    if wanted is None:  # a float image has no "nothing there" at zero
        far = max(max(row) for row in GREY)
        wanted = [[(round(255 * value / far),) * 3 for value in row] for row in GREY]
    message = received(rows(), encoding, padding=padding, big=big)
    frame = decoded(message, depth_policy="normalize").frame
    assert (frame.width_px, frame.height_px) == (WIDTH, HEIGHT)
    difference = np.abs(frame.image.astype(int) - np.array(wanted))
    assert difference.max() <= tolerance


def test_the_frame_knows_where_it_comes_from() -> None:
    message = received(channels("rgb")(), "rgb8", padding=0, big=False)
    message.header.stamp.sec, message.header.stamp.nanosec = 12, 34
    message.header.frame_id = "optical"
    result = decoded(message)
    assert result.header is message.header
    frame = result.frame
    assert (frame.stamp_ns, frame.frame_id) == (12_000_000_034, "optical")
    assert (frame.camera, frame.sequence) == ("front", 8)


def test_an_rgb8_image_is_not_copied() -> None:
    message = received(channels("rgb")(), "rgb8", padding=0, big=False)
    frame = decoded(message).frame
    message.data[0] = 99
    assert frame.image[0, 0, 0] == 99


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("encoding", "rgb9", "'rgb9' is not one of mono8"),
        ("encoding", "16UC1", "depth_policy is reject"),
        ("encoding", "", "encoding '' is not one of"),
        ("step", 17, "step is 17 bytes"),
        ("step", 19, "72 bytes"),
        ("step", 2**32 - 1, "72 bytes"),
        ("width", 0, "no pixels"),
        ("width", 2**32 - 1, "too large"),
        ("height", 5, "72 bytes"),
        ("height", 3, "72 bytes"),
    ],
)
def test_every_lie_is_a_bad_frame_with_its_reason(field: str, value: object, reason: str) -> None:
    message = received(channels("rgb")(), "rgb8", padding=0, big=False)
    setattr(message, field, value)
    with pytest.raises(BadFrame) as caught:
        decoded(message)
    assert reason in str(caught.value)


def test_an_image_above_max_pixels_is_refused() -> None:
    message = received(channels("rgb")(), "rgb8", padding=0, big=False)
    assert decoded(message, max_pixels=24).frame.width_px == WIDTH
    with pytest.raises(BadFrame, match="too large"):
        decoded(message, max_pixels=23)


def test_transport_time_is_nan_where_the_clocks_disagree() -> None:
    now_ns = 1_700_000_000_000_000_000
    assert transport_ms(now_ns - 5_500_000, now_ns) == 5.5
    assert transport_ms(now_ns, now_ns) == 0.0
    for stamp in (0, 1_000_000_000, now_ns + 1, now_ns - 61_000_000_000):
        assert math.isnan(transport_ms(stamp, now_ns))


@pytest.mark.parametrize("time_ns", [0, 1, 999_999_999, 10**9, -1, 2**31 * 10**9 - 1])
def test_stamps_survive_the_way_there_and_back(time_ns: int) -> None:
    assert stamp_ns(time_message(time_ns)) == time_ns


def answered(*results: Result | Exception) -> PhotonDetectionArray:
    """The message of a detect answer, one prompt for each result."""
    answers: list[Answer] = []
    message = received(channels("rgb")(), "rgb8", padding=0, big=False)
    job = FrameJob(
        camera="front",
        decoded=Decoded(
            Frame(np.zeros((HEIGHT, WIDTH, 3), np.uint8), camera="front", sequence=2**40),
            message.header,
        ),
        asked=[("detect", tuple(f"p{index}" for index in range(len(results))))],
        prompt_version=9,
        dropped_since_last=4,
        receive_s=10.0,
        receive_stamp_ns=5_000_000_006,
        mailbox_ms=1.5,
        decode_image_ms=2.5,
        on_answer=answers.append,
        on_answered=lambda job: None,
        on_shed=lambda job: None,
    )
    for index, result in enumerate(results):
        job.settle(0, index, result)
    filled = array_from_answer(answers[0], now_s=10.25)
    return deserialize_message(serialize_message(filled), PhotonDetectionArray)


def test_a_mask_carries_its_rings_in_pixels() -> None:
    square = ((0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.0, 0.5))
    hole = ((0.25, 0.25), (0.5, 0.25), (0.25, 0.5))
    found = Detection(DetectionKind.MASK, "p0", 0.25, 0.25, 0.5, 0.5, polygon=(square, hole))
    (mask,) = answered(Result("detect", "p0", (found,))).detections
    assert mask.kind == PhotonDetection.MASK
    assert list(mask.ring_offsets) == [0, 4]
    assert list(mask.polygon_xy[:4]) == [0.0, 0.0, 3.0, 0.0]
    assert list(mask.polygon_xy[8:10]) == [1.5, 1.0]
    assert len(mask.polygon_xy) == 14


def test_boxes_beyond_the_image_are_not_clamped() -> None:
    found = Detection(DetectionKind.BOX, "p0", 1.0, 0.0, 0.5, 1.0, score=0.75)
    (box,) = answered(Result("detect", "p0", (found,))).detections
    assert (box.x, box.y, box.width, box.height, box.score) == (6.0, 0.0, 3.0, 4.0, 0.75)


def test_the_array_says_what_failed_and_keeps_what_was_found() -> None:
    found = Detection(DetectionKind.POINT, "p1", 0.5, 0.5)
    message = answered(
        RuntimeError("no luck"), Result("detect", "p1", (found,), end_reason=EndReason.MAX_OBJECTS)
    )
    assert message.status == PhotonDetectionArray.ERROR
    assert message.error == "p0: RuntimeError: no luck; p1: ended by max_objects"
    assert [item.prompt_index for item in message.detections] == [1]
    assert (message.prompt_version, message.dropped_since_last) == (9, 4)
    assert message.frame_seq == 2**40
    assert message.latency.receive_stamp == time_message(5_000_000_006)
    assert (message.latency.queue_ms, message.latency.decode_image_ms) == (1.5, 2.5)
    assert message.latency.total_ms == pytest.approx(250.0)


def test_stats_carry_every_count() -> None:
    counts = FrameCounts(21, 1, 2, 3, 1, 4, 5, 1, 2, 2)
    assert counts.balanced
    summary = LatencySummary(fps=9.5, p50_ms=1.0, p95_ms=2.0, p99_ms=math.nan)
    message = stats_message("rear", counts, summary, stamp=time_message(7))
    assert message.camera == "rear"
    assert message.header.stamp.nanosec == 7
    parts = [
        message.completed, message.failed, message.in_flight, message.mailboxed,
        message.dropped_overwritten, message.dropped_stale, message.dropped_rate,
        message.dropped_bad, message.dropped_reset,
    ]  # fmt: skip
    assert parts == [1, 2, 3, 1, 4, 5, 1, 2, 2]
    assert message.received == sum(parts)
    assert (message.fps, message.p95_ms) == (9.5, 2.0)
    assert math.isnan(message.p99_ms)
