"""Painter: one thread that draws what somebody looks at. No ROS here.

Drawing an overlay takes longer than converting an answer, and nobody needs every one of them: it
neither holds up the executor nor the next frame, and a camera's newest drawing wins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

CLOSE_TIMEOUT_S = 0.2


class Painter(Generic[T]):
    """Runs the newest drawing of each camera and hands on what came out.

    Args:
        deliver: takes the drawing's results, on the painter's thread.
        on_error: told of a drawing that failed; the next one is drawn all the same.
    """

    def __init__(
        self, deliver: Callable[[Sequence[T]], None], on_error: Callable[[Exception], None]
    ) -> None:
        self._deliver = deliver
        self._on_error = on_error
        self._changed = threading.Condition()
        self._waiting: dict[str, Callable[[], Sequence[T]]] = {}
        self._is_drawing = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="photon-painter", daemon=True)
        self._thread.start()

    def put(self, camera: str, draw: Callable[[], Sequence[T]]) -> None:
        """Draw this soon, in place of what the camera has waiting."""
        with self._changed:
            # Taken out first: whoever was replaced goes to the end, and no camera starves.
            self._waiting.pop(camera, None)
            self._waiting[camera] = draw
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, after drawing what waits if that takes no longer than a moment."""
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        with self._changed:
            self._changed.wait_for(
                lambda: not self._waiting and not self._is_drawing, timeout=CLOSE_TIMEOUT_S
            )
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout=max(0.0, deadline_s - time.monotonic()))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or self._waiting)
                if self._is_closing:
                    return
                draw = self._waiting.pop(next(iter(self._waiting)))
                self._is_drawing = True
            try:
                self._deliver(draw())
            except Exception as error:
                self._on_error(error)
            with self._changed:
                self._is_drawing = False
                self._changed.notify_all()
