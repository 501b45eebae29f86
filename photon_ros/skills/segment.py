"""Segment: one object, its box as spatial tokens and its outline spelled in text.

    coord coord size  text ...  eos

The model writes freely; nothing is forced. Coordinates and sizes are decoded from the hidden
state and fed back as values, wherever they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from photon_ros.core.errors import InputError
from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import (
    Detection,
    DetectionKind,
    EndReason,
    Outline,
    Result,
)
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.skills.outline_text import OutlineError, path_from_pieces
from photon_ros.skills.prompt import Prompt, build_prompt, require_text
from photon_ros.skills.skill import AnswerState, Skill, TextListener
from photon_ros.skills.svg_path import Ring, rings_of

Box = tuple[float, float, float, float]

_ANY: Final = Constraint(spatial=True)


@dataclass(frozen=True, slots=True)
class SegmentSkill(Skill):
    """The outline of what a prompt names."""

    def prompt(self, prompting: Prompting, request: Request, *, has_frame: bool) -> Prompt:
        """Return what to outline between the template's ids; see :meth:`Skill.prompt`."""
        self.refuse_extras(request, spatial_refs=True)
        template = self.template(prompting)
        require_text(request.prompt, self.name)
        text = prompting.tokenizer.encode(template.object_prefix + request.prompt.strip())
        return build_prompt(
            prompting,
            (template.prefix, text, template.suffix),
            refs=request.spatial_refs,
            has_frame=has_frame,
            num_characters=len(request.prompt),
        )

    def start(
        self,
        prompting: Prompting,
        request: Request,
        listener: TextListener | None = None,
    ) -> AnswerState:
        """Return the grammar of the outline; raises InputError when somebody listens to it."""
        if listener is not None:
            raise InputError(f"{self.name} has no text to stream; query and caption do")
        return SegmentState(prompting, request.prompt.strip(), request.max_tokens)


@dataclass(slots=True)
class SegmentState:
    """The tokens of one outline, and what they mean.

    Attributes:
        prompting: token ids, bin values and tokenizer of the model.
        label: what was asked for; the object carries it.
        max_new_tokens: tokens after which the answer ends.
    """

    prompting: Prompting
    label: str
    max_new_tokens: int
    length_reason: EndReason = EndReason.MAX_TOKENS
    later_positions: int = 0
    tokens: list[SampledToken] = field(default_factory=list)

    def constraint_ahead(self, num_ahead: int) -> Constraint:  # noqa: ARG002  # always the same
        """Return the same constraint for every token: any may come."""
        return _ANY

    def advance(self, token: SampledToken) -> bool:
        """Take one token; the end token ends the answer."""
        if token.id == self.prompting.eos_id:
            return True
        self.tokens.append(token)
        return False

    def next_phase(self) -> tuple[int, ...] | None:
        """Return None: an outline is one phase."""
        return None

    @property
    def pieces(self) -> list[str]:
        """The text that spells the outline: each token's own, without the blanks around it."""
        first = self.prompting.first_text_id
        decode = self.prompting.tokenizer.decode
        texts = [decode([token.id]).strip() for token in self.tokens if token.id >= first]
        return [text for text in texts if text]

    def outline(self) -> Outline:
        """Return what was drawn, or why it is no path."""
        pieces = self.pieces
        path = error = ""
        try:
            path = path_from_pieces(pieces)
        except OutlineError as problem:
            error = str(problem)
        place = self._place()
        return Outline(path, None if place is None else _box(*place), " ".join(pieces), error)

    def build_result(self, request: Request, end_reason: EndReason) -> Result:
        """Return the outline and, when there is a box, the object: a mask if the path is one."""
        outline = self.outline()
        return Result(
            skill=request.skill,
            prompt=request.prompt,
            detections=self._detections(outline),
            end_reason=end_reason,
            token_ids=tuple(token.id for token in self.tokens),
            outline=outline,
        )

    def _detections(self, outline: Outline) -> tuple[Detection, ...]:
        if outline.box is None:
            return ()
        x_min, y_min, x_max, y_max = outline.box
        polygon = polygon_of(outline)
        placing = self._coords()[:2] + self._sizes()[:1]
        coord_prob = 1.0
        for token in placing:
            coord_prob *= token.bin_prob
        found = Detection(
            kind=DetectionKind.MASK if polygon else DetectionKind.BOX,
            label=self.label,
            x=(x_min + x_max) / 2,
            y=(y_min + y_max) / 2,
            width=x_max - x_min,
            height=y_max - y_min,
            score=placing[0].prob,
            coord_prob=coord_prob,
            polygon=polygon,
        )
        return (found,)

    def _place(self) -> Box | None:
        """Return x, y, width and height as the model gave them; None when one is missing."""
        coords, sizes = self._coords(), self._sizes()
        if len(coords) < 2 or not sizes:
            return None
        x, y = (self.prompting.coord_values[token.coord_bin] for token in coords[:2])
        width, height = (self.prompting.size_values[b] for b in sizes[0].size_bins)
        return x, y, width, height

    def _coords(self) -> list[SampledToken]:
        return [token for token in self.tokens if token.coord_bin >= 0]

    def _sizes(self) -> list[SampledToken]:
        return [token for token in self.tokens if token.size_bins[0] >= 0]


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


def _box(x: float, y: float, width: float, height: float) -> Box:
    """Return the corners, clamped to the image, of a centre and a size clamped before."""
    x, y, width, height = (_clamped(value) for value in (x, y, width, height))
    corners: Sequence[float] = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    x_min, y_min, x_max, y_max = (_clamped(value) for value in corners)
    return x_min, y_min, x_max, y_max


def _clamped(value: float) -> float:
    return min(1.0, max(0.0, value))
