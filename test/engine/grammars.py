"""Grammars for engine tests: one known ahead, one free, one that must hold sampling."""

from __future__ import annotations

from dataclasses import dataclass, field

from photon_ros.core.result import EndReason
from photon_ros.engine.interfaces import Constraint, SampledToken


class OnePhase:
    """An answer that is over when its first phase is."""

    @property
    def later_positions(self) -> int:
        return 0

    def next_phase(self) -> tuple[int, ...] | None:
        return None


@dataclass
class CycleGrammar(OnePhase):
    """Objects of (coord, coord[, size]) until eos: known ahead, like detect."""

    has_size: bool = True
    max_objects: int = 5
    length_reason: EndReason = EndReason.MAX_OBJECTS
    tokens: list[SampledToken] = field(default_factory=list)

    @property
    def _period(self) -> int:
        return 3 if self.has_size else 2

    @property
    def max_new_tokens(self) -> int:
        return self.max_objects * self._period

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        place = (len(self.tokens) + num_ahead) % self._period
        return Constraint(allowed=((0, 5), (5,), (6,))[place], spatial=True)

    def advance(self, token: SampledToken) -> bool:
        is_boundary = len(self.tokens) % self._period == 0
        self.tokens.append(token)
        return is_boundary and token.id == 0


@dataclass
class TextGrammar(OnePhase):
    """Free text until eos; nothing depends on anything."""

    max_new_tokens: int = 12
    forbidden: tuple[int, ...] = ()
    length_reason: EndReason = EndReason.MAX_TOKENS
    tokens: list[SampledToken] = field(default_factory=list)

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        return Constraint(forbidden=self.forbidden)

    def advance(self, token: SampledToken) -> bool:
        self.tokens.append(token)
        return token.id == 0


@dataclass
class ParityGrammar(OnePhase):
    """The next token must differ in parity from the last: only known once that is committed."""

    max_new_tokens: int = 9
    length_reason: EndReason = EndReason.MAX_TOKENS
    tokens: list[SampledToken] = field(default_factory=list)

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        if num_ahead > 0:
            return None
        last = self.tokens[-1].id if self.tokens else 1
        return Constraint(allowed=tuple(i for i in range(24) if i % 2 != last % 2))

    def advance(self, token: SampledToken) -> bool:
        self.tokens.append(token)
        return token.id == 0


@dataclass
class TwoPhaseGrammar:
    """Thinks until token 3 or for ``think`` tokens, then is asked again and answers.

    The token that ends the first phase is dropped, so that the last one kept has been fed.
    """

    think: int = 4
    answer: int = 3
    suffix: tuple[int, ...] = (9, 4)
    forbidden: tuple[int, ...] = (0,)
    length_reason: EndReason = EndReason.MAX_TOKENS
    tokens: list[SampledToken] = field(default_factory=list)
    thoughts: list[SampledToken] = field(default_factory=list)
    is_answering: bool = False

    @property
    def max_new_tokens(self) -> int:
        return self.answer if self.is_answering else self.think + 1

    @property
    def later_positions(self) -> int:
        return len(self.suffix) + self.answer

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        return Constraint(forbidden=() if self.is_answering else self.forbidden, spatial=True)

    def advance(self, token: SampledToken) -> bool:
        self.tokens.append(token)
        if self.is_answering:
            return token.id == 0
        if token.id == 3 or len(self.thoughts) == self.think:
            return True
        self.thoughts.append(token)
        return False

    def next_phase(self) -> tuple[int, ...] | None:
        if self.is_answering:
            return None
        self.is_answering = True
        return self.suffix


@dataclass
class FoldGrammar(CycleGrammar):
    """Like detect, but at the boundary any id except the end means another object."""

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        place = (len(self.tokens) + num_ahead) % self._period
        if place == 0:
            return Constraint(fold_to=5, spatial=True)
        return super().constraint_ahead(num_ahead)
