"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from photon_ros.core.errors import BagError


def check_free(out: Path) -> None:
    """Raise BagError unless ``out`` is free: absent, or an empty folder.

    What is made takes the place of the folder, so that must not be a link, nor where one works.
    """
    if out.is_symlink() or not out.is_dir():
        if out.is_symlink() or out.exists():
            raise BagError(f"{out} exists already; give a new folder")
    elif any(out.iterdir()):
        raise BagError(f"{out} holds files already; give a new folder")
    elif out.resolve() == Path.cwd().resolve():
        raise BagError(f"{out} is the current folder; give a new one")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield the path at which to make the folder; it is moved to ``out`` when the block ends.

    After an error or an interrupt nothing is left. The path has the final name, in another
    folder on the same file system. Raises OSError, and BagError where ``out`` is not free.
    """
    check_free(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    workspace = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield workspace / out.name
        (workspace / out.name).rename(out)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
