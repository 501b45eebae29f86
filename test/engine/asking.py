"""Requests to a worker that keep every outcome they are given, and engines worth asking."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from grammars import CycleGrammar, TextGrammar
from harness import SMALL, key_of
from hash_model import HashModel, crops_of, expected_tokens
from torch import Tensor

from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import Adapt, Attend
from photon_ros.engine.sequence import Outcome, PrefixSource, Sequence
from photon_ros.engine.worker import EngineWorker


class BuggyEngine(Engine):
    """An engine with a bug in its own tick, as often as planted."""

    num_bugs = 0

    def tick(self) -> None:
        if self.num_bugs:
            self.num_bugs -= 1
            raise KeyError("planted bug")
        super().tick()


class SlowModel(HashModel):
    """Takes a set time for each forward."""

    def __init__(self, forward_s: float) -> None:
        super().__init__()
        self.forward_s = forward_s

    def decode(
        self, x_BTD: Tensor, positions_BT: Tensor, attend: Attend, adapt: Adapt | None = None
    ) -> Tensor:
        time.sleep(self.forward_s)
        return super().decode(x_BTD, positions_BT, attend, adapt)


class Asked:
    """One request and every outcome it was given."""

    def __init__(
        self,
        state: Any,
        prompt: tuple[int, ...] = (1, 2),
        frame: int | None = 1,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self.state, self.prompt, self.frame = state, prompt, frame
        self.outcomes: list[Outcome] = []
        self.threads: list[str] = []
        self.ended = threading.Event()
        self._then = then
        source = None if frame is None else PrefixSource(("frame", frame), crops_of(frame))
        self.sequence = Sequence(prompt, state, self._on_done, source=source)

    def _on_done(self, sequence: Sequence, outcome: Outcome) -> None:
        assert sequence is self.sequence
        self.outcomes.append(outcome)
        self.threads.append(threading.current_thread().name)
        self.ended.set()
        self._then()

    @property
    def error(self) -> BaseException | None:
        assert self.ended.wait(20), "never answered"
        assert len(self.outcomes) == 1, "answered more than once"
        return self.outcomes[0].error


def detect() -> CycleGrammar:
    return CycleGrammar(True, 4)


def endless() -> TextGrammar:
    return TextGrammar(60, forbidden=(0,))


def assert_right(asked: Asked, fresh: Any) -> None:
    assert asked.error is None
    wanted = expected_tokens(asked.prompt, asked.frame, fresh)
    assert key_of(asked.state.tokens) == key_of(wanted)


Opened = Callable[..., EngineWorker]


@contextmanager
def open_workers() -> Iterator[Opened]:
    """Give something that opens workers; they are closed at the end."""
    workers: list[EngineWorker] = []

    def open_worker(model: HashModel | None = None, kind: type[Engine] = Engine) -> EngineWorker:
        config = EngineConfig(**{**SMALL, "num_private_pages": 80})
        workers.append(EngineWorker(kind(model or HashModel(), CpuDevice(), config)))
        return workers[-1]

    yield open_worker
    for worker in workers:
        worker.close()
