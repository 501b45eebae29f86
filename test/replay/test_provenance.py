from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from photon_ros.core.errors import BagError
from photon_ros.replay import provenance
from photon_ros.replay.provenance import bag_files, commit, machine, sha256_of


def test_the_digest_of_a_file_is_what_sha256sum_says(tmp_path: Path) -> None:
    path = tmp_path / "bag.mcap"
    path.write_bytes(os.urandom(3_000_001))
    expected = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    assert sha256_of(path) == expected.stdout.split()[0]


def test_the_digest_of_a_folder_is_of_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b.db3", "metadata.yaml", "a.db3"):
        (tmp_path / name).write_text(name * 3)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "z").write_text("last")
    assert [file.name for file in bag_files(tmp_path)] == ["a.db3", "b.db3", "metadata.yaml", "z"]
    whole = "".join(name * 3 for name in ("a.db3", "b.db3", "metadata.yaml")) + "last"
    assert sha256_of(tmp_path) == hashlib.sha256(whole.encode()).hexdigest()


def test_a_file_that_cannot_be_read_is_a_bag_error(tmp_path: Path) -> None:
    (tmp_path / "dangling.mcap").symlink_to(tmp_path / "gone")
    assert sha256_of(tmp_path) == hashlib.sha256().hexdigest()
    with pytest.raises(BagError, match="cannot be read"):
        sha256_of(Path("/proc/self/mem"))  # a file whose first byte cannot be read


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def commit_of_copy(folder: Path) -> str:
    """Ask a copy of the package that lies in ``folder`` for its commit."""
    code = "from photon_ros.replay.provenance import commit; print(commit())"
    environment = {**os.environ, "PYTHONPATH": str(folder), "GIT_CEILING_DIRECTORIES": "/"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def copy_package(folder: Path) -> Path:
    """Copy what commit() needs of the package."""
    package = folder / "photon_ros"
    source = Path(provenance.__file__).parents[1]
    for part in ("core", "replay"):
        shutil.copytree(source / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    return package


def test_a_checkout_knows_its_commit_and_whether_it_was_changed(tmp_path: Path) -> None:
    package = copy_package(tmp_path)
    git(tmp_path, "init", "-q")
    assert commit_of_copy(tmp_path) == "unknown"  # nothing is committed yet
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    assert commit_of_copy(tmp_path) == head
    (package / "core" / "frame.py").write_text("# changed\n")
    assert commit_of_copy(tmp_path) == f"{head}-dirty"


def test_an_installed_copy_inside_somebody_elses_repository_does_not_take_its_commit(
    tmp_path: Path,
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "theirs.txt").write_text("theirs")
    git(tmp_path, "add", "theirs.txt")
    git(tmp_path, "commit", "-q", "-m", "theirs")
    site = tmp_path / ".venv" / "site-packages"
    copy_package(site)
    assert commit_of_copy(site) == "unknown"


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit() == "unknown"


def test_the_machine_is_described() -> None:
    facts = machine("cpu")
    assert set(facts) == {"cpu", "cores", "memory_mb", "gpu", "python", "torch", "os"}
    assert facts["cores"] == len(os.sched_getaffinity(0))
    assert isinstance(facts["memory_mb"], int)
    assert facts["memory_mb"] > 100
    assert facts["gpu"] is None
    assert facts["python"] == sys.version.split()[0]
    assert str(facts["cpu"]).strip()
