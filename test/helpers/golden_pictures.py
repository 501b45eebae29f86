"""Which reference outputs hold with the Pillow that is installed.

From version 13 on Pillow resizes pictures that are much taller than wide vertically first; the
rounding between the two passes then falls otherwise, by a few of 255 levels. The references were
made so. Older versions are the only ones for Python 3.10.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from PIL import __version__ as pillow_version

WHY_OTHERWISE = "the reference was cut by Pillow 13, which resizes a tall picture vertically first"


def resized_otherwise() -> frozenset[str]:
    """Return the reference pictures whose crops this Pillow cuts with other pixels."""
    return frozenset({"tall"} if int(pillow_version.split(".")[0]) < 13 else ())


def comparable(golden: Path, into: Path) -> Path:
    """Return the golden folder, or a copy in ``into`` without the cases that cannot hold here."""
    without = resized_otherwise()
    if not without:
        return golden
    folder = into / "comparable"
    shutil.copytree(golden, folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    document = json.loads((folder / "golden.json").read_text())
    document["cases"] = [case for case in document["cases"] if case.get("image") not in without]
    (folder / "golden.json").write_text(json.dumps(document))
    return folder
