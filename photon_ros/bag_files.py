"""What to open for a recording: a bag folder, the storage files in one, or a single file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from photon_ros.core.errors import BagError

_ROS2_SUFFIXES: Final = (".mcap", ".db3")


def storage_files(path: Path) -> list[Path]:
    """Return what to open for a recording: the folder with its metadata, or storage files.

    A recorder that was killed leaves no metadata.yaml; the files beside it are good all the same.

    Raises:
        BagError: there is no such recording; says what was expected.
    """
    if not path.exists():
        raise BagError(f"bag {path} does not exist")
    if path.is_dir():
        if (path / "metadata.yaml").is_file():
            return [path]
        found = sorted(file for file in path.iterdir() if file.suffix in _ROS2_SUFFIXES)
        if not found:
            raise BagError(f"{path} is not a bag: no metadata.yaml, .mcap or .db3 file in it")
        return found
    if path.suffix not in (*_ROS2_SUFFIXES, ".bag"):
        raise BagError(f"{path} is not a bag: expected a bag folder, or a .mcap, .db3 or .bag file")
    if path.stat().st_size == 0:
        raise BagError(f"bag {path} is empty (0 bytes)")
    return [path]
