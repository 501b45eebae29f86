"""The set-up says why it failed, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def quietly(log: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / "quietly"), str(log), *command], capture_output=True, text=True, check=False
    )


def write_wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    info = f"{name}-{version}.dist-info"
    wanted = f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wanted}"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def test_packages_that_exclude_each_other_are_named_with_what_they_want(tmp_path: Path) -> None:
    write_wheel(tmp_path, "camera", "1.0", "lens==1.0")
    write_wheel(tmp_path, "robot", "1.0", "lens==2.0")
    for version in ("1.0", "2.0"):
        write_wheel(tmp_path, "lens", version)
    source = ("--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "out"))
    pip = (sys.executable, "-m", "pip", "install", *source)
    failed = quietly(tmp_path / "log", *pip, "camera", "robot")
    assert failed.returncode == 1
    assert "camera 1.0 depends on lens==1.0" in failed.stderr
    assert "robot 1.0 depends on lens==2.0" in failed.stderr
    assert failed.stdout == ""


def test_a_command_that_succeeds_says_nothing_and_its_words_are_kept(tmp_path: Path) -> None:
    told = quietly(tmp_path / "log", "sh", "-c", "echo one; echo two >&2")
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_the_code_of_a_failure_and_where_all_of_it_stands_are_told(tmp_path: Path) -> None:
    log = tmp_path / "log"
    failed = quietly(log, "sh", "-c", "seq 100; exit 7")
    assert failed.returncode == 7
    lines = failed.stderr.splitlines()
    assert "100" in lines
    assert "5" not in lines, "the end tells the reason"
    assert lines[-1] == f"failed with code 7; all it said is in {log}"


def test_every_installation_of_the_set_up_tells_its_reasons() -> None:
    lines = (SCRIPTS / "setup_env").read_text().splitlines()
    (call,) = (line for line in lines if "-m pip" in line)
    assert "scripts/quietly" in call
    assert "--quiet " not in call
