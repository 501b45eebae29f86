"""ReasoningState: a thought in words and places, then the answer.

    thought   words, with coordinates among them, until the answer token or a budget
    answer    the template's suffix is fed, then words until the end token

The token that ends the thought is never fed. When the budget ends it, one more token is taken
and thrown away, so that the last one kept is fed like all the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Grounding, Reasoning, Result
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.skills.text import TextState


@dataclass(slots=True)
class ReasoningState:
    """The grammar of a thought and its answer.

    Attributes:
        answer: the grammar of the answer; it has the same budget as the thought.
        suffix: ids fed between thought and answer.
        thought: tokens of the thought.
    """

    answer: TextState
    suffix: tuple[int, ...]
    length_reason: EndReason = EndReason.MAX_TOKENS
    thought: list[SampledToken] = field(default_factory=list)
    _max_thought: int = 0
    _is_answering: bool = False
    _has_next_phase: bool = False

    def __post_init__(self) -> None:
        self._max_thought = self.answer.max_new_tokens

    @property
    def max_new_tokens(self) -> int:
        """Tokens of the current phase; a thought takes one more than it keeps."""
        return self.answer.max_new_tokens if self._is_answering else self._max_thought + 1

    @property
    def later_positions(self) -> int:
        """Positions of the suffix and of the answer's tokens that are fed."""
        return 0 if self._is_answering else len(self.suffix) + self.answer.max_new_tokens - 1

    def constraint_ahead(self, num_ahead: int) -> Constraint:
        """Return the constraint of a later token; it depends on its place only.

        The first token of a thought may be any, as in the reference; an end token there is a
        word like others.
        """
        if self._is_answering:
            return self.answer.constraint_ahead(num_ahead)
        is_first = len(self.thought) + num_ahead == 0
        prompting = self.answer.prompting
        return _thought_constraint(
            () if is_first else tuple(sorted((prompting.eos_id, prompting.size_id)))
        )

    def advance(self, token: SampledToken) -> bool:
        """Take one token; return True when it ends the phase."""
        if self._is_answering:
            return self.answer.advance(token)
        prompting = self.answer.prompting
        if token.id != prompting.answer_id and len(self.thought) < self._max_thought:
            self.thought.append(token)
            return False
        self._is_answering = self._has_next_phase = True
        if self.answer.listener is not None:
            self.answer.listener.on_reasoning(self.build_reasoning)
        return True

    def next_phase(self) -> tuple[int, ...] | None:
        """Return the ids that start the answer, once, after the thought has ended."""
        if not self._has_next_phase:
            return None
        self._has_next_phase = False
        return self.suffix

    def build_reasoning(self) -> Reasoning:
        """Return the thought in words, and where it points; its tokens must be complete."""
        prompting = self.answer.prompting
        texts, grounding, length = [], [], 0
        for chunk in _chunks(self.thought, prompting):
            text = prompting.tokenizer.decode([token.id for token in chunk])
            points = _points(chunk, prompting)
            if points:
                grounding.append(Grounding(length, length + len(text), points))
            texts.append(text)
            length += len(text)
        ids = tuple(token.id for token in self.thought)
        return Reasoning("".join(texts), tuple(grounding), ids)

    def build_result(self, request: Request, end_reason: EndReason) -> Result:
        """Return the answer's text and the reasoning before it."""
        result = self.answer.build_result(request, end_reason)
        return replace(result, reasoning=self.build_reasoning())


@cache
def _thought_constraint(forbidden: tuple[int, ...]) -> Constraint:
    return Constraint(forbidden=forbidden, spatial=True)


def _chunks(thought: Sequence[SampledToken], prompting: Prompting) -> list[list[SampledToken]]:
    """Split a thought before each token that starts or ends grounded words."""
    chunks: list[list[SampledToken]] = [[]]
    for token in thought:
        if token.id in (prompting.start_ground_id, prompting.end_ground_id):
            chunks.append([])
        chunks[-1].append(token)
    return chunks


def _points(chunk: Sequence[SampledToken], prompting: Prompting) -> tuple[tuple[float, float], ...]:
    """Return a chunk's coordinates in pairs; an odd one at the end is dropped."""
    values = [prompting.coord_values[token.coord_bin] for token in chunk if token.coord_bin >= 0]
    return tuple(zip(values[::2], values[1::2], strict=False))
