"""The folder of a report: nothing that is not an evaluation's own is ever written over or removed.

The new report is built in a hidden folder inside and put in place when it is whole, so until
then an earlier report stays as it was, whatever happens. What an evaluation may replace is what
an evaluation wrote: a results.json of our schema says so, and without it none of the names of a
report may be taken.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final

from photon_ros.core.errors import InputError

RESULTS_NAME: Final = "results.json"
REPORT_NAME: Final = "report.md"
COCO_NAME: Final = "detections.coco.json"
PICTURES_NAME: Final = "pictures"
SCHEMA_NAME: Final = "photon_ros.results"
_FILE_NAMES: Final = (RESULTS_NAME, REPORT_NAME, COCO_NAME)
_PICTURE_NAME: Final = re.compile(r"frame_\d{6,}_-?\d+\.jpg")


def picture_name(index: int, stamp_ns: int) -> str:
    """Return the file name of a frame's picture; only such names are ever removed."""
    return f"frame_{index:06d}_{stamp_ns}.jpg"


class ReportFolder:
    """The folder of one report; a context manager.

    Entering it checks everything that can be checked without having the report, and raises
    InputError; leaving it removes what was not put in place.

    Attributes:
        draft: where to write the report's files, under the names above.
    """

    def __init__(self, out: Path, bag: Path) -> None:
        self._out = out
        self._bag = bag
        self._was_there = True
        self.draft = out

    def __enter__(self) -> ReportFolder:
        try:
            self._check_not_in_bag()
            self._was_there = self._out.exists()
            self._out.mkdir(parents=True, exist_ok=True)
            self._check_own()
            self.draft = Path(tempfile.mkdtemp(prefix=".report.", dir=self._out))
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.draft, ignore_errors=True)
        if error is not None and not self._was_there:
            with contextlib.suppress(OSError):  # somebody else has put something there
                self._out.rmdir()

    def put_in_place(self) -> None:
        """Replace the earlier report, if any, by the draft; results.json comes last."""
        try:
            self._check_own()  # a run may take hours
            for path in self._own_files():
                if path.name != RESULTS_NAME:  # the mark of a report: replaced, never missing
                    path.unlink()
            pictures = self._out / PICTURES_NAME
            pictures.mkdir(exist_ok=True)
            for path in sorted((self.draft / PICTURES_NAME).iterdir()):
                path.rename(pictures / path.name)
            for name in reversed(_FILE_NAMES):
                if (self.draft / name).exists():
                    (self.draft / name).rename(self._out / name)
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error

    def _own_files(self) -> list[Path]:
        """Return what there is under a report's names, pictures first, results.json last."""
        pictures = self._out / PICTURES_NAME
        found = sorted(pictures.iterdir()) if pictures.is_dir() else []
        found = [path for path in found if _PICTURE_NAME.fullmatch(path.name)]
        files = [self._out / name for name in reversed(_FILE_NAMES)]
        return found + [path for path in files if os.path.lexists(path)]

    def _check_own(self) -> None:
        """Raise InputError if a name that the report needs is taken by something else."""
        pictures = self._out / PICTURES_NAME
        if os.path.lexists(pictures) and (pictures.is_symlink() or not pictures.is_dir()):
            raise self._foreign(pictures)
        found = self._own_files()
        for path in found:
            if path.is_symlink() or not path.is_file():
                raise self._foreign(path)
        if found and not _is_results(self._out / RESULTS_NAME):
            raise self._foreign(found[-1])

    def _check_not_in_bag(self) -> None:
        """Raise InputError if the report would become a part of the recording."""
        bag = self._bag.resolve()
        if bag.is_file():
            if not (bag.parent / "metadata.yaml").is_file():
                return
            bag = bag.parent
        for path in (self._out, self._out / PICTURES_NAME):
            if bag in (path.resolve(), *path.resolve().parents):
                raise self._unusable(f"it lies in the bag {self._bag}")

    def _foreign(self, path: Path) -> InputError:
        name = path.relative_to(self._out)
        return self._unusable(
            f"its {name} was not written by an evaluation; move it, or give another folder"
        )

    def _unusable(self, reason: str) -> InputError:
        return InputError(f"output folder {self._out} cannot be used: {reason}")


def _is_results(path: Path) -> bool:
    """Return True if the file is the results document of an evaluation, of any version."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    schema = document.get("schema") if isinstance(document, dict) else None
    return isinstance(schema, str) and schema.startswith(f"{SCHEMA_NAME}/")
