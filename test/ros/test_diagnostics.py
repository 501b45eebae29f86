"""/diagnostics over real DDS: every key is there, what hurts users warns and says what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

from diagnostic_msgs.msg import DiagnosticStatus
from fake_photon import FakePhoton
from ros_world import (
    BEST_EFFORT,
    PATIENCE_S,
    RELIABLE,
    World,
    plain_image,
    wait_until,
    wait_until_quiet,
    world,
)
from sensor_msgs.msg import Image

from photon_ros.core.errors import ModelError
from photon_ros.engine.metrics import StepRecord
from photon_ros.ros import camera_outputs, camera_port, diagnostics, engine_gauge, feeder, load
from photon_ros.ros.camera_port import CameraPort
from photon_ros.ros.diagnostics import RECENT_S, NodeReading, engine_status
from photon_ros.ros.engine_gauge import EngineGauge, EngineReading
from photon_ros.ros.frame_path import FramePath
from photon_ros.ros.input_problems import loss_advice
from photon_ros.ros.shedder import Shedder

pytestmark = [pytest.mark.ros, pytest.mark.usefixtures("ros")]

ENGINE_KEYS = {
    "state", "model", "device", "actual_device", "vram_used_mb", "vram_total_mb", "kv_pages_used",
    "kv_pages_total", "streams_active", "queue_depth", "decode_tok_s", "step_idle_ms",
    "oom_recoveries", "last_error",
}  # fmt: skip
CAMERA_KEYS = {
    "input_hz", "output_hz", "image_age_ms", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms",
    "latency_slope_ms_per_min", "dropped_overwritten", "dropped_stale", "dropped_rate",
    "dropped_bad", "dropped_reset", "encoding", "resolution", "zero_stamps", "backward_stamps",
    "qos_mismatch", "publishers_seen", "seconds_since_last_frame",
}  # fmt: skip


def values(status: DiagnosticStatus) -> dict[str, str]:
    return {item.key: item.value for item in status.values}


def status_where(
    it: World,
    name: str,
    condition: Callable[[DiagnosticStatus], Any],
    timeout_s: float = PATIENCE_S,
) -> DiagnosticStatus:
    """Return the first status of that name, from now on, of which the condition holds."""
    it.statuses.clear()
    found = wait_until(
        lambda: [s for s in it.statuses_of(name) if condition(s)],
        timeout_s,
        f"such a status of {name}",
    )
    return found[0]


def test_every_key_of_the_interface_is_there_with_its_value() -> None:
    with world(diagnostics__period=0.2) as it:
        publisher = it.publisher()
        for number in range(5):
            stamp_ns = time.time_ns() if number else 0
            it.ask(publisher, plain_image(1, stamp_ns=stamp_ns))
            time.sleep(0.02)
        camera = status_where(it, "camera", lambda s: values(s)["completed"] == "5")
        told = values(camera)
        assert set(told) >= CAMERA_KEYS
        assert (told["encoding"], told["resolution"]) == ("rgb8", "8x6")
        assert (told["zero_stamps"], told["backward_stamps"]) == ("1", "0")
        assert (told["publishers_seen"], told["qos_mismatch"]) == ("1", "0")
        assert 0.0 < float(told["image_age_ms"]) < 20_000.0
        assert float(told["input_hz"]) > 0.0
        assert 0.0 <= float(told["seconds_since_last_frame"]) < 20.0
        engine = values(status_where(it, "engine", lambda s: True))
        assert set(engine) >= ENGINE_KEYS
        assert (engine["state"], engine["model"]) == ("active", "fake")
        assert (engine["device"], engine["actual_device"]) == ("cpu", "cpu")
        assert (engine["kv_pages_used"], engine["kv_pages_total"]) == ("17", "256")
        assert engine["queue_depth"] == "3"


def test_period_changes_live() -> None:
    with world(diagnostics__period=0.1) as it:
        began_s = time.monotonic()
        wait_until(lambda: len(it.statuses_of("engine")) >= 20, what="20 messages")
        assert time.monotonic() - began_s < 15.0, "one a second is the default"
        (result,) = it.set(diagnostics__period=30.0)
        assert result.successful
        wait_until_quiet(it.statuses, 1.0)


def test_a_silent_camera_warns_and_says_whether_anybody_publishes() -> None:
    with world(diagnostics__period=0.2) as it:
        status = status_where(it, "camera", lambda s: "nobody publishes it" in s.message)
        assert status.level == DiagnosticStatus.WARN
        it.client.create_publisher(Image, "image", 1)
        status = status_where(it, "camera", lambda s: "1 publisher(s) of it" in s.message)
        assert "FASTDDS_DEFAULT_PROFILES_FILE" in status.message


# rclpy's own callback of the publisher's side calls a method that rclpy deprecated.
@pytest.mark.filterwarnings("ignore:Deprecated in favor of:DeprecationWarning")
def test_an_incompatible_publisher_is_an_error_until_it_goes() -> None:
    with world(qos__reliability="reliable", diagnostics__period=0.1) as it:
        publisher = it.client.create_publisher(Image, "image", BEST_EFFORT)
        status = status_where(it, "camera", lambda s: "QoS" in s.message)
        assert status.level == DiagnosticStatus.ERROR
        told = values(status)
        assert (told["qos_mismatch"], told["publishers_seen"]) == ("1", "1")
        it.client.destroy_publisher(publisher)
        status = status_where(it, "camera", lambda s: "QoS" not in s.message)
        told = values(status)
        assert (told["qos_mismatch"], told["publishers_seen"]) == ("0", "0")
        assert status.level != DiagnosticStatus.ERROR


@pytest.mark.filterwarnings("ignore:Deprecated in favor of:DeprecationWarning")
def test_an_incompatible_publisher_beside_a_compatible_one_is_told_and_no_error() -> None:
    with world(qos__reliability="reliable", diagnostics__period=0.1) as it:
        for _ in range(2):
            it.client.create_publisher(Image, "image", BEST_EFFORT)
        status = status_where(it, "camera", lambda s: values(s)["qos_mismatch"] == "2")
        assert status.level == DiagnosticStatus.ERROR
        good = it.publisher()
        it.ask(good, plain_image(1))
        status = status_where(it, "camera", lambda s: "QoS" not in s.message)
        told = values(status)
        assert (told["qos_mismatch"], told["publishers_seen"]) == ("2", "3")
        assert status.level == DiagnosticStatus.OK
        it.client.destroy_publisher(good)
        status = status_where(it, "camera", lambda s: "QoS" in s.message)
        assert status.level == DiagnosticStatus.ERROR


def test_frames_far_below_their_stamp_rate_warn_and_name_the_profile() -> None:
    with world(diagnostics__period=0.2, rate_limit_hz=5.0) as it:
        publisher = it.publisher()
        # What arrives of a 30 Hz camera when four of five frames are lost.
        for number in [0, 1, 2, 9, 10, 30, 31, 50, 51, 70, 71, 90, 91, 110, 111, 130]:
            before = it.node.counts("").received
            publisher.publish(
                plain_image(1, stamp_ns=1_700_000_000_000_000_000 + number * 33_333_333)
            )
            wait_until(lambda n=before + 1: it.node.counts("").received == n)
        status = status_where(it, "camera", lambda s: "arrive" in s.message)
        assert status.level == DiagnosticStatus.WARN
        assert "of the camera's 30.0 frames per second" in status.message
        assert "FASTDDS_DEFAULT_PROFILES_FILE" in status.message


def test_the_advice_is_for_the_middleware_that_runs() -> None:
    assert "FASTDDS_DEFAULT_PROFILES_FILE" in loss_advice("rmw_fastrtps_cpp")
    assert "FASTDDS" not in loss_advice("rmw_cyclonedds_cpp")
    assert "rmw_cyclonedds_cpp" in loss_advice("rmw_cyclonedds_cpp")


@pytest.mark.parametrize(
    ("parameters", "words", "level"),
    [
        ({"diagnostics__warn_p95_ms": 5.0}, "p95 latency", DiagnosticStatus.WARN),
        (
            {"diagnostics__warn_p95_ms": 5.0, "diagnostics__error_p95_ms": 10.0},
            "p95 latency",
            DiagnosticStatus.ERROR,
        ),
        ({"diagnostics__min_fps": 500.0}, "answers per second", DiagnosticStatus.WARN),
        ({"diagnostics__max_drop_ratio": 0.01}, "of the frames dropped", DiagnosticStatus.WARN),
    ],
)
def test_thresholds_of_the_parameters_raise_the_level(
    parameters: dict[str, Any], words: str, level: bytes
) -> None:
    with world(service_s=0.03, **parameters) as it:
        publisher = it.publisher()
        for number in range(20):
            publisher.publish(plain_image(1, stamp_ns=number + 1))
            time.sleep(0.005)
        wait_until(lambda: it.arrays)
        assert status_where(it, "camera", lambda s: words in s.message).level == level


def test_a_failed_load_is_an_error_in_diagnostics() -> None:
    with world(start=False, listen=False, diagnostics__period=0.2) as it:
        it.load_error = ModelError("no weights here")
        assert not it.change_state("CONFIGURE")
        it.listen_diagnostics()
        status = status_where(it, "engine", lambda s: s.level == DiagnosticStatus.ERROR)
        assert "no weights here" in status.message
        assert values(status)["state"] == "unconfigured"


def test_an_error_of_the_past_is_no_error_of_a_node_that_was_cleaned_up() -> None:
    with world(prompts__detect="[boom]", diagnostics__period=0.1) as it:
        it.ask(it.publisher(), plain_image(1))
        status_where(it, "engine", lambda s: values(s)["last_error"])
        for name in ("DEACTIVATE", "CLEANUP"):
            assert it.change_state(name)
        status = status_where(it, "engine", lambda s: values(s)["state"] == "unconfigured")
        assert (status.level, values(status)["last_error"]) == (DiagnosticStatus.OK, "")


def test_a_load_that_succeeds_ends_the_error_of_the_one_before() -> None:
    with world(start=False, listen=False, diagnostics__period=0.1) as it:
        it.load_error = ModelError("no weights here")
        assert not it.change_state("CONFIGURE")
        it.load_error = None
        assert it.change_state("CONFIGURE")
        it.listen_diagnostics()
        status = status_where(it, "engine", lambda s: values(s)["state"] == "inactive")
        assert (status.level, values(status)["last_error"]) == (DiagnosticStatus.OK, "")


@pytest.mark.parametrize("cameras", [("front",), ("front", "x" * 250)], ids=["load", "topic"])
def test_a_configuration_that_fails_for_whatever_reason_is_told_and_leaves_nothing(
    cameras: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """rclpy turns an exception of a transition into an error without a word."""
    names = "[" + ",".join(cameras) + "]"
    with world(start=False, listen=False, diagnostics__period=0.2, cameras=names) as it:
        if len(cameras) == 1:
            it.load_error = RuntimeError("CUDA error: no kernel image")
        reason = "no kernel image" if it.load_error else "opic name"  # too long
        assert not it.change_state("CONFIGURE")
        assert reason in capfd.readouterr().err
        it.listen_diagnostics()
        status = status_where(it, "engine", lambda s: s.level == DiagnosticStatus.ERROR)
        assert reason in status.message
        assert values(status)["state"] == "unconfigured"
        topic = f"{it.namespace}/photon/front/detections"
        wait_until(lambda: it.client.count_publishers(topic) == 0, what="no topic left")


@pytest.mark.parametrize("transition", ["activate", "deactivate", "cleanup"])
def test_a_transition_that_breaks_is_told(
    transition: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object) -> None:
        raise OSError("planted")

    with world(start=False, listen=False) as it:
        assert it.change_state("CONFIGURE")
        if transition == "deactivate":
            assert it.change_state("ACTIVATE")
        broken = {
            "activate": (FramePath, "enable"),
            "deactivate": (FramePath, "disable"),
            "cleanup": (CameraPort, "destroy"),
        }
        monkeypatch.setattr(*broken[transition], breaks)
        assert not it.change_state(transition.upper())
        assert f"cannot {transition}: OSError('planted')" in capfd.readouterr().err
        monkeypatch.undo()


def test_a_fallback_to_the_cpu_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load.torch.cuda, "is_available", lambda: False)
    with world(device="cuda", diagnostics__period=0.2) as it:
        status = status_where(it, "engine", lambda s: True)
        assert status.level == DiagnosticStatus.WARN
        assert status.message == "asked for cuda, which is not there: runs on cpu"
        assert values(status)["actual_device"] == "cpu"
        assert it.ask(it.publisher(), plain_image(1)).detections


def test_the_last_error_stays_until_the_account_is_reset() -> None:
    with world(prompts__detect="[boom]", diagnostics__period=0.2) as it:
        it.ask(it.publisher(), plain_image(1))
        status = status_where(it, "engine", lambda s: values(s)["last_error"])
        assert "the device is on fire" in values(status)["last_error"]
        it.node.reset_stats()
        status_where(it, "engine", lambda s: not values(s)["last_error"])


@pytest.mark.parametrize(
    ("module", "name", "reason"),
    [
        (feeder, "FrameJob", "a frame could not be admitted or answered: RuntimeError('broken')"),
        (camera_port, "array_from_answer", "an answer could not be published: "),
        (camera_outputs, "overlay_of", "cannot draw: broken"),
    ],
)
def test_a_defect_of_a_thread_shows_as_the_last_error_and_the_node_goes_on(
    module: Any, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")

    with world(diagnostics__period=0.1) as it:
        overlays: list[Image] = []
        it.client.create_subscription(Image, "photon/overlay", overlays.append, RELIABLE)
        publisher = it.publisher()
        # The first ones may come before the match.
        wait_until(lambda: it.ask(publisher, plain_image(1)) and overlays)
        it.node.reset_stats()
        with monkeypatch.context() as patched:
            patched.setattr(module, name, broken)
            publisher.publish(plain_image(2))
            status = status_where(it, "engine", lambda s: values(s)["last_error"])
        assert values(status)["last_error"].startswith(reason)
        assert "broken" in values(status)["last_error"]
        assert it.ask(publisher, plain_image(3)).detections
        num_failed = 0 if module is camera_outputs else 1
        expected = (2, 2 - num_failed, num_failed, 0)
        wait_until(
            lambda: any(
                (item.received, item.completed, item.failed, item.in_flight) == expected
                for item in list(it.stats)
            ),
            what=f"an account of {expected}",
        )


def test_a_gpu_that_cannot_be_read_does_not_end_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    with world(diagnostics__period=0.1) as it:
        status_where(it, "engine", lambda s: True)
        with monkeypatch.context() as patched:
            patched.setattr(engine_gauge, "gpu_memory_mb", broken)
            wait_until_quiet(it.statuses)
            assert it.ask(it.publisher(), plain_image(1)).detections
            assert not it.statuses
        status_where(it, "engine", lambda s: True)


def test_memory_and_recoveries_of_a_gpu_are_told() -> None:
    node = NodeReading("active", "m", "cuda", "cuda", 0, True, "")
    from photon_ros.engine.metrics import EngineLoad

    reading = EngineReading(EngineLoad(1, 2, 3, 4), (1000.0, 8000.0), 55.5, 0.25, 2, 3.0)
    status = engine_status(node, reading)
    told = values(status)
    assert (told["vram_used_mb"], told["vram_total_mb"]) == ("1000", "8000")
    assert (told["streams_active"], told["decode_tok_s"]) == ("1", "55.5")
    assert (told["step_idle_ms"], told["oom_recoveries"]) == ("0.25", "2")
    assert (status.level, status.message) == (DiagnosticStatus.WARN, "2 times out of GPU memory")
    later = engine_status(node, replace(reading, since_oom_s=RECENT_S + 1.0))
    assert later.level == DiagnosticStatus.OK, "it warns for ever"
    assert values(later)["oom_recoveries"] == "2"


def test_a_bad_frame_warns_for_a_while_and_is_told_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnostics, "RECENT_S", 0.8)
    with world(diagnostics__period=0.1) as it:
        publisher = it.publisher()
        bad = plain_image(1)
        bad.encoding = "rgb9"
        publisher.publish(bad)
        status = status_where(it, "camera", lambda s: "1 bad frames" in s.message)
        assert status.level == DiagnosticStatus.WARN
        status = status_where(it, "camera", lambda s: "bad" not in s.message)
        assert status.level == DiagnosticStatus.OK
        assert values(status)["dropped_bad"] == "1"
        assert any(key.startswith("bad: ") for key in values(status))


def test_idle_time_is_what_the_engine_recorded_since_the_reading_before() -> None:
    photon = FakePhoton()
    try:
        gauge = EngineGauge(photon, Shedder(photon.submit), "cpu")
        assert gauge.read().step_idle_ms == 0.0
        for idle_s in (0.001, 0.003):
            committed_s = time.monotonic()
            step = StepRecord("decode", 0, 1, committed_s=committed_s, idle_s=idle_s)
            photon.engine_stats.records.append(step)
        assert gauge.read().step_idle_ms == pytest.approx(2.0)
        assert gauge.read().step_idle_ms == 0.0
    finally:
        photon.close()


def test_a_report_that_cannot_be_gathered_is_logged_once_and_the_node_goes_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    is_broken = True
    publish_stats = CameraPort.publish_stats

    def stats(port: CameraPort) -> None:
        if is_broken:
            raise TypeError("these samples cannot be ordered")
        publish_stats(port)

    monkeypatch.setattr(CameraPort, "publish_stats", stats)
    with world() as it:
        wait_until(lambda: it.statuses_of("engine"), 15.0, "diagnostics beside broken statistics")
        time.sleep(2.5)
        is_broken = False
        it.stats.clear()
        wait_until(lambda: it.stats, 15.0, "statistics once they can be gathered again")
    told = capfd.readouterr().err
    assert told.count("the statistics cannot be gathered: TypeError(") == 1
