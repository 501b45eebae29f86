"""Every mistake a user can make is one clear line and exit code 2."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from painted import paint, scene, write_scene, write_truth
from PIL import Image
from rosbags.rosbag2 import Writer
from rosbags.typesys import Stores, get_typestore

from .conftest import REPOSITORY, Cli  # isort: skip


def one_line_of(done: subprocess.CompletedProcess[str]) -> str:
    """Check the form of an error and return its message."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("photon-ros: error: ")
    assert "Traceback" not in done.stderr
    return lines[0].removeprefix("photon-ros: error: ")


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "scene.png"
    Image.fromarray(paint([("red", 30, 30, 40, 40)])).save(path)
    return path


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    write_scene(tmp_path / "bag", scene(4))
    return tmp_path / "bag"


def evaluate(cli: Cli, bag: object, *more: object, prompt: str = "red") -> str:
    done = cli("evaluate", bag, "--skill", "detect", "--prompt", prompt, "--out", "out", *more)
    return one_line_of(done)


# --- recordings and truth -----------------------------------------------------------------------


def test_a_truncated_bag(cli: Cli, bag: Path) -> None:
    file = bag / "bag.mcap"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    message = evaluate(cli, bag)
    assert message.startswith("bag cannot be read as a bag") or str(bag) in message
    assert "cut off" in message


def test_a_truncated_sqlite_bag(cli: Cli, tmp_path: Path) -> None:
    from photon_ros.replay.bag_writer import BagOptions

    write_scene(tmp_path / "bag", scene(4), BagOptions(storage="sqlite3"))
    file = tmp_path / "bag" / "bag.db3"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert "cannot be read as a bag" in evaluate(cli, tmp_path / "bag")


def test_a_bag_without_images(cli: Cli, tmp_path: Path) -> None:
    store = get_typestore(Stores.ROS2_HUMBLE)
    text = store.types["std_msgs/msg/String"]("hello")
    with Writer(tmp_path / "talk", version=8) as writer:
        connection = writer.add_connection("/chatter", "std_msgs/msg/String", typestore=store)
        writer.write(connection, 1, store.serialize_cdr(text, "std_msgs/msg/String"))
    message = evaluate(cli, tmp_path / "talk")
    assert message.endswith("has no image topics; it has /chatter (std_msgs/msg/String)")


def test_an_unknown_topic(cli: Cli, bag: Path) -> None:
    message = evaluate(cli, bag, "--topic", "/back")
    assert message.startswith("topic '/back' is not in the bag")
    assert "/camera/image_raw/compressed" in message


def test_a_truth_file_with_unknown_stamps(cli: Cli, bag: Path, tmp_path: Path) -> None:
    truth = write_truth(tmp_path / "truth.json", scene(9), [0, 7, 8])
    message = evaluate(cli, bag, "--truth", truth)
    assert "2 of 3 stamps are not on" in message
    assert "1700000000, 1800000000" in message


def test_a_truth_file_that_is_not_json(cli: Cli, bag: Path, tmp_path: Path) -> None:
    (tmp_path / "truth.json").write_text("{'a': 1}")
    assert "is not JSON" in evaluate(cli, bag, "--truth", tmp_path / "truth.json")


def test_a_truth_file_that_lacks_a_key(cli: Cli, bag: Path, tmp_path: Path) -> None:
    truth = write_truth(tmp_path / "truth.json", scene(4), [0])
    document = json.loads(truth.read_text())
    del document["images"][0]["stamp_ns"]
    truth.write_text(json.dumps(document))
    assert "image needs an integer stamp_ns" in evaluate(cli, bag, "--truth", truth)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("truncated.mcap", "cut off"),
        ("empty_bag_0.db3", "empty bag"),
        ("only_services.mcap", "no image topics"),
        ("wrong_rmw_test_0.mcap", "wrong_format"),
    ],
)
def test_public_recordings_without_images(cli: Cli, shared: Path, name: str, reason: str) -> None:
    assert reason in evaluate(cli, shared / "data/bags" / name)


def test_a_bag_that_is_not_there(cli: Cli) -> None:
    assert evaluate(cli, "nowhere") == "bag nowhere does not exist"


def test_truth_frames_only_without_truth(cli: Cli, bag: Path) -> None:
    assert "there is no truth" in evaluate(cli, bag, "--truth-frames-only")


def test_a_rate_without_a_live_replay(cli: Cli, bag: Path) -> None:
    assert "give --live too" in evaluate(cli, bag, "--rate", "2")


# --- pictures -----------------------------------------------------------------------------------


def png_of_size(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"")
    chunks = [
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in (header, data)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "image picture.png does not exist"),
        (b"", "image picture.png is empty (0 bytes)"),
        (b"no picture", "image picture.png is not an image of a known format"),
        (png_of_size(10_000, 10_000), "too large"),
        (png_of_size(100_000, 100_000), "too large"),
        (png_of_size(50, 50), "image picture.png cannot be read"),
    ],
)
def test_an_unreadable_image(cli: Cli, tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "picture.png").write_bytes(content)
    assert reason in one_line_of(cli("detect", "picture.png", "person"))


def test_an_image_cut_off(cli: Cli, picture: Path) -> None:
    picture.write_bytes(picture.read_bytes()[:-40])
    assert "cannot be read" in one_line_of(cli("point", picture, "person"))


def test_a_folder_without_pictures_is_told(cli_here: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no picture")
    message = one_line_of(cli_here("detect", "empty", "person"))
    assert message == "folder empty has no picture in it"
    assert one_line_of(cli_here("caption", tmp_path)).endswith("is not a file")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("scene.png", "none.png", "red"), "image none.png does not exist"),
        (("scene.png", "red", "cone"), "image red does not exist"),
        (("scene.png", "scene.png", "red", "--overlay", "o.png"), "for one picture, here are 2"),
        (("scene.png", "red", "--also", "red"), "a prompt is given twice: red, red"),
        (("scene.png", "red", "--also", "zyzzyva"), "does not know 'zyzzyva'"),
        (("scene.png", "scene.png", "zyzzyva"), "does not know 'zyzzyva'"),
    ],
)
def test_what_cannot_be_asked_together_is_told_before_the_work(
    cli_here: Cli, picture: Path, arguments: tuple[str, ...], reason: str
) -> None:
    assert picture.name == "scene.png"
    assert reason in one_line_of(cli_here("detect", *arguments))


@pytest.mark.parametrize(
    ("overlay", "reason"),
    [
        ("out.docx", "unknown picture format"),
        ("no/where.png", "there is no folder"),
        ("folder.png", "folder.png cannot be written: it is not a file"),
    ],
)
def test_an_overlay_that_cannot_be_written_is_told_before_the_work(
    cli: Cli, picture: Path, tmp_path: Path, overlay: str, reason: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    assert reason in one_line_of(cli("detect", picture, "person", "--overlay", overlay))


# --- models and prompts -------------------------------------------------------------------------


@pytest.mark.parametrize("skill", ["detect", "point"])
def test_an_empty_prompt(cli: Cli, cli_here: Cli, picture: Path, skill: str) -> None:
    run = cli if skill == "detect" else cli_here
    assert "empty" in one_line_of(run(skill, picture, "  "))


def test_a_word_the_model_does_not_know(cli: Cli, picture: Path) -> None:
    message = one_line_of(cli("detect", picture, "zyzzyva"))
    assert message.startswith("nano does not know 'zyzzyva'; it knows: ")
    assert "person" in message


def test_an_unknown_word_and_an_empty_prompt_in_an_evaluation(cli_here: Cli, bag: Path) -> None:
    assert "does not know 'zyzzyva'" in evaluate(cli_here, bag, prompt="zyzzyva")
    assert "empty" in evaluate(cli_here, bag, prompt="")


def test_a_model_folder_without_weights(cli: Cli, picture: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    message = one_line_of(cli("detect", picture, "person", "--model", tmp_path / "model"))
    assert str(tmp_path / "model") in message
    assert "safetensors" in message


def test_a_model_folder_that_is_not_there(cli_here: Cli, picture: Path, bag: Path) -> None:
    assert "nowhere" in one_line_of(cli_here("detect", picture, "person", "--model", "nowhere"))
    assert "nowhere" in evaluate(cli_here, bag, "--model", "nowhere")


def test_a_device_that_does_not_exist(cli_here: Cli, picture: Path) -> None:
    assert "device" in one_line_of(cli_here("detect", picture, "person", "--device", "abacus"))


@pytest.mark.parametrize(
    "budget", [("--max-objects", "0"), ("--max-crops", "-1"), ("--max-objects", "5000")]
)
def test_a_budget_outside_its_limits(cli_here: Cli, picture: Path, budget: tuple[str, str]) -> None:
    assert budget[0][2:].replace("-", "_") in one_line_of(
        cli_here("detect", picture, "person", *budget)
    )


@pytest.mark.parametrize("skill", ["juggle", "query", "caption"])
def test_a_skill_that_finds_no_places_is_none_of_an_evaluation(
    cli_here: Cli, bag: Path, skill: str
) -> None:
    done = cli_here("evaluate", bag, "--skill", skill, "--prompt", "red", "--out", "out")
    assert f"invalid choice: '{skill}' (choose from" in one_line_of(done)


def test_the_answer_is_printed_before_its_overlay_fails(cli_here: Cli, picture: Path) -> None:
    # A folder in which not even root makes files.
    done = cli_here("detect", picture, "ball", "--overlay", "/proc/out.png", "--max-crops", "0")
    assert done.returncode == 2
    assert " for 'ball' in " in done.stdout
    assert (
        done.stderr
        == "photon-ros: error: /proc/out.png cannot be written: No such file or directory\n"
    )


# --- bags from videos ---------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"", b"\0\0\0\x18ftypmp42" + bytes(50), b"text" * 99])
def test_what_is_no_video(cli: Cli, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "clip.mp4").write_bytes(content)
    # One line in all: neither OpenCV nor FFmpeg adds its own.
    assert "video clip.mp4" in one_line_of(cli("bag", "from-video", "clip.mp4", "--out", "bag"))
    assert not (tmp_path / "bag").exists()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--fps", "0"), "frame rate must be above 0"),
        (("--fps", "fast"), "frame rate 'fast' is not a number"),
        (("--fps", "9" * 5000), f"frame rate '{'9' * 77}...' is not a number"),
        (("--topic", "cam era"), "not a full ROS name"),
        (("--jpeg", "101"), "1..100"),
        (("--start-ns", "-5"), "start must be >= 0"),
        (("--format", "avi"), "invalid choice: 'avi'"),
        (("--raw", "--jpeg", "90"), "not allowed with argument --raw"),
    ],
)
def test_options_that_make_no_bag(cli: Cli, arguments: tuple[str, ...], reason: str) -> None:
    done = cli("bag", "from-video", "clip.mp4", "--out", "bag", *arguments)
    assert reason in one_line_of(done)


# --- golden folders -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (None, "golden.json cannot be read"),
        ("{", "golden.json is not JSON"),
        ("[]", "golden.json lacks something"),
        ('{"images": [], "cases": []}', "has no case"),
        ('{"images": [], "cases": [{"skill": "point", "image": "a"}]}', "lacks something"),
    ],
)
def test_a_folder_that_is_not_golden(
    cli_here: Cli, tmp_path: Path, document: str | None, reason: str
) -> None:
    if document is not None:
        (tmp_path / "golden.json").write_text(document)
    assert reason in one_line_of(cli_here("golden", tmp_path))


# --- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("juggle",), "invalid choice: 'juggle'"),
        (("detect",), "detect: the following arguments are required: IMAGE, PROMPT"),
        (("detect", "a.png", "cup", "--fast"), "unrecognized arguments: --fast"),
        (("evaluate", "bag", "--out", "o"), "evaluate: the following arguments are required"),
        (("bag",), "bag: the following arguments are required: ACTION"),
        (("detect", "a.png", "cup", "--max-objects", "many"), "invalid int value: 'many'"),
        (("detect", "a.png", "cup", "--max-objects", "9" * 5000), f"value: '{'9' * 76}... (see"),
    ],
)
def test_wrong_arguments_are_one_line_as_well(
    cli: Cli, arguments: tuple[str, ...], reason: str
) -> None:
    assert reason in one_line_of(cli(*arguments))


def test_a_name_with_line_breaks_stays_on_one_line(cli: Cli) -> None:
    assert one_line_of(cli("detect", "a\nb\n.png", "cup")) == "image a b .png does not exist"


# --- names and prompts that are too long -------------------------------------------------------

LONG = "n" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ("detect", LONG, "person"),
        ("detect", "scene.png", "person", "--model", LONG),
        ("detect", "scene.png", "person", "--model", f"vik/{LONG}"),
        ("detect", "scene.png", "person", "--overlay", f"{LONG}/out.png"),
        ("detect", "scene.png", "person", "--overlay", f"{LONG}.png"),
        ("bag", "from-video", LONG, "--out", "new"),
        ("bag", "from-video", "scene.png", "--out", LONG),
        ("evaluate", LONG, "--prompt", "red", "--out", "out"),
        ("evaluate", "bag", "--prompt", "red", "--out", LONG),
        ("evaluate", "bag", "--prompt", "red", "--out", "out", "--truth", LONG),
        ("evaluate", "bag", "--prompt", "red", "--out", "out", "--model", LONG),
        ("golden", LONG),
    ],
    ids=lambda arguments: " ".join(arguments).replace(LONG, "LONG"),
)
def test_a_name_of_three_hundred_characters(
    cli_here: Cli, picture: Path, bag: Path, arguments: tuple[str, ...]
) -> None:
    assert picture.exists()
    assert bag.exists()
    message = one_line_of(cli_here(*arguments))
    assert "nnnn" in message  # the name, or the start of it


def test_an_empty_model_name(cli_here: Cli, picture: Path) -> None:
    message = one_line_of(cli_here("detect", picture, "person", "--model", ""))
    assert message.startswith("the model's name is empty: give nano")


@pytest.mark.parametrize("prompt", ["z" * 5000, " ".join(map(str, range(900))), "é\\" * 2000])
def test_a_long_prompt_is_echoed_in_part(cli_here: Cli, picture: Path, prompt: str) -> None:
    message = one_line_of(cli_here("detect", picture, prompt))
    assert message.startswith("nano does not know '")
    assert "..." in message
    assert "person" in message
    assert len(message) < 400


def test_a_long_label_is_echoed_in_part(cli_here: Cli, bag: Path, tmp_path: Path) -> None:
    truth = write_truth(tmp_path / "truth.json", scene(4), [0])
    message = evaluate(cli_here, bag, "--truth", truth, prompt="z" * 5000)
    assert f"does not label {'z' * 77}...; it labels: " in message


def test_a_prompt_that_is_not_utf8_is_one_line(cli_here: Cli, picture: Path) -> None:
    message = one_line_of(cli_here("detect", picture, "red \udcff"))
    assert message.startswith("nano does not know '\\udcff'")


# --- signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["ctrl-c", "kill", "hang-up"],
)
def test_a_signal_ends_a_long_job_and_leaves_no_half_bag(
    tmp_path: Path, number: int, code: int
) -> None:
    import cv2

    video = cv2.VideoWriter(
        str(tmp_path / "clip.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 10, (1280, 960)
    )
    frame: Any = Image.effect_noise((1280, 960), 80).convert("RGB")
    import numpy as np

    for _ in range(150):
        video.write(np.asarray(frame))
    video.release()
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "photon_ros",
            "bag",
            "from-video",
            "../clip.avi",
            "--out",
            "bag",
            "--raw",
        ],
        cwd=work,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + 30
    while not any(work.iterdir()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in errors
    assert list(work.iterdir()) == []


def test_a_reader_that_goes_away_is_no_traceback(picture: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = f"{sys.executable} -m photon_ros detect {picture} person --json | true"
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def shell(command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which $photon_ros is the command line."""
    settings = {"PYTHONPATH": str(REPOSITORY), "photon_ros": f"{sys.executable} -m photon_ros"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env={**os.environ, **settings, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_closed_streams_are_no_traceback(tmp_path: Path) -> None:
    for command in ("$photon_ros bench model --json >&-", "$photon_ros bench model >&-"):
        done = shell(command, tmp_path)
        assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (0, "", False)
    done = shell("$photon_ros detect none.png cup 2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_name_that_the_terminal_cannot_write_is_escaped(tmp_path: Path) -> None:
    write_scene(tmp_path / "b\u00e4g", scene(2))
    done = shell(
        "$photon_ros evaluate b\u00e4g --prompt ball --max-crops 0 --out \u00f6ut",
        tmp_path,
        PYTHONIOENCODING="ascii",
        PYTHONUTF8="0",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "report: \\xf6ut" in done.stdout
    done = shell("$photon_ros detect \u00e4.png cup", tmp_path, PYTHONIOENCODING="ascii")
    assert done.stderr == "photon-ros: error: image \\xe4.png does not exist\n"


def test_a_hang_up_that_is_to_be_ignored_is_ignored(tmp_path: Path) -> None:
    """As nohup wants it."""
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); import photon_ros.cli as cli;"
        "cli.main(['bench', 'model', '--json']);"
        "raise SystemExit(signal.getsignal(signal.SIGHUP) != signal.SIG_IGN)"
    )
    done = shell(f'{sys.executable} -c "{program}"', tmp_path)
    assert done.returncode == 0, done.stderr
