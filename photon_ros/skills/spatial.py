"""Point and detect: objects as a repeating cycle of spatial tokens.

    point    x y   x y   ... eos
    detect   x y s x y s ... eos

Only the x state may end the answer; y and size are forced. The state after each token is known
before the token is, unless it was the end, so these grammars never hold the engine back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from photon_ros.core.errors import InputError
from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import Detection, DetectionKind, EndReason, Result
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.skills.prompt import Prompt, build_prompt, require_text
from photon_ros.skills.skill import AnswerState, Skill, TextListener


@dataclass(frozen=True, slots=True)
class SpatialSkill(Skill):
    """Objects that a prompt names, by their places.

    Attributes:
        has_size: objects carry a width and a height.
    """

    has_size: bool = False

    def prompt(self, prompting: Prompting, request: Request, *, has_frame: bool) -> Prompt:
        """Return what to look for between the template's ids; see :meth:`Skill.prompt`."""
        self.refuse_extras(request)
        template = self.template(prompting)
        require_text(request.prompt, self.name)
        text = prompting.tokenizer.encode(template.object_prefix + request.prompt.strip())
        return build_prompt(
            prompting,
            (template.prefix, text, template.suffix),
            has_frame=has_frame,
            num_characters=len(request.prompt),
        )

    def start(
        self,
        prompting: Prompting,
        request: Request,
        listener: TextListener | None = None,
    ) -> AnswerState:
        """Return the grammar of the objects; raises InputError when somebody listens to it."""
        if listener is not None:
            raise InputError(f"{self.name} has no text to stream; query and caption do")
        return SpatialState(
            prompting,
            label=request.prompt.strip(),
            has_size=self.has_size,
            max_objects=request.max_objects,
        )


@dataclass(slots=True)
class SpatialState:
    """The grammar of one point or detect request, and the objects found so far.

    Attributes:
        prompting: token ids and bin values of the model.
        label: what was asked for; every object carries it.
        has_size: False for point (x, y), True for detect (x, y, size).
        max_objects: complete objects after which the answer ends.
    """

    prompting: Prompting
    label: str
    has_size: bool
    max_objects: int
    length_reason: EndReason = EndReason.MAX_OBJECTS
    detections: list[Detection] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    _pending: list[SampledToken] = field(default_factory=list)
    _cycle: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        prompting = self.prompting
        start = _start(prompting.eos_id, prompting.coord_id, prompting.has_coord_token)
        cycle = (start, _forced(prompting.coord_id))
        self._cycle = (*cycle, _forced(prompting.size_id)) if self.has_size else cycle

    @property
    def max_new_tokens(self) -> int:
        """Tokens of ``max_objects`` objects: after the last one no end token is needed."""
        return len(self._cycle) * self.max_objects

    @property
    def later_positions(self) -> int:
        """None: one phase is the whole answer."""
        return 0

    def next_phase(self) -> None:
        """Return None: one phase is the whole answer."""
        return None

    def constraint_ahead(self, num_ahead: int) -> Constraint:
        """Return the constraint of a later token; it depends on its place in the cycle only."""
        return self._cycle[(len(self._pending) + num_ahead) % len(self._cycle)]

    def advance(self, token: SampledToken) -> bool:
        """Take one token; an object counts once all its tokens are there."""
        if not self._pending and token.id == self.prompting.eos_id:
            return True
        self.token_ids.append(token.id)
        self._pending.append(token)
        if len(self._pending) == len(self._cycle):
            self.detections.append(self._object(self._pending))
            self._pending = []
        return False

    def build_result(self, request: Request, end_reason: EndReason) -> Result:
        """Return the objects found; one that was cut off is not among them."""
        return Result(
            skill=request.skill,
            prompt=request.prompt,
            detections=tuple(self.detections),
            end_reason=end_reason,
            token_ids=tuple(self.token_ids),
        )

    def _object(self, tokens: Sequence[SampledToken]) -> Detection:
        x, y = (self.prompting.coord_values[token.coord_bin] for token in tokens[:2])
        width = height = 0.0
        if self.has_size:
            width, height = (self.prompting.size_values[b] for b in tokens[2].size_bins)
        coord_prob = 1.0
        for token in tokens:
            coord_prob *= token.bin_prob
        return Detection(
            kind=DetectionKind.BOX if self.has_size else DetectionKind.POINT,
            label=self.label,
            x=x,
            y=y,
            width=width,
            height=height,
            score=tokens[0].prob,
            coord_prob=coord_prob,
        )


@cache
def _start(eos_id: int, coord_id: int, has_coord_token: bool) -> Constraint:
    """Return the choice between an object and the end; all requests of a model share it.

    Without a coordinate token the model says "object" with any id but the end token's.
    """
    if not has_coord_token:
        return Constraint(spatial=True, fold_to=coord_id)
    low, high = sorted((eos_id, coord_id))
    return Constraint(allowed=(low, high), spatial=True)


@cache
def _forced(token_id: int) -> Constraint:
    return Constraint(allowed=(token_id,), spatial=True)
