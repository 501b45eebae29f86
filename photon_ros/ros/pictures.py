"""Answers as pictures: the overlay and the mask of one frame, as messages. Pure."""

from __future__ import annotations

import array
from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from photon_ros.core.frame import Frame
from photon_ros.core.mask import mask_of
from photon_ros.core.result import Detection, DetectionKind
from photon_ros.overlay import draw
from photon_ros.ros.answer import Answer

Pixels = NDArray[np.uint8]


def detections_of(answers: Sequence[Answer]) -> list[Detection]:
    """Return every object of the answers, in their order."""
    return [
        detection
        for answer in answers
        for result in answer.results
        if result is not None
        for detection in result.detections
    ]


def overlay_of(frame: Frame, answers: Sequence[Answer], *, scale: float) -> Pixels:
    """Return the frame with its answers drawn on it, (height, width, 3) uint8 RGB.

    Args:
        scale: size as a share of the frame's, in (0, 1].
    """
    image = frame.image
    if scale < 1.0:
        size = (max(1, round(frame.width_px * scale)), max(1, round(frame.height_px * scale)))
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
    return draw(image, detections_of(answers))


def rgb_message(pixels: Pixels, header: Header) -> Image:
    """Return (height, width, 3) uint8 RGB pixels as an Image of encoding rgb8."""
    height_px, width_px = pixels.shape[:2]
    return Image(
        header=header,
        height=height_px,
        width=width_px,
        encoding="rgb8",
        step=3 * width_px,
        data=_message_bytes(pixels),
    )


def jpeg_message(pixels: Pixels, header: Header, *, quality: int) -> CompressedImage:
    """Return (height, width, 3) uint8 RGB pixels as a JPEG of quality 1 to 100."""
    bgr = np.ascontiguousarray(pixels[:, :, ::-1])
    is_encoded, jpeg = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not is_encoded:
        raise ValueError(f"OpenCV cannot encode a picture of shape {pixels.shape}")
    # As image_transport writes it, so that its republishers take it back.
    return CompressedImage(
        header=header, format="rgb8; jpeg compressed bgr8", data=_message_bytes(jpeg)
    )


def mask_message(frame: Frame, answer: Answer, header: Header) -> Image:
    """Return the instance ids of a segment answer as a mono16 Image.

    Value n is the outline of detection n of the answer's array, counted from 1; 0 is none of
    them. Where outlines overlap the later one shows.
    """
    ids = np.zeros((frame.height_px, frame.width_px), np.dtype("<u2"))
    for number, detection in enumerate(detections_of([answer]), start=1):
        if detection.kind is DetectionKind.MASK:
            inside = mask_of(detection.polygon, width_px=frame.width_px, height_px=frame.height_px)
            ids[inside] = number
    return Image(
        header=header,
        height=frame.height_px,
        width=frame.width_px,
        encoding="mono16",
        is_bigendian=0,
        step=2 * frame.width_px,
        data=_message_bytes(ids),
    )


def _message_bytes(values: NDArray[np.generic]) -> array.array[int]:
    # The setter of a message copies an array at once and anything else item by item.
    data = array.array("B")
    data.frombytes(np.ascontiguousarray(values).tobytes())
    return data
