"""Where a result comes from: the recording, the code and the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from photon_ros.core.errors import BagError

_CHUNK_BYTES: Final = 1 << 20
_GIT_TIMEOUT_S: Final = 10


def bag_files(path: Path) -> list[Path]:
    """Return the file, or all files of the folder sorted by their path within it."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file())


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's files one after the other.

    For a flat folder this is what ``cat FOLDER/* | sha256sum`` prints.
    """
    digest = hashlib.sha256()
    try:
        for file in bag_files(path):
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
    except OSError as error:
        raise BagError(f"{path} cannot be read: {error}") from error
    return digest.hexdigest()


def commit() -> str:
    """Return the git commit of this code, with "-dirty" when it was changed, or "unknown".

    An installed package may lie inside somebody else's repository (a virtual environment
    within a checkout): only a repository that tracks this very file counts.
    """
    here = Path(__file__).resolve()
    if not _git(here.parent, "ls-files", "--error-unmatch", here.name):
        return "unknown"
    head = _git(here.parent, "rev-parse", "HEAD")
    if not head:
        return "unknown"
    changed = _git(here.parent, "status", "--porcelain", "--untracked-files=no")
    return f"{head}-dirty" if changed else head


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints, "" on any failure (no git, no repository, not trusted)."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def machine(device: str) -> Mapping[str, str | int | None]:
    """Return what the run ran on: cpu, cores, memory_mb, gpu, python, torch, os."""
    return {
        "cpu": _cpu_name(),
        "cores": _num_cores(),
        "memory_mb": _memory_mb(),
        "gpu": _gpu_name(device),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "os": platform.platform(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):  # x86 and Arm boards
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _num_cores() -> int:
    """Cores this process may use, which in a container is less than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_mb() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20)
    except (AttributeError, ValueError, OSError):
        return None


def _gpu_name(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch  # heavy, and not needed to describe a machine without a GPU

    return str(torch.cuda.get_device_name(device))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
