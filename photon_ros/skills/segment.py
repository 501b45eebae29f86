"""Segment: one object, its box as spatial tokens and its outline spelled in text.

    coord coord size  text ...  eos

The model writes freely; nothing is forced. Coordinates and sizes are decoded from the hidden
state and fed back as values, wherever they come. Models that cannot spell draw corners instead:
see ring.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from photon_ros.core.errors import InputError
from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Outline, Result
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.skills.outline_text import OutlineError, path_from_pieces
from photon_ros.skills.outlined import Box, box_of, outlined_object
from photon_ros.skills.prompt import Prompt, build_prompt, require_text
from photon_ros.skills.ring import RingState
from photon_ros.skills.skill import AnswerState, Skill, TextListener

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
        kind = SegmentState if self.template(prompting).spells_outline else RingState
        return kind(prompting, request.prompt.strip(), request.max_tokens)


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
        return Outline(path, self._box(), " ".join(pieces), error)

    def build_result(self, request: Request, end_reason: EndReason) -> Result:
        """Return the outline and, when there is a box, the object: a mask if the path is one."""
        outline = self.outline()
        return Result(
            skill=request.skill,
            prompt=request.prompt,
            detections=outlined_object(outline, self.label, self._box_tokens()),
            end_reason=end_reason,
            token_ids=tuple(token.id for token in self.tokens),
            outline=outline,
        )

    def _box_tokens(self) -> list[SampledToken]:
        """Return the first two coordinates and the first size, as far as there are any."""
        coords = [token for token in self.tokens if token.coord_bin >= 0]
        sizes = [token for token in self.tokens if token.size_bins[0] >= 0]
        return coords[:2] + sizes[:1]

    def _box(self) -> Box | None:
        tokens = self._box_tokens()
        if len(tokens) < 3:
            return None
        return box_of(self.prompting, tokens[:2], tokens[2])
