"""Point and detect: objects as a repeating cycle of spatial tokens.

    point    x y   x y   ... eos
    detect   x y s x y s ... eos

Only the x state may end the answer; y and size are forced. The state after each token is known
before the token is, unless it was the end, so these grammars never hold the engine back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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

    @property
    def tokens_per_object(self) -> int:
        """Tokens of one complete object."""
        return 3 if self.has_size else 2

    @property
    def max_new_tokens(self) -> int:
        """Tokens of ``max_objects`` objects: after the last one no end token is needed."""
        return self.tokens_per_object * self.max_objects

    def constraint_ahead(self, num_ahead: int) -> Constraint:
        """Return the constraint of a later token; it depends on its place in the cycle only."""
        place = (len(self._pending) + num_ahead) % self.tokens_per_object
        ids = self.prompting
        if place == 0:
            low, high = sorted((ids.eos_id, ids.coord_id))
            return Constraint(allowed=(low, high), spatial=True)
        return Constraint(allowed=(ids.coord_id if place == 1 else ids.size_id,), spatial=True)

    def advance(self, token: SampledToken) -> bool:
        """Take one token; an object counts once all its tokens are there."""
        if not self._pending and token.id == self.prompting.eos_id:
            return True
        self.token_ids.append(token.id)
        self._pending.append(token)
        if len(self._pending) == self.tokens_per_object:
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
