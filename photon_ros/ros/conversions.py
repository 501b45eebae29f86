"""Messages to frames and answers to messages. Pure: no node, no clock, no middleware."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from builtin_interfaces.msg import Time
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from photon_ros.core.errors import ImageError
from photon_ros.core.frame import Frame
from photon_ros.core.result import Detection, DetectionKind
from photon_ros.msg import FrameLatency, PerceptionStats, PhotonDetection, PhotonDetectionArray
from photon_ros.picture_files import decode_compressed
from photon_ros.pixels import ENCODINGS, check_size, decode_raw
from photon_ros.ros.answer import Answer, AnswerStatus
from photon_ros.ros.arrival import BadFrame, Decoded, transport_ms
from photon_ros.ros.cv_bridge_fallback import Convert
from photon_ros.ros.latency import LatencySummary
from photon_ros.ros.mailbox import FrameCounts
from photon_ros.ros.params import NodeConfig

ImageMessage: TypeAlias = Any  # sensor_msgs Image or CompressedImage

_KINDS = {
    DetectionKind.POINT: PhotonDetection.POINT,
    DetectionKind.BOX: PhotonDetection.BOX,
    DetectionKind.MASK: PhotonDetection.MASK,
}
_STATUSES = {
    AnswerStatus.OK: PhotonDetectionArray.OK,
    AnswerStatus.PARTIAL: PhotonDetectionArray.PARTIAL,
    AnswerStatus.TIMEOUT: PhotonDetectionArray.TIMEOUT,
    AnswerStatus.ERROR: PhotonDetectionArray.ERROR,
}


def decode_message(
    message: ImageMessage,
    *,
    camera: str,
    sequence: int,
    receive_stamp_ns: int,
    config: NodeConfig,
    convert_other: Convert | None = None,
) -> Decoded:
    """Return the frame in an Image or CompressedImage.

    Args:
        convert_other: takes the encodings that are not in photon_ros.pixels.ENCODINGS.
        sequence: running number of the frame among those received.
        receive_stamp_ns: ROS time at which the message was received.

    Raises:
        BadFrame: nothing in the message can be trusted; the reason names what does not fit.
    """
    header = _usable_header(message.header, receive_stamp_ns, config)
    try:
        if isinstance(message, CompressedImage):
            pixels = decode_compressed(
                message.data,
                image_format=message.format,
                depth_policy=config.depth_policy,
                max_pixels=config.max_pixels,
            )
        else:
            pixels = _raw_pixels(message, config, convert_other)
    except ImageError as error:
        raise BadFrame(str(error)) from error
    frame = Frame(
        pixels,
        stamp_ns=stamp_ns(header.stamp),
        frame_id=header.frame_id,
        camera=camera,
        sequence=sequence,
    )
    return Decoded(frame, header)


def _raw_pixels(
    message: ImageMessage, config: NodeConfig, convert_other: Convert | None
) -> NDArray[np.uint8]:
    if message.encoding not in ENCODINGS:
        if convert_other is None:
            raise ImageError(
                f"encoding {message.encoding!r} is not one of {', '.join(ENCODINGS)}; "
                "cv_bridge, which knows more of them, is not installed"
            )
        check_size(message.width, message.height, config.max_pixels)
        return convert_other(message)
    return decode_raw(
        message.data,
        encoding=message.encoding,
        width=message.width,
        height=message.height,
        step=message.step,
        is_bigendian=bool(message.is_bigendian),
        depth_policy=config.depth_policy,
        max_pixels=config.max_pixels,
    )


def format_of(message: ImageMessage) -> str:
    """Return the encoding of an Image or the format of a CompressedImage."""
    return str(message.format if isinstance(message, CompressedImage) else message.encoding)


def _usable_header(header: Header, receive_stamp_ns: int, config: NodeConfig) -> Header:
    if "\ufffd" in header.frame_id:
        # rclpy puts this sign where the bytes are not UTF-8: the header cannot be copied unchanged.
        raise BadFrame(f"frame_id {header.frame_id!r} is not valid UTF-8")
    if header.stamp.nanosec >= 1_000_000_000:
        raise BadFrame(f"stamp has {header.stamp.nanosec} nanoseconds, more than a second")
    if stamp_ns(header.stamp) != 0 or config.zero_stamp_policy == "keep":
        return header
    if config.zero_stamp_policy == "drop":
        raise BadFrame("stamp is zero, and zero_stamp_policy is drop")
    return Header(stamp=time_message(receive_stamp_ns), frame_id=header.frame_id)


def message_type(image_transport: str) -> type[ImageMessage]:
    """Return the message class of an image_transport parameter."""
    chosen: type[ImageMessage] = CompressedImage if image_transport == "compressed" else Image
    return chosen


def stamp_ns(stamp: Time) -> int:
    """Return a stamp in nanoseconds."""
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def time_message(time_ns: int) -> Time:
    """Return nanoseconds as a builtin_interfaces/Time."""
    sec, nanosec = divmod(time_ns, 1_000_000_000)
    return Time(sec=sec, nanosec=nanosec)


def array_from_answer(answer: Answer, *, now_s: float) -> PhotonDetectionArray:
    """Return the message of one skill's answer.

    Args:
        now_s: steady time of publishing, for publish_ms and total_ms.
    """
    job = answer.job
    frame = job.decoded.frame
    array = PhotonDetectionArray(
        header=job.decoded.header,
        camera=frame.camera,
        image_width=frame.width_px,
        image_height=frame.height_px,
        skill=answer.skill,
        prompts=list(answer.prompts),
        prompt_version=job.prompt_version,
        status=_STATUSES[answer.status],
        error=answer.error,
        frame_seq=frame.sequence,
        dropped_since_last=job.dropped_since_last,
        latency=_latency(answer, now_s),
    )
    for index, result in enumerate(answer.results):
        for detection in result.detections if result is not None else ():
            array.detections.append(_detection(detection, index, frame))
    return array


def _detection(detection: Detection, prompt_index: int, frame: Frame) -> PhotonDetection:
    width_px, height_px = frame.width_px, frame.height_px
    message = PhotonDetection(
        kind=_KINDS[detection.kind],
        label=detection.label,
        prompt_index=prompt_index,
        score=detection.score,
        score_source=PhotonDetection.TOKEN_PROB,
        x=detection.x * width_px,
        y=detection.y * height_px,
        width=detection.width * width_px,
        height=detection.height * height_px,
    )
    for ring in detection.polygon:
        message.ring_offsets.append(len(message.polygon_xy) // 2)
        for x, y in ring:
            message.polygon_xy.extend((x * width_px, y * height_px))
    return message


def _latency(answer: Answer, now_s: float) -> FrameLatency:
    job, timings = answer.job, answer.timings
    return FrameLatency(
        receive_stamp=time_message(job.receive_stamp_ns),
        transport_ms=transport_ms(job.decoded.frame.stamp_ns, job.receive_stamp_ns),
        queue_ms=job.mailbox_ms + timings.queue_ms,
        decode_image_ms=job.decode_image_ms,
        preprocess_ms=timings.preprocess_ms,
        prefill_ms=timings.prefill_ms,
        decode_ms=timings.decode_ms,
        postprocess_ms=timings.postprocess_ms,
        publish_ms=(now_s - answer.answered_s) * 1e3,
        total_ms=(now_s - job.receive_s) * 1e3,
        tokens=timings.num_tokens,
        batch_size=timings.batch_size,
        zombie_steps=timings.zombie_steps,
    )


def stats_message(
    camera: str, counts: FrameCounts, summary: LatencySummary, *, stamp: Time
) -> PerceptionStats:
    """Return the account of one camera as a message."""
    return PerceptionStats(
        header=Header(stamp=stamp),
        camera=camera,
        received=counts.received,
        completed=counts.completed,
        failed=counts.failed,
        in_flight=counts.in_flight,
        mailboxed=counts.mailboxed,
        dropped_overwritten=counts.overwritten,
        dropped_stale=counts.stale,
        dropped_rate=counts.rate,
        dropped_bad=counts.bad,
        dropped_reset=counts.reset,
        fps=summary.fps,
        p50_ms=summary.p50_ms,
        p95_ms=summary.p95_ms,
        p99_ms=summary.p99_ms,
    )
