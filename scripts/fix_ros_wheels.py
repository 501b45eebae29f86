"""Point the paths baked into the ROS wheels' CMake files at this interpreter.

The wheels export the include folders of the Python and NumPy they were built with, which exist
on no other machine, so building messages against them fails. Run with the Python of the
environment that holds the wheels:

    python scripts/fix_ros_wheels.py PREFIX

Running it twice changes nothing. Prints how many files changed.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

import numpy

_BAKED = re.compile(r"/opt/python/[^;\"\s]*")
_PATTERN = "share/*/cmake/export_*__rosidl_generator_pyExport.cmake"


def repoint(text: str, *, python_include: str, numpy_include: str) -> str:
    """Return ``text`` with each baked include folder replaced by this interpreter's."""

    def replacement(match: re.Match[str]) -> str:
        return numpy_include if "/numpy/" in match.group() else python_include

    return _BAKED.sub(replacement, text)


def fix_prefix(prefix: Path) -> int:
    """Repoint every exported CMake file under ``prefix``; return how many changed."""
    num_changed = 0
    for path in sorted(prefix.glob(_PATTERN)):
        text = path.read_text(encoding="utf-8")
        fixed = repoint(
            text,
            python_include=sysconfig.get_path("include"),
            numpy_include=numpy.get_include(),
        )
        if fixed != text:
            path.write_text(fixed, encoding="utf-8")
            num_changed += 1
    return num_changed


def main(arguments: list[str]) -> int:
    """Fix the prefix named on the command line."""
    if len(arguments) != 1 or not (Path(arguments[0]) / "share").is_dir():
        print("usage: fix_ros_wheels.py PREFIX (a folder that has share/)", file=sys.stderr)
        return 2
    print(f"{fix_prefix(Path(arguments[0]))} files now name this interpreter")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
