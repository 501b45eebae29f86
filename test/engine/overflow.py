"""A model whose numbers overflow where a test says so, and what its answers then are."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from harness import SMALL, Harness, key_of
from hash_model import HashModel, expected_tokens
from torch import Tensor

from photon_ros.core.errors import EngineFault, RequestCancelled
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.interfaces import SampledToken
from photon_ros.engine.sequence import Sequence

BAD_ID = 23  # feeding it overflows
BAD_FRAME = 200  # frames from this number on overflow
CANCELLED = RequestCancelled("cancelled by the test")


class OverflowingModel(HashModel):
    """Computes NaN from :data:`BAD_ID`, and from frames from :data:`BAD_FRAME` on while ill.

    ``fatal_ids`` overflow, too: feeding the end token is something that only zombies do.
    """

    def __init__(self, fatal_ids: Seq[int] = (), fail_on: dict[str, int] | None = None) -> None:
        super().__init__(fail_on)
        self.is_ill = True
        self._fatal_ids = torch.tensor([BAD_ID, *fatal_ids])

    def encode_frames(self, crops: Seq[Tensor], tilings: Seq[tuple[int, int]]) -> Tensor:
        embeds = super().encode_frames(crops, tilings)
        if self.is_ill:
            for row, crop in enumerate(crops):
                if int(crop.flatten()[0]) >= BAD_FRAME:
                    embeds[row, 3] = float("nan")
        return embeds

    def embed_tokens(self, ids: Tensor) -> Tensor:
        is_fatal = torch.isin(ids, self._fatal_ids)[..., None]
        return super().embed_tokens(ids).masked_fill(is_fatal, float("nan"))


def num_finite(
    prompt: tuple[int, ...], frame: int | None, tokens: Seq[SampledToken], fresh: Any
) -> int:
    """Return after how many of its right tokens a request fails; all when it does not."""
    if BAD_ID in prompt or (frame is not None and frame >= BAD_FRAME):
        return 0
    for count, token in enumerate(tokens, 1):
        if fresh.advance(token):  # what ends a phase is never fed
            fresh.next_phase()
        elif token.id == BAD_ID and count < len(tokens):
            return count
    return len(tokens)


class World:
    """A harness in which requests may fail by overflow, and all that were asked there."""

    def __init__(
        self,
        model: OverflowingModel | None = None,
        modes: dict[str, bool] | None = None,
        **how: Any,
    ) -> None:
        self.model = model or OverflowingModel()
        config = EngineConfig(**SMALL, **(modes or {}))
        self.harness = Harness(config=config, model=self.model, may_overflow=True, **how)
        self.asked: list[Case] = []

    def ask(self, make: Callable[[], Any], prompt: tuple[int, ...], frame: int | None) -> Case:
        """Queue a request."""
        state = make()
        sequence = self.harness.submit(state, prompt=prompt, frame=frame)
        self.asked.append(Case(self.harness, make, prompt, frame, state, sequence))
        return self.asked[-1]

    def cancel(self, case: Case) -> None:
        """End a request, if it has not ended."""
        self.harness.engine.cancel(case.sequence, CANCELLED)

    def finish(self) -> None:
        """Run until idle; then check that nothing leaks, and every answer."""
        self.harness.run()
        for case in self.asked:
            case.check()


@dataclass
class Case:
    """One request."""

    harness: Harness
    make: Callable[[], Any]
    prompt: tuple[int, ...]
    frame: int | None
    state: Any
    sequence: Sequence

    @property
    def error(self) -> BaseException | None:
        return self.harness.outcomes[self.sequence].error

    @property
    def has_overflowed(self) -> bool:
        return isinstance(self.error, EngineFault) and "no finite number" in str(self.error)

    def check(self) -> None:
        """Compare with what it gives alone: right to the end, or to where it overflows."""
        right = expected_tokens(self.prompt, self.frame, self.make())
        count = num_finite(self.prompt, self.frame, right, self.make())
        got = key_of(self.state.tokens)
        if self.error is CANCELLED:
            assert got == key_of(right)[: len(got)]
            assert len(got) <= count
            return
        assert got == key_of(right)[:count]
        assert self.has_overflowed == (count < len(right))
        assert self.has_overflowed or self.error is None
