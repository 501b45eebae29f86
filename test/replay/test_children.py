from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from photon_ros.core.errors import InputError
from photon_ros.replay.children import Child, Children, LiveError, wait_until

WAIT_S = 20.0


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder whose modules the children can run."""
    folder = tmp_path / "modules"
    folder.mkdir()
    return folder


@pytest.fixture
def children(tmp_path: Path, modules: Path) -> Iterator[Children]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), *sys.path])}
    with Children(tmp_path, environment) as children:
        yield children


def start(children: Children, modules: Path, name: str, code: str, *arguments: str) -> Child:
    (modules / f"{name}_module.py").write_text(code)
    return children.start(name, f"{name}_module", arguments)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def eventually(is_true: object, timeout_s: float = WAIT_S) -> bool:
    assert callable(is_true)
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def pid_in(path: Path) -> int:
    assert eventually(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


SAY_PID = (
    "import os, sys, pathlib, time\npathlib.Path(sys.argv[1]).write_text(f'{os.getpid()}\\n')\n"
)
IGNORE = (
    "import signal\n"
    "for n in (signal.SIGINT, signal.SIGTERM):\n"
    "    signal.signal(n, signal.SIG_IGN)\n"
)


def test_a_child_gets_its_arguments_and_ends_by_itself(
    children: Children, modules: Path, tmp_path: Path
) -> None:
    code = "import sys, pathlib\npathlib.Path(sys.argv[1]).write_text(repr(sys.argv[2:]))\n"
    child = start(children, modules, "echo", code, str(tmp_path / "out"), "a b", "--x", "ü")
    assert child.wait(WAIT_S)
    assert child.exit_code == 0
    assert (tmp_path / "out").read_text() == "['a b', '--x', 'ü']"


def test_the_last_words_of_a_child_that_fails_are_told(children: Children, modules: Path) -> None:
    code = (
        "import sys\nfor k in range(9): print('line', k)\n"
        "text = '[ERROR] [1764530000.123] [photon]: something broke'\n"
        "print(text, file=sys.stderr)\n"
        "sys.exit(3)\n"
    )
    child = start(children, modules, "node", code)
    assert child.wait(WAIT_S)
    with pytest.raises(LiveError) as caught:
        child.check()
    message = str(caught.value)
    assert message.startswith("the node ended with code 3: ")
    assert message.endswith(" / something broke")
    assert "\n" not in message
    assert "line 1" not in message


@pytest.mark.parametrize(
    ("said", "code", "wanted"),
    [
        ("[ERROR] [1.5] [photon]: cannot configure: no weights", 2, "no weights"),
        ("photon_node: there is no parameter 'x'", 2, "there is no parameter 'x'"),
        ("player: /bag has no topic /t", 2, "/bag has no topic /t"),
        ("recorder: cannot write /f", 2, "cannot write /f"),
        ("photon_node: a bug", 1, None),
        ("usage: something [-h]", 2, None),
    ],
)
def test_a_child_that_refuses_its_input_says_so_in_its_own_words_and_no_others(
    said: str, code: int, wanted: str | None, children: Children, modules: Path
) -> None:
    program = f"import sys\nprint('loading')\nprint({said!r}, file=sys.stderr)\nsys.exit({code})\n"
    child = start(children, modules, "node", program)
    assert child.wait(WAIT_S)
    with pytest.raises((InputError, LiveError)) as caught:
        child.check()
    if wanted is None:
        assert isinstance(caught.value, LiveError)
        assert f"ended with code {code}" in str(caught.value)
    else:
        assert isinstance(caught.value, InputError)
        assert str(caught.value) == wanted


def test_a_child_that_dies_by_a_signal_says_which(children: Children, modules: Path) -> None:
    child = start(children, modules, "node", "import os, signal\nos.kill(os.getpid(), 9)\n")
    assert child.wait(WAIT_S)
    with pytest.raises(LiveError, match="ended by SIGKILL: it wrote nothing"):
        child.check()


def test_waiting_ends_when_a_child_does(children: Children, modules: Path) -> None:
    child = start(children, modules, "node", "raise RuntimeError('boom')\n")
    began_s = time.monotonic()
    with pytest.raises(LiveError, match="boom"):
        wait_until(lambda: False, [child], timeout_s=60.0)
    assert time.monotonic() - began_s < 30


def test_waiting_has_a_limit(children: Children, modules: Path) -> None:
    child = start(children, modules, "node", "import time\ntime.sleep(60)\n")
    assert not wait_until(lambda: False, [child], timeout_s=0.2)
    assert wait_until(lambda: True, [child], timeout_s=0.2)


def test_an_interrupt_lets_a_child_finish_its_work(
    children: Children, modules: Path, tmp_path: Path
) -> None:
    code = SAY_PID + (
        "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n"
        "    pathlib.Path(sys.argv[1] + '.done').write_text('saved')\n"
    )
    child = start(children, modules, "node", code, str(tmp_path / "pid"))
    pid_in(tmp_path / "pid")
    child.interrupt()
    assert child.exit_code == 0
    assert (tmp_path / "pid.done").read_text() == "saved"


def test_a_child_that_ignores_everything_is_ended_all_the_same(
    children: Children, modules: Path, tmp_path: Path
) -> None:
    code = IGNORE + SAY_PID + "time.sleep(60)\n"
    child = start(children, modules, "node", code, str(tmp_path / "pid"))
    pid = pid_in(tmp_path / "pid")
    child.interrupt(timeout_s=0.3)
    assert not is_alive(pid)
    assert child.exit_code == -signal.SIGKILL


class Oops(Exception):
    pass


def test_leaving_by_an_error_ends_all_children_and_theirs(tmp_path: Path, modules: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), *sys.path])}
    grandchild = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    )
    pids: list[int] = []

    def start_three_and_fail() -> None:
        with Children(tmp_path, environment) as children:
            start(children, modules, "a", SAY_PID + "time.sleep(60)\n", str(tmp_path / "a"))
            start(children, modules, "b", SAY_PID + grandchild, str(tmp_path / "b"))
            start(
                children, modules, "c", IGNORE + SAY_PID + "time.sleep(60)\n", str(tmp_path / "c")
            )
            pids.extend(pid_in(tmp_path / name) for name in "abc")
            raise Oops

    with pytest.raises(Oops):
        start_three_and_fail()
    assert not any(is_alive(pid) for pid in pids)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            group = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[2])
        except (FileNotFoundError, ProcessLookupError):
            continue
        assert group not in pids or not is_alive(int(folder.name))


def test_children_end_with_a_parent_that_is_killed_outright(tmp_path: Path, modules: Path) -> None:
    (modules / "sleeper.py").write_text(SAY_PID + "time.sleep(60)\n")
    parent_code = (
        "import os, pathlib, sys, time\n"
        "from photon_ros.replay.children import Children\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "with Children(folder, os.environ) as children:\n"
        "    children.start('sleeper', 'sleeper', [str(folder / 'pid')])\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(modules), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", parent_code, tmp_path], env=environment)
    try:
        pid = pid_in(tmp_path / "pid")
        assert is_alive(pid)
    finally:
        parent.kill()
        parent.wait()
    assert eventually(lambda: not is_alive(pid))


def test_a_child_whose_parent_is_already_gone_does_not_start() -> None:
    command = [
        sys.executable,
        "-m",
        "photon_ros.replay.tied",
        "1",
        sys.executable,
        "-c",
        "print(1)",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
