"""The summary of an evaluation as Markdown, with its overlay pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import jinja2

from photon_ros.replay.pictures import Picture
from photon_ros.replay.results import Document

_TEMPLATE: Final = "report.md.jinja"


def render_report(document: Document, pictures: Sequence[Picture], picture_folder: str) -> str:
    """Return the Markdown summary of a results document.

    Args:
        picture_folder: where the pictures lie, relative to the summary.
    """
    # Markdown, not HTML: nothing is escaped but what would break a table (see _cell).
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("photon_ros.replay"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters.update(cell=_cell, share=_share, ms=_ms, caption=_caption)
    dropped = document["frames"]["dropped"]
    total = sum(dropped.values())
    reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(dropped.items()))
    return environment.get_template(_TEMPLATE).render(
        **document,
        dropped=f"{total} ({reasons})" if reasons else str(total),
        pictures=pictures,
        picture_folder=picture_folder,
    )


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _ms(value: float) -> str:
    return f"{value:.1f}"


def _caption(picture: Picture) -> str:
    outcome = picture.outcome
    parts = [f"stamp {outcome.stamp_ns / 1e9:.3f} s", f"{len(outcome.detections)} found"]
    if picture.tally is not None:
        tally = picture.tally
        parts += [
            f"{tally.num_truth} true",
            f"{tally.num_missed} missed",
            f"{tally.num_false} wrong",
            f"F1 {tally.f1:.2f}",
        ]
    if outcome.status.value != "ok":
        parts.append(outcome.status.value)
    return ", ".join(parts) + "."
