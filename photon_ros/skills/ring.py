"""RingState: the outline of one object as corners, for models without numbers in their vocabulary.

    coord coord size  coord coord  coord coord ...  eos
    centre of the box, its size, then the corners in units of the box

Only the start of the object and of a corner may be the end; everything else is forced, and known
before the token before it is, so this grammar never holds the engine back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Outline, Result
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.skills.outlined import Box, box_of, outlined_object

_NUM_BOX_TOKENS = 3
_MIN_CORNERS = 3


@dataclass(slots=True)
class RingState:
    """The tokens of one outline, and what they mean.

    Attributes:
        prompting: token ids and bin values of the model.
        label: what was asked for; the object carries it.
        max_new_tokens: tokens after which the answer ends.
    """

    prompting: Prompting
    label: str
    max_new_tokens: int
    length_reason: EndReason = EndReason.MAX_TOKENS
    later_positions: int = 0
    tokens: list[SampledToken] = field(default_factory=list)

    def constraint_ahead(self, num_ahead: int) -> Constraint:
        """Return the constraint of a later token; it depends on its place only."""
        place = len(self.tokens) + num_ahead
        prompting = self.prompting
        if place == _NUM_BOX_TOKENS - 1:
            return _one_of(prompting.size_id)
        may_end = place == 0 or (place >= _NUM_BOX_TOKENS and (place - _NUM_BOX_TOKENS) % 2 == 0)
        return _one_of(prompting.coord_id, *((prompting.eos_id,) if may_end else ()))

    def advance(self, token: SampledToken) -> bool:
        """Take one token; the end token ends the answer."""
        if token.id == self.prompting.eos_id:
            return True
        self.tokens.append(token)
        return False

    def next_phase(self) -> tuple[int, ...] | None:
        """Return None: an outline is one phase."""
        return None

    def outline(self) -> Outline:
        """Return what was drawn; a corner that was cut off is not part of it."""
        box = self._box()
        corners = self._corners()
        if box is None or not corners:
            return Outline("", box)
        raw_text = " ".join(f"{x:.3f},{y:.3f}" for x, y in corners)
        if len(corners) < _MIN_CORNERS:
            return Outline("", box, raw_text, f"{len(corners)} corners enclose nothing")
        first, *others = (f"{_decimal(x)} {_decimal(y)}" for x, y in corners)
        path = " ".join((f"M {first}", *(f"L {corner}" for corner in others), "Z"))
        return Outline(path, box, raw_text)

    def build_result(self, request: Request, end_reason: EndReason) -> Result:
        """Return the outline and, when there is a box, the object."""
        outline = self.outline()
        return Result(
            skill=request.skill,
            prompt=request.prompt,
            detections=outlined_object(outline, self.label, self.tokens[:_NUM_BOX_TOKENS]),
            end_reason=end_reason,
            token_ids=tuple(token.id for token in self.tokens),
            outline=outline,
        )

    def _box(self) -> Box | None:
        if len(self.tokens) < _NUM_BOX_TOKENS:
            return None
        return box_of(self.prompting, self.tokens[:2], self.tokens[2])

    def _corners(self) -> list[tuple[float, float]]:
        values = [
            self.prompting.coord_values[token.coord_bin] for token in self.tokens[_NUM_BOX_TOKENS:]
        ]
        return list(zip(values[::2], values[1::2], strict=False))


@cache
def _one_of(*token_ids: int) -> Constraint:
    """Return the constraint that allows these ids; all requests share it."""
    return Constraint(allowed=tuple(sorted(token_ids)), spatial=True)


def _decimal(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
