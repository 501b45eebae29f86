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

from photon_ros.core.prompting import Prompting
from photon_ros.core.result import Detection, DetectionKind, EndReason
from photon_ros.engine.interfaces import Constraint, SampledToken


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
        self._cycle = _cycle_of(
            self.prompting.eos_id,
            self.prompting.coord_id,
            self.prompting.size_id if self.has_size else None,
        )

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
def _cycle_of(eos_id: int, coord_id: int, size_id: int | None) -> tuple[Constraint, ...]:
    """Return the constraints of one object's tokens; all requests of a model share them."""
    low, high = sorted((eos_id, coord_id))
    cycle = (
        Constraint(allowed=(low, high), spatial=True),
        Constraint(allowed=(coord_id,), spatial=True),
    )
    return cycle if size_id is None else (*cycle, Constraint(allowed=(size_id,), spatial=True))
