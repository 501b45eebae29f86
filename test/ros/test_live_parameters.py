"""Every parameter that can be changed live has an effect that is seen from outside, over DDS."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from diagnostic_msgs.msg import DiagnosticStatus
from ros_world import (
    RELIABLE,
    World,
    image_message,
    plain_image,
    wait_until,
    wait_until_quiet,
    world,
)
from sensor_msgs.msg import CompressedImage, Image

from photon_ros.msg import PhotonDetectionArray
from photon_ros.ros.params import specs

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]

LIVE = {spec.name: spec.default for spec in specs() if not spec.read_only}
Effect = Callable[["Bench"], None]


class Bench:
    """A world, and what the effects look at."""

    def __init__(self, it: World) -> None:
        self.it = it
        self.publisher = it.publisher()
        self.overlays: list[Any] = []
        self.jpegs: list[Any] = []
        for kind, name, kept in (
            (Image, "overlay", self.overlays),
            (CompressedImage, "overlay/compressed", self.jpegs),
        ):
            it.client.create_subscription(kind, f"photon/{name}", kept.append, RELIABLE)
        # The first ones may come before the match.
        wait_until(lambda: self.ask() and self.overlays and self.jpegs, what="an overlay")

    def ask(self, image: Image | None = None) -> PhotonDetectionArray:
        """The answer to an image; by default one that was taken just now."""
        return self.it.ask(self.publisher, image or self.image())

    def image(self, **header: Any) -> Image:
        pixels = np.random.default_rng(1).integers(0, 255, (48, 64, 3), np.uint8)
        return image_message(pixels, **{"stamp_ns": time.time_ns(), **header})

    def set(self, name: str, value: Any) -> None:
        (result,) = self.it.set(**{name: value})
        assert result.successful, result.reason

    def dropped(self, reason: str, image: Image) -> None:
        """Publish an image and see that it is dropped."""
        before = getattr(self.it.node.counts(""), reason)
        self.publisher.publish(image)
        wait_until(lambda: getattr(self.it.node.counts(""), reason) > before, what=reason)

    def newest(self, kept: list[Any]) -> Any:
        """What is drawn of a new image."""
        kept.clear()
        self.ask()
        return wait_until(lambda: kept)[-1]

    def status(self, words: str) -> DiagnosticStatus:
        self.it.statuses.clear()
        return wait_until(
            lambda: [item for item in self.it.statuses_of("camera") if words in item.message],
            what=f"a status with {words!r}",
        )[0]


def prompts(skill: str) -> Effect:
    def effect(bench: Bench) -> None:
        bench.set("skills", [skill])
        assert list(bench.ask().prompts) == ["person"]
        bench.set(f"prompts.{skill}", ["nothing", "person"])
        assert list(bench.ask().prompts) == ["nothing", "person"]

    return effect


def request(name: str, value: int) -> Effect:
    def effect(bench: Bench) -> None:
        bench.set(name, value)
        bench.ask()
        assert getattr(bench.it.photon.requests[-1], name) == value

    return effect


def skills(bench: Bench) -> None:
    bench.set("skills", ["point"])
    assert bench.ask().skill == "point"


def rate_limit_hz(bench: Bench) -> None:
    bench.ask()
    bench.set("rate_limit_hz", 0.01)
    bench.dropped("rate", bench.image())
    bench.set("rate_limit_hz", 1000.0)
    bench.ask()  # at once, not after the hundred seconds of before


def max_age_ms(bench: Bench) -> None:
    old = bench.image(stamp_ns=time.time_ns() - 5_000_000_000)
    assert bench.ask(old).status == PhotonDetectionArray.OK
    bench.set("max_age_ms", 1000.0)
    bench.dropped("stale", old)


def request_timeout_ms(bench: Bench) -> None:
    bench.it.photon.service_s = 0.3
    try:
        assert bench.ask().status == PhotonDetectionArray.OK
        bench.set("request_timeout_ms", 100.0)
        assert bench.ask().status == PhotonDetectionArray.TIMEOUT
    finally:
        bench.it.photon.service_s = 0.0


def zero_stamp_policy(bench: Bench) -> None:
    assert bench.ask(plain_image(1, stamp_ns=0)).header.stamp.sec == 0
    bench.set("zero_stamp_policy", "drop")
    bench.dropped("bad", plain_image(1, stamp_ns=0))


def depth_policy(bench: Bench) -> None:
    depth = Image(width=8, height=6, encoding="16UC1", step=16)
    depth.header.stamp = bench.image().header.stamp
    depth.data.frombytes(np.arange(48, dtype="<u2").tobytes())
    bench.dropped("bad", depth)
    bench.set("depth_policy", "normalize")
    assert bench.ask(depth).status == PhotonDetectionArray.OK


def max_pixels(bench: Bench) -> None:
    bench.set("max_pixels", 64 * 48 - 1)
    bench.dropped("bad", bench.image())


def overlay_enable(bench: Bench) -> None:
    bench.newest(bench.overlays)
    bench.set("overlay.enable", False)
    wait_until_quiet(bench.overlays)  # what was being drawn has come by now
    bench.ask()
    time.sleep(0.3)
    assert not bench.overlays


def overlay_scale(bench: Bench) -> None:
    assert bench.newest(bench.overlays).width == 64
    bench.set("overlay.scale", 0.5)
    wait_until(lambda: bench.newest(bench.overlays).width == 32)


def overlay_jpeg_quality(bench: Bench) -> None:
    before = len(bench.newest(bench.jpegs).data)
    bench.set("overlay.jpeg_quality", 5)
    wait_until(lambda: len(bench.newest(bench.jpegs).data) < 0.5 * before)


def diagnostics_period(bench: Bench) -> None:
    bench.set("diagnostics.period", 30.0)
    wait_until_quiet(bench.it.statuses, 2.5)  # more than the second of the default


def warn_p95_ms(bench: Bench) -> None:
    bench.set("diagnostics.warn_p95_ms", 0.001)
    bench.ask()
    assert bench.status("p95 latency").level == DiagnosticStatus.WARN


def error_p95_ms(bench: Bench) -> None:
    bench.set("diagnostics.error_p95_ms", 0.001)
    bench.ask()
    assert bench.status("p95 latency").level == DiagnosticStatus.ERROR


def min_fps(bench: Bench) -> None:
    bench.set("diagnostics.min_fps", 900.0)
    assert bench.status("answers per second").level == DiagnosticStatus.WARN


def max_drop_ratio(bench: Bench) -> None:
    bench.dropped("bad", plain_image(1, stamp_ns=7, frame_id="\ufffd"))
    bench.set("diagnostics.max_drop_ratio", 0.0)
    assert bench.status("of the frames dropped").level == DiagnosticStatus.WARN


EFFECTS: dict[str, Effect] = {
    "skills": skills,
    "prompts.point": prompts("point"),
    "prompts.detect": prompts("detect"),
    "prompts.segment": prompts("segment"),
    "max_objects": request("max_objects", 7),
    "max_tokens": request("max_tokens", 33),
    "max_crops": request("max_crops", 2),
    "rate_limit_hz": rate_limit_hz,
    "max_age_ms": max_age_ms,
    "request_timeout_ms": request_timeout_ms,
    "zero_stamp_policy": zero_stamp_policy,
    "depth_policy": depth_policy,
    "max_pixels": max_pixels,
    "overlay.enable": overlay_enable,
    "overlay.scale": overlay_scale,
    "overlay.jpeg_quality": overlay_jpeg_quality,
    "diagnostics.period": diagnostics_period,
    "diagnostics.warn_p95_ms": warn_p95_ms,
    "diagnostics.error_p95_ms": error_p95_ms,
    "diagnostics.min_fps": min_fps,
    "diagnostics.max_drop_ratio": max_drop_ratio,
}


@pytest.fixture(scope="module")
def bench(ros: None) -> Iterator[Bench]:
    with world(diagnostics__period=0.1) as it:
        yield Bench(it)


def test_there_is_an_effect_to_look_at_for_every_live_parameter() -> None:
    assert set(EFFECTS) == set(LIVE)


@pytest.mark.parametrize("name", EFFECTS)
def test_a_parameter_that_is_changed_live_has_its_effect(name: str, bench: Bench) -> None:
    wait_until(lambda: not bench.it.node.counts("").in_flight, what="a quiet node")
    bench.it.arrays.clear()
    try:
        EFFECTS[name](bench)
    finally:
        wait_until(lambda: not bench.it.node.counts("").in_flight, what="a quiet node")
        defaults = {**LIVE, "diagnostics.period": 0.1}
        back = {key: list(v) if isinstance(v, tuple) else v for key, v in defaults.items()}
        assert bench.it.set_together(**back).successful
