"""A video file as a stream of pictures with an exact frame rate."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from photon_ros.core.errors import BagError, InputError

_MAX_FPS: Final = 1_000_000
_FPS: Final = re.compile(r"[+-]?[0-9]{1,20}(\.[0-9]{0,20}|/[0-9]{1,20})?(e[0-9]{1,2})?")
_OPENCV_SILENT: Final = 0  # LOG_LEVEL_SILENT


def parse_fps(text: str) -> Fraction:
    """Return a frame rate given as ``10``, ``29.97`` or ``30000/1001``; raise InputError."""
    bad = InputError(f"frame rate {text!r} is not a number (as in 10, 29.97 or 30000/1001)")
    # Fraction would also take 1e999999999, and compute it.
    if not _FPS.fullmatch(text.strip()):
        raise bad
    try:
        fps = Fraction(text.strip())
    except ZeroDivisionError:
        raise bad from None
    if not 0 < fps <= _MAX_FPS:
        raise InputError(f"frame rate must be above 0 and at most {_MAX_FPS}, got {text}")
    return fps


def exact_rate(stated: float) -> Fraction:
    """Return the ratio behind a frame rate that was rounded to a float.

    Containers keep a ratio; the largest denominator in use is 1001 (30000/1001).
    """
    return Fraction(stated).limit_denominator(1001)


class Video:
    """A video file, read once from front to back, one picture in memory at a time."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise BagError(f"video {path} {what}")
        if path.stat().st_size == 0:
            raise BagError(f"video {path} is empty (0 bytes)")
        self.path = path
        _silence_opencv()
        self._capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
        if not self._capture.isOpened():
            raise BagError(f"video {path} cannot be read: not a video, or an unknown codec")
        if _is_still_picture(path):
            self._capture.release()
            raise BagError(f"{path} is a still picture, not a video")

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._capture.release()

    @property
    def fps(self) -> Fraction:
        """The frame rate the container states; raises BagError when it states none."""
        stated = self._capture.get(cv2.CAP_PROP_FPS)
        if not 0 < stated <= _MAX_FPS:  # also false for NaN
            raise BagError(f"video {self.path} states no usable frame rate; give one with --fps")
        return exact_rate(stated)

    def frames_bgr(self) -> Iterator[NDArray[np.uint8]]:
        """Yield (height, width, 3) uint8 pictures, blue first, until the end of the video.

        Raises BagError if there is none.
        """
        frame: Any
        ok, frame = self._capture.read()
        if not ok or frame is None:
            raise BagError(f"video {self.path} holds no frame that can be decoded")
        while ok and frame is not None:
            yield frame
            ok, frame = self._capture.read()


def _is_still_picture(path: Path) -> bool:
    """Return True for a picture file; FFmpeg takes one for a video of a single frame."""
    try:
        with Image.open(path) as image:
            if getattr(image, "n_frames", 1) > 1:
                return False
    except Exception:  # Pillow's readers raise anything about what is no picture
        return False
    # A film that is nothing but JPEGs in a row begins like a picture, too, and then goes on.
    capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
    num_frames = sum(capture.read()[0] for _ in range(2))
    capture.release()
    return num_frames < 2


def _silence_opencv() -> None:
    """Keep OpenCV and its FFmpeg from writing to stderr about files they cannot read.

    What matters of it is raised by Video. FFmpeg's level is read at its first use.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    logging = getattr(getattr(cv2, "utils", None), "logging", None)
    for place in (logging, cv2):  # OpenCV 5, OpenCV 4; the oldest of 4 have none
        set_level = getattr(place, "setLogLevel", None)
        if set_level is not None:
            set_level(_OPENCV_SILENT)
            return
