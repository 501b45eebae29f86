"""Questions in words through the node to a small random checkpoint of the family: real tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from action_msgs.msg import GoalStatus
from ros_world import World, image_message, wait_until, world

from photon_ros.action import Ask
from photon_ros.msg import PhotonDetectionArray
from photon_ros.photon import Photon
from photon_ros.srv import Infer

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]

CHECKPOINT = Path(os.environ.get("PHOTON_SHARED", "")) / "golden" / "moondream"
PIXELS = np.random.default_rng(8).integers(0, 255, (60, 80, 3), np.uint8)
QUESTION = "What is in the picture?"


@pytest.fixture
def it() -> Iterator[World]:
    if not (CHECKPOINT / "model.safetensors").is_file():
        pytest.skip("PHOTON_SHARED names no folder with the reference checkpoint")
    photon = Photon(CHECKPOINT)
    with world(photon=photon, max_objects=2, max_tokens=60) as built:
        yield built


def test_infer_gives_the_text_that_python_gets(it: World) -> None:
    request = Infer.Request(image=image_message(PIXELS), skill="query", prompt=QUESTION)
    response = it.call(Infer, "infer", request)
    wanted = it.photon.query(PIXELS, QUESTION, max_tokens=60)["answer"]
    assert response.success
    assert response.text == wanted
    caption = Infer.Request(image=image_message(PIXELS), skill="caption", prompt="short")
    response = it.call(Infer, "infer", caption)
    assert response.text == it.photon.caption(PIXELS, "short", max_tokens=60)["caption"]


def test_ask_streams_the_text_that_python_gets_beside_the_frames(it: World) -> None:
    publisher = it.publisher()
    it.ask(publisher, image_message(PIXELS))
    pieces: list[str] = []
    client = it.ask_client
    assert client.wait_for_server(timeout_sec=60.0)
    sent = client.send_goal_async(
        Ask.Goal(skill="query", prompt=QUESTION, max_tokens=40),
        feedback_callback=lambda message: pieces.append(message.feedback.text),
    )
    wait_until(sent.done)
    future = sent.result().get_result_async()
    publisher.publish(image_message(PIXELS, stamp_ns=2_000_000_000))
    wait_until(future.done, what="the answer")
    answer = future.result()
    assert answer.status == GoalStatus.STATUS_SUCCEEDED
    assert answer.result.text == it.photon.query(PIXELS, QUESTION, max_tokens=40)["answer"]
    wait_until(lambda: "".join(pieces) == answer.result.text)
    wait_until(lambda: len(it.arrays) == 2)  # the frames are answered, too
    ok = (PhotonDetectionArray.OK, PhotonDetectionArray.PARTIAL)
    assert all(array.status in ok for array in it.arrays)


def test_a_skill_that_the_model_lacks_is_refused_when_it_is_asked_for(it: World) -> None:
    (result,) = it.set(skills=["segment"])
    assert not result.successful
    assert "segment" in result.reason
    assert it.node.config.skills == ("detect",)
