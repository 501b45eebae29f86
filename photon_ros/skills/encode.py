"""EncodeState: the shortest sequence there is, for the sake of the frame it reads."""

from __future__ import annotations

from dataclasses import dataclass

from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Result
from photon_ros.engine.interfaces import Constraint, SampledToken


@dataclass(slots=True)
class EncodeState:
    """One forced end token: its prefill encodes the frame, which stays for later requests."""

    prompting: Prompting
    max_new_tokens: int = 1
    length_reason: EndReason = EndReason.MAX_TOKENS
    later_positions: int = 0

    def constraint_ahead(self, num_ahead: int) -> Constraint:  # noqa: ARG002  # there is one token
        """Return the end token's constraint."""
        return Constraint(allowed=(self.prompting.eos_id,), spatial=True)

    def advance(self, token: SampledToken) -> bool:  # noqa: ARG002  # it is the end token
        """Return True: the first token is the last."""
        return True

    def next_phase(self) -> tuple[int, ...] | None:
        """Return None: there is one phase."""
        return None

    def build_result(self, request: Request, end_reason: EndReason) -> Result:
        """Return what it took."""
        return Result(request.skill, request.prompt, end_reason=end_reason)
