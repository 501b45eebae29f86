"""TextState: an answer in words, one token at a time until the end token."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Result
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.skills.release import released_text
from photon_ros.skills.skill import TextListener


@dataclass(slots=True)
class TextState:
    """The grammar of an answer in words.

    The first token may be any; later ones may not start another answer. Neither depends on
    what was sampled, so text never holds the engine back.

    Attributes:
        prompting: token ids and tokenizer of the model.
        max_new_tokens: tokens after which the answer ends.
        listener: hears each token of the answer.
    """

    prompting: Prompting
    max_new_tokens: int
    listener: TextListener | None = None
    length_reason: EndReason = EndReason.MAX_TOKENS
    later_positions: int = 0
    token_ids: list[int] = field(default_factory=list)

    def constraint_ahead(self, num_ahead: int) -> Constraint:
        """Return the constraint of a later token; it depends on its place only."""
        is_first = len(self.token_ids) + num_ahead == 0
        return text_without(None if is_first else self.prompting.answer_id)

    def advance(self, token: SampledToken) -> bool:
        """Take one token; the end token ends the answer."""
        if token.id == self.prompting.eos_id:
            return True
        self.token_ids.append(token.id)
        if self.listener is not None:
            self.listener.on_token(token.id)
        return False

    def next_phase(self) -> tuple[int, ...] | None:
        """Return None: an answer is one phase."""
        return None

    def build_result(self, request: Request, end_reason: EndReason) -> Result:
        """Return the answer's text."""
        return Result(
            skill=request.skill,
            prompt=request.prompt,
            text=released_text(self.prompting.tokenizer, self.token_ids),
            end_reason=end_reason,
            token_ids=tuple(self.token_ids),
        )


@cache
def text_without(token_id: int | None) -> Constraint:
    """Return the constraint of free text without one id; all requests share it."""
    return Constraint(forbidden=() if token_id is None else (token_id,))
