"""Closing while answers are being built: every future resolves, whatever the pool still holds."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait

import numpy as np

from photon_ros.core.errors import EngineStopped
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.photon import NUM_PREPARE_THREADS, Photon


def test_an_answer_whose_building_is_queued_at_close_still_arrives(
    checkpoint: Checkpoint, frame: Frame
) -> None:
    photon = Photon(checkpoint)
    photon.point(frame.image, "warm up", max_objects=1)
    photon.submit(Request("point", "cup", frame, max_objects=1)).result(10)
    is_free = threading.Event()
    all_busy = threading.Barrier(NUM_PREPARE_THREADS + 1)

    def block() -> None:
        all_busy.wait(10)
        is_free.wait(20)

    blockers = [photon._pool.submit(block) for _ in range(NUM_PREPARE_THREADS)]
    # Only when every thread of the pool has taken its blocker is the queue empty.
    all_busy.wait(10)
    assert not photon._pool._work_queue.qsize()
    # The frame was cut before, so only the building of the result waits for the pool.
    future = photon.submit(Request("point", "another", frame, max_objects=1))
    deadline_s = time.monotonic() + 10
    while not photon._pool._work_queue.qsize() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert photon._pool._work_queue.qsize() == 1
    assert not future.done()
    photon.close()
    assert len(future.result(5).detections) <= 1
    is_free.set()
    wait(blockers, 5)


def test_no_future_is_left_behind_however_full_the_pool_is(checkpoint: Checkpoint) -> None:
    rng = np.random.default_rng(0)
    for delay_s in (0.0, 0.01, 0.03, 0.06):
        photon = Photon(checkpoint)
        frames = [Frame(rng.integers(0, 255, (700, 900, 3), dtype=np.uint8)) for _ in range(6)]
        futures = [
            photon.submit(Request("point", f"thing {n}", frame, max_objects=2))
            for frame in frames
            for n in range(3)
        ]
        threading.Event().wait(delay_s)
        photon.close()
        done, pending = wait(futures, timeout=10)
        assert not pending
        errors = [error for future in done if (error := future.exception()) is not None]
        assert all(isinstance(error, EngineStopped) for error in errors)
