from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from painted import scene, write_scene

from photon_ros.core.errors import InputError
from photon_ros.replay.bag_reader import BagReader
from photon_ros.replay.bag_writer import BagOptions
from photon_ros.replay.evaluate import evaluate
from photon_ros.replay.live import (
    check_ros,
    free_domain,
    live_environment,
    model_path,
    run_live,
)
from photon_ros.replay.options import EvaluateOptions

NUM_FRAMES = 8


def own_children() -> set[str]:
    """Command lines of processes that a live run of this process could have started."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (folder / "environ").read_bytes()
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
        # Only what a test started: somebody may be evaluating on this machine, too.
        is_ours = b"PYTEST_CURRENT_TEST" in environment and b"photon_live_" in environment
        if "photon_ros.ros." in command and is_ours:
            found.add(command)
    return found


def options(tmp_path: Path, **change: Any) -> EvaluateOptions:
    fields: dict[str, Any] = {
        "bag": tmp_path / "bag",
        "out": tmp_path / "out",
        "skill": "detect",
        "prompts": ("person",),
        "live": True,
        "max_crops": 0,
        "max_objects": 3,
    }
    return EvaluateOptions(**(fields | change))


# --- without ROS ------------------------------------------------------------------------------


def test_the_node_gets_the_model_that_lockstep_would_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nano is a name, also where a folder is called so; any other folder is given whole."""
    (tmp_path / "nano").mkdir()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_path("nano") == "nano"
    assert model_path("./nano") == str(tmp_path / "nano")
    assert model_path("mine") == str(tmp_path / "mine")
    assert model_path("vikhyatk/moondream2") == "vikhyatk/moondream2"


def test_a_domain_that_is_in_use_is_not_taken() -> None:
    first = free_domain()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("", 7410 + 250 * first))
        second = free_domain()
    assert first != second
    assert {first, second} <= set(range(1, 101))


def test_the_children_keep_to_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", "0")
    monkeypatch.setenv("ROS_DISTRO", "kilted")
    monkeypatch.delenv("FASTDDS_DEFAULT_PROFILES_FILE", raising=False)
    environment = live_environment(tmp_path)
    assert 1 <= int(environment["ROS_DOMAIN_ID"]) <= 100
    assert environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert "ROS_LOCALHOST_ONLY" not in environment
    assert environment["ROS_LOG_DIR"] == str(tmp_path / "ros_log")
    assert Path(environment["FASTDDS_DEFAULT_PROFILES_FILE"]).is_file()
    assert os.environ["ROS_DOMAIN_ID"] == "0"


def test_older_distributions_are_kept_on_this_machine_by_their_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROS_DISTRO", "humble")
    assert live_environment(tmp_path)["ROS_LOCALHOST_ONLY"] == "1"


def test_a_profile_that_the_user_chose_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTDDS_DEFAULT_PROFILES_FILE", "/mine.xml")
    assert live_environment(tmp_path)["FASTDDS_DEFAULT_PROFILES_FILE"] == "/mine.xml"


def test_without_ros_a_live_run_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "rclpy" else real(name)
    )
    with pytest.raises(InputError, match=r"needs ROS 2 .*rclpy cannot be imported"):
        check_ros()


# --- over DDS ---------------------------------------------------------------------------------


@pytest.mark.ros
@pytest.mark.parametrize("quality", [95, None])
def test_a_live_run_accounts_for_every_frame(tmp_path: Path, quality: int | None) -> None:
    write_scene(tmp_path / "bag", scene(NUM_FRAMES), BagOptions(jpeg_quality=quality))
    document = evaluate(options(tmp_path)).document
    frames = document["frames"]
    assert frames["received"] == NUM_FRAMES
    assert frames["completed"] + frames["failed"] + sum(frames["dropped"].values()) == NUM_FRAMES
    assert frames["completed"] + frames["failed"] >= 1
    assert document["config"]["mode"] == "live"
    assert document["config"]["rate"] == 1.0
    assert {"transport", "queue", "prefill", "total", "end_to_end"} <= set(document["latency_ms"])
    assert document["latency_ms"]["transport"]["max"] < 5_000
    assert list((tmp_path / "out" / "pictures").iterdir())
    assert own_children() == set()


@pytest.mark.ros
def test_a_fast_replay_drops_frames_and_counts_them(tmp_path: Path) -> None:
    write_scene(tmp_path / "bag", scene(40), BagOptions(topic="/left/image_raw"))
    with BagReader(tmp_path / "bag") as reader:
        entries = reader.entries(reader.select_topic())
    answered: list[int] = []
    run = run_live(
        options(tmp_path, rate=50.0, prompts=("person", "red")),
        "/left/image_raw/compressed",
        True,
        entries,
        on_frame=lambda: answered.append(1),
    )
    assert run.received == 40
    assert sum(run.dropped.values()) > 0  # 500 frames a second are too many for this model
    assert len(answered) == len(run.frames) > 0
    assert own_children() == set()


@pytest.mark.ros
def test_a_model_that_cannot_be_loaded_is_the_callers_mistake_as_in_lockstep(
    tmp_path: Path,
) -> None:
    write_scene(tmp_path / "bag", scene(2))
    (tmp_path / "model").mkdir()
    began_s = time.monotonic()
    words = {}
    for is_live in (True, False):
        with pytest.raises(InputError) as caught:
            evaluate(options(tmp_path, model=str(tmp_path / "model"), live=is_live))
        words[is_live] = str(caught.value)
    assert words[True] == words[False]
    assert time.monotonic() - began_s < 60
    assert own_children() == set()


@pytest.mark.ros
def test_an_unknown_word_ends_the_run_before_anything_is_played(tmp_path: Path) -> None:
    write_scene(tmp_path / "bag", scene(2))
    words = {}
    for is_live in (True, False):
        with pytest.raises(InputError, match=r"^nano does not know 'zyzzyva'") as caught:
            evaluate(options(tmp_path, prompts=("zyzzyva",), live=is_live))
        words[is_live] = str(caught.value)
    assert words[True] == words[False]
