"""Live: a recording replayed over the real middleware through the node, each in a process.

    player --topic--> node --detections, stats--> recorder --> file

The processes have a ROS domain of their own, so that nothing else on the machine or the network
takes part. The node is the one users run, with its defaults: newest frame wins, and what it
cannot answer in time it drops and counts. Latency, drops and throughput are measured here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from photon_ros.core.errors import InputError
from photon_ros.replay.bag_reader import BagEntry
from photon_ros.replay.children import Child, Children, LiveError, wait_until
from photon_ros.replay.live_record import Record, Settling, books_of, read_published
from photon_ros.replay.options import EvaluateOptions
from photon_ros.replay.outcome import RunOutcome

START_TIMEOUT_S: Final = 300.0  # a large model is read from disk meanwhile
DRAIN_TIMEOUT_S: Final = 120.0
LAST_ACCOUNT_S: Final = 0.3  # what the node sends while it ends is written within this
RECORD_TIMEOUT_S: Final = 5.0
_DOMAINS: Final = range(1, 101)  # above, the ports collide with Linux' ephemeral ones
_NODE: Final = "photon"


def check_ros() -> None:
    """Raise InputError unless the node can be started from this environment."""
    for module in ("rclpy", "photon_ros.msg"):
        if importlib.util.find_spec(module) is None:
            raise InputError(
                f"a live replay needs ROS 2 and the built messages; {module} cannot be imported "
                "(source ROS and this package's install/local_setup.bash)"
            )


def run_live(
    options: EvaluateOptions,
    topic: str,
    is_compressed: bool,
    entries: Sequence[BagEntry],
    *,
    on_frame: Callable[[], None] = lambda: None,
) -> RunOutcome:
    """Replay the images of ``topic`` through the node and return what became of each.

    Raises:
        InputError: there is no ROS here, or the node or the player cannot use what it was given.
        LiveError: a process failed or did not come up; carries its last log lines.
    """
    check_ros()
    with tempfile.TemporaryDirectory(prefix="photon_live_") as name:
        folder = Path(name)
        with Children(folder, live_environment(folder)) as children:
            return _LiveRun(
                options, topic, is_compressed, entries, children, folder, on_frame
            ).run()


class _LiveRun:
    """The order of events of one live run."""

    def __init__(
        self,
        options: EvaluateOptions,
        topic: str,
        is_compressed: bool,
        entries: Sequence[BagEntry],
        children: Children,
        folder: Path,
        on_frame: Callable[[], None],
    ) -> None:
        self._options = options
        self._topic = topic
        self._is_compressed = is_compressed
        self._entries = entries
        self._children = children
        self._folder = folder
        self._on_frame = on_frame
        self._record = Record(folder / "record.jsonl")

    def run(self) -> RunOutcome:
        """Start recorder, node and player; play; drain; end them; close the books."""
        recorder, node = self._start_recorder(), self._start_node()
        # The first account can only arrive over a connection that stands, so no answer of the
        # node is lost; and it is only sent when the node takes frames.
        self._wait_for(
            lambda: self._record.stats is not None,
            [recorder, node],
            START_TIMEOUT_S,
            "the node did not become active",
        )
        player = self._start_player()
        self._wait_for(
            lambda: not player.is_running,
            [recorder, node],
            START_TIMEOUT_S + self._play_timeout_s(),
            "the player did not end",
        )
        if player.exit_code != 0:
            player.check()
        published = read_published(self._folder / "player.json")
        notes = self._drain([recorder, node], len(published))
        node.interrupt()
        self._collect(recorder)
        return books_of(self._entries, published, self._record, notes)

    def _start_recorder(self) -> Child:
        arguments = ["--detections", f"/{_NODE}/detections", "--stats", f"/{_NODE}/stats"]
        return self._start("recorder", [*arguments, "--out", str(self._record.path)])

    def _start_node(self) -> Child:
        parameters = self._folder / "node.yaml"
        # JSON is YAML, and keeps every prompt a string whatever it looks like.
        document = {f"/{_NODE}": {"ros__parameters": self._parameters()}}
        parameters.write_text(json.dumps(document, ensure_ascii=False), "utf-8")
        source = "image/compressed" if self._is_compressed else "image"
        arguments = ["--ros-args", "--params-file", str(parameters)]
        return self._start("node", [*arguments, "-r", f"{source}:={self._topic}"])

    def _start_player(self) -> Child:
        return self._start(
            "player",
            [
                str(self._options.bag.absolute()),
                *("--topic", self._topic),
                *("--rate", str(self._options.rate)),
                *("--wait-for-subscribers", "1"),
                *("--report", str(self._folder / "player.json")),
            ],
        )

    def _start(self, name: str, arguments: list[str]) -> Child:
        return self._children.start(name, f"photon_ros.ros.{name}", arguments)

    def _parameters(self) -> dict[str, Any]:
        options = self._options
        return {
            "model": {"path": model_path(options.model)},
            "device": options.device,
            "dtype": options.dtype or "auto",
            "skills": [options.skill],
            "prompts": {options.skill: list(options.prompts)},
            "max_objects": options.max_objects,
            "max_crops": -1 if options.max_crops is None else options.max_crops,
            "image_transport": "compressed" if self._is_compressed else "raw",
            "depth_policy": options.depth_policy,
        }

    def _play_timeout_s(self) -> float:
        stamps_ns = [entry.log_ns for entry in self._entries]
        return 60.0 + 2.0 * (max(stamps_ns) - min(stamps_ns)) / 1e9 / self._options.rate

    def _drain(self, children: list[Child], num_published: int) -> tuple[str, ...]:
        """Wait until the node has settled what it received; return what a reader should know."""
        settling = Settling(self._record, num_published)

        def is_over() -> bool:
            self._update()
            return settling.is_over(time.monotonic())

        if wait_until(is_over, children, DRAIN_TIMEOUT_S):
            return ()
        return (f"the node had not settled every frame {DRAIN_TIMEOUT_S:.0f} s after the last one",)

    def _collect(self, recorder: Child) -> None:
        """Let the recorder write what the node sent last, then end it."""
        began_s = time.monotonic()

        def is_written() -> bool:
            self._update()
            waited_s = time.monotonic() - began_s
            return waited_s > LAST_ACCOUNT_S and self._record.num_missing <= 0

        wait_until(is_written, [recorder], RECORD_TIMEOUT_S)
        recorder.interrupt()
        self._update()

    def _wait_for(
        self, is_true: Callable[[], bool], children: list[Child], timeout_s: float, what: str
    ) -> None:
        def updated() -> bool:
            self._update()
            return is_true()

        if not wait_until(updated, children, timeout_s):
            words = "; ".join(f"{child.name}: {child.last_words()}" for child in children)
            raise LiveError(f"{what} within {timeout_s:.0f} s; {words}")

    def _update(self) -> None:
        for _ in range(self._record.update()):
            self._on_frame()


def model_path(model: str) -> str:
    """Return what the node is given to load what lockstep would load from here.

    A folder is given whole, but "nano" is a name, whatever lies in the current folder.
    """
    if model == "nano" or not Path(model).exists():
        return model
    return str(Path(model).absolute())


def live_environment(folder: Path) -> dict[str, str]:
    """Return the children's environment: a domain of their own on this machine only."""
    environment = dict(os.environ)
    environment["ROS_DOMAIN_ID"] = str(free_domain())
    environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    is_humble = environment.get("ROS_DISTRO") == "humble"
    if is_humble:  # the same, before there was the above
        environment["ROS_LOCALHOST_ONLY"] = "1"
    environment["ROS_LOG_DIR"] = str(folder / "ros_log")
    environment["PYTHONUNBUFFERED"] = "1"
    profile = _fastdds_profile()
    if profile is not None:
        name = "FASTRTPS" if is_humble else "FASTDDS"
        environment.setdefault(f"{name}_DEFAULT_PROFILES_FILE", str(profile))
    return environment


def free_domain() -> int:
    """Return a ROS domain that nobody on this machine uses now.

    A participant listens on UDP port 7410 + 250 * domain (DDSI-RTPS 2.2, section 9.6.1.1), the
    first one on exactly that. The search starts at a place of this process's own, so that two
    runs that start together do not take the same.
    """
    offset = os.getpid() % len(_DOMAINS)
    domains: list[int] = [*_DOMAINS[offset:], *_DOMAINS[:offset]]
    for domain in domains:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(("", 7410 + 250 * domain))
            except OSError:
                continue
            return domain
    raise LiveError("every ROS domain from 1 to 100 is in use on this machine")


def _fastdds_profile() -> Path | None:
    """Return the profile with segments large enough for images, in a checkout or installed."""
    package = Path(__file__).resolve().parents[1]
    places = [package.parent / "config"]
    prefixes = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    places += [Path(prefix) / "share" / "photon_ros" / "config" for prefix in prefixes if prefix]
    return next((path for place in places if (path := place / "fastdds.xml").is_file()), None)
