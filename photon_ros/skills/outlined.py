"""From the box tokens and the outline of an object to the object."""

from __future__ import annotations

from collections.abc import Sequence

from photon_ros.core.prompting import Prompting
from photon_ros.core.result import Detection, DetectionKind, Outline
from photon_ros.engine.interfaces import SampledToken
from photon_ros.skills.svg_path import Ring, rings_of

Box = tuple[float, float, float, float]
"""(x_min, y_min, x_max, y_max), normalised."""


def box_of(prompting: Prompting, centre: Sequence[SampledToken], size: SampledToken) -> Box:
    """Return the corners, clamped to the image, of a centre and a size."""
    x, y = (prompting.coord_values[token.coord_bin] for token in centre)
    width, height = (prompting.size_values[b] for b in size.size_bins)
    corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    x_min, y_min, x_max, y_max = (min(1.0, max(0.0, value)) for value in corners)
    return x_min, y_min, x_max, y_max


def polygon_of(outline: Outline) -> tuple[Ring, ...]:
    """Return the rings of an outline in units of the image; none without a box or a path."""
    if outline.box is None:
        return ()
    x_min, y_min, x_max, y_max = outline.box
    width, height = x_max - x_min, y_max - y_min
    return tuple(
        tuple((x_min + x * width, y_min + y * height) for x, y in ring)
        for ring in rings_of(outline.path)
    )


def outlined_object(
    outline: Outline, label: str, box_tokens: Sequence[SampledToken]
) -> tuple[Detection, ...]:
    """Return the object of an outline: none without a box, a mask when its path encloses something.

    Its score is the probability of the first of ``box_tokens`` among what could have come.
    """
    if outline.box is None:
        return ()
    x_min, y_min, x_max, y_max = outline.box
    polygon = polygon_of(outline)
    coord_prob = 1.0
    for token in box_tokens:
        coord_prob *= token.bin_prob
    found = Detection(
        kind=DetectionKind.MASK if polygon else DetectionKind.BOX,
        label=label,
        x=(x_min + x_max) / 2,
        y=(y_min + y_max) / 2,
        width=x_max - x_min,
        height=y_max - y_min,
        score=box_tokens[0].prob,
        coord_prob=coord_prob,
        polygon=polygon,
    )
    return (found,)
