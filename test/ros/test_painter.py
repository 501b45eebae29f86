"""The painter: the newest drawing of each camera, one after the other, whatever fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from photon_ros.ros import painter
from photon_ros.ros.painter import Painter


class Studio:
    """A painter whose first drawing waits until the test lets it go on."""

    def __init__(self) -> None:
        self.delivered: list[str] = []
        self.errors: list[Exception] = []
        self.may_draw = threading.Event()
        self.has_begun = threading.Event()
        self.painter: Painter[str] = Painter(self.delivered.extend, self.errors.append)

    def put(self, camera: str, name: str) -> None:
        def draw() -> Sequence[str]:
            self.has_begun.set()
            self.may_draw.wait(60.0)
            return [name]

        self.painter.put(camera, draw)

    def settle(self, count: int) -> None:
        deadline_s = time.monotonic() + 60.0
        while len(self.delivered) < count:
            assert time.monotonic() < deadline_s, self.delivered
            time.sleep(0.001)


@pytest.fixture
def studio() -> Iterator[Studio]:
    built = Studio()
    yield built
    built.may_draw.set()
    built.painter.close()


def test_the_newest_drawing_of_a_camera_wins_and_cameras_take_turns(studio: Studio) -> None:
    studio.put("front", "front 0")
    assert studio.has_begun.wait(60.0)
    for number in range(1, 4):
        studio.put("front", f"front {number}")
        if number == 1:
            studio.put("rear", "rear 1")
    studio.may_draw.set()
    studio.settle(3)
    assert studio.delivered == ["front 0", "rear 1", "front 3"]


def test_a_drawing_that_fails_is_told_and_the_next_one_is_drawn(studio: Studio) -> None:
    studio.may_draw.set()
    studio.painter.put("front", lambda: [str(1 // 0)])
    studio.put("rear", "fine")
    studio.settle(1)
    assert studio.delivered == ["fine"]
    assert [type(error) for error in studio.errors] == [ZeroDivisionError]


def test_closing_draws_what_waits_if_that_is_quick(
    studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(painter, "CLOSE_TIMEOUT_S", 60.0)  # quick on a busy machine, too
    studio.may_draw.set()
    for camera in ("front", "rear", "left"):
        studio.put(camera, camera)
    studio.painter.close()
    assert studio.delivered == ["front", "rear", "left"]


def test_closing_does_not_wait_for_a_long_drawing_nor_draw_what_waits(studio: Studio) -> None:
    studio.put("front", "long")
    assert studio.has_begun.wait(60.0)
    studio.put("rear", "never")
    began_s = time.monotonic()
    studio.painter.close()
    assert time.monotonic() - began_s < 10.0
    studio.may_draw.set()
    time.sleep(0.05)
    assert "never" not in studio.delivered
