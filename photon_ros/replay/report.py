"""The summary of an evaluation as Markdown, with its overlay pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import jinja2

from photon_ros.replay.pictures import Picture
from photon_ros.replay.results import Document

_TEMPLATE: Final = """\
# {{ config.skill }} {{ config.prompts | map("tojson") | join(", ") }} on {{ bag.name | cell }}

{{ config.mode | capitalize }}{% if config.rate %} at rate {{ config.rate }}{% endif %}, \
model {{ config.model | cell }} on {{ config.device }}, topic {{ bag.topic }}.

{% if accuracy -%}
## Accuracy

Boxes at IoU 0.5 on {{ accuracy.num_frames }} labelled \
{{ "frame" if accuracy.num_frames == 1 else "frames" }}.

| prompt | F1 | precision | recall | true | found |
|---|---|---|---|---|---|
{% for prompt, row in accuracy.by_prompt.items() -%}
| {{ prompt | cell }} | {{ row.f1_iou50 | share }} | {{ row.precision_iou50 | share }} \
| {{ row.recall_iou50 | share }} | {{ row.num_truth }} | {{ row.num_predicted }} |
{% endfor -%}
{% if accuracy.by_prompt | length > 1 -%}
| all | {{ accuracy.f1_iou50 | share }} | {{ accuracy.precision_iou50 | share }} \
| {{ accuracy.recall_iou50 | share }} | {{ accuracy.num_truth }} | {{ accuracy.num_predicted }} |
{% endif %}
{% endif -%}
## Frames

| received | completed | failed | dropped | frames/s |
|---|---|---|---|---|
| {{ frames.received }} | {{ frames.completed }} | {{ frames.failed }} \
| {{ dropped }} | {{ "%.2f" | format(throughput.frames_per_s) }} |

{% if latency_ms -%}
## Latency (ms)

| stage | p50 | p95 | p99 | max |
|---|---|---|---|---|
{% for stage, row in latency_ms.items() -%}
| {{ stage }} | {{ row.p50 | ms }} | {{ row.p95 | ms }} | {{ row.p99 | ms }} | {{ row.max | ms }} |
{% endfor %}
{% endif -%}
{% if notes -%}
## Notes

{% for note in notes -%}
- {{ note | cell }}
{% endfor %}
{% endif -%}
## Pictures

{% if accuracy -%}
Found in colour, true boxes dashed in white.

{% endif -%}
{% for picture in pictures -%}
### Frame {{ picture.outcome.index }}{% if picture.is_worst %} (among the worst){% endif %}

{{ picture | caption }}

![frame {{ picture.outcome.index }}]({{ picture_folder }}/{{ picture.file_name }})

{% else -%}
No frame was answered.

{% endfor -%}
## Where this comes from

| | |
|---|---|
| bag | {{ bag.name | cell }}, {{ bag.storage }}, {{ bag.num_images }} images, \
sha256 `{{ bag.sha256 }}` |
| commit | {{ commit }} |
| cpu | {{ machine.cpu | cell }}, {{ machine.cores }} cores, {{ machine.memory_mb }} MB |
{% if machine.gpu -%}
| gpu | {{ machine.gpu | cell }} |
{% endif -%}
| software | Python {{ machine.python }}, torch {{ machine.torch }}, {{ machine.os | cell }} |
"""


def render_report(document: Document, pictures: Sequence[Picture], picture_folder: str) -> str:
    """Return the Markdown summary of a results document.

    Args:
        picture_folder: where the pictures lie, relative to the summary.
    """
    # Markdown, not HTML: nothing is escaped but what would break a table (see _cell).
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.filters.update(cell=_cell, share=_share, ms=_ms, caption=_caption)
    dropped = document["frames"]["dropped"]
    total = sum(dropped.values())
    reasons = ", ".join(f"{reason} {number}" for reason, number in sorted(dropped.items()))
    return environment.from_string(_TEMPLATE).render(
        **document,
        dropped=f"{total} ({reasons})" if reasons else str(total),
        pictures=pictures,
        picture_folder=picture_folder,
    )


def _cell(text: object) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def _share(value: float) -> str:
    return f"{value:.3f}"


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
