"""CropCache: each frame is cut once per crop budget, however many requests ask about it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Executor, Future

from photon_ros.core.errors import InputError
from photon_ros.core.frame import Frame
from photon_ros.engine.interfaces import FrameCrops
from photon_ros.models.moondream.config import VisionConfig
from photon_ros.models.moondream.image import RESIZE_METHODS, ResizeMethod, cut

MAX_FRAMES = 8

CropKey = tuple[Frame, int]
"""A frame and its budget of local crops."""


class CropCache:
    """Crops of the frames asked about most recently, as futures; safe from any thread."""

    def __init__(
        self, config: VisionConfig, executor: Executor, resize: ResizeMethod = "exact"
    ) -> None:
        if resize not in RESIZE_METHODS:
            raise InputError(f"resize must be one of {', '.join(RESIZE_METHODS)}, got {resize!r}")
        self._config = config
        self._resize: ResizeMethod = resize
        self._executor = executor
        self._lock = threading.Lock()
        self._crops: OrderedDict[CropKey, Future[FrameCrops]] = OrderedDict()

    def key_of(self, frame: Frame, max_crops: int | None) -> CropKey:
        """Return what identifies the crops of a frame: budgets that cut alike are one."""
        limit = self._config.max_crops
        return frame, limit if max_crops is None else min(max_crops, limit)

    def crops_of(self, key: CropKey) -> Future[FrameCrops]:
        """Return the future crops of a key, starting to cut when nobody has asked before.

        Raises RuntimeError when the executor was shut down.
        """
        frame, budget = key
        with self._lock:
            crops = self._crops.get(key)
            if crops is None:
                crops = self._executor.submit(cut, frame.image, self._config, budget, self._resize)
                self._crops[key] = crops
                if len(self._crops) > MAX_FRAMES:
                    self._crops.popitem(last=False)
            self._crops.move_to_end(key)
            return crops
