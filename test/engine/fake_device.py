"""A device that runs every operation as late, and in as hostile an order, as it legally may.

Operations wait in their stream's queue. Which stream moves next is picked by a seed, and
nothing moves unless the host waits or the seed says so. So a copy reads its source when it
executes, and a host buffer that is rewritten too early is read with its new content.

An operation that raises is a fault of the device: the host learns of it from the next event it
waits for on that stream, or on a stream that waited for that one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class FakeEvent:
    """Happens when its stream reaches it."""

    device: FakeDevice
    has_happened: bool = False
    error: Exception | None = None

    def synchronize(self) -> None:
        self.device.num_host_waits += 1
        while not self.has_happened:
            self.device.run_one()
        if self.error is not None:
            raise self.error


@dataclass(eq=False)
class FakeStream:
    """A queue of operations, event marks and event waits."""

    device: FakeDevice
    queue: deque[tuple[str, Callable[[], None] | FakeEvent]] = field(default_factory=deque)
    pending_error: Exception | None = None

    def submit(self, op: Callable[[], None], name: str) -> None:
        if self.device.wrap is not None:
            op = self.device.wrap(op, name)
        self.queue.append((name, op))
        self.device.run_some()

    def record(self) -> FakeEvent:
        event = FakeEvent(self.device)
        self.queue.append(("<mark>", event))
        return event

    def wait(self, event: FakeEvent) -> None:
        self.queue.append(("<wait>", event))

    @property
    def can_move(self) -> bool:
        """True when the head of the queue may run now."""
        if not self.queue:
            return False
        name, item = self.queue[0]
        return name != "<wait>" or (isinstance(item, FakeEvent) and item.has_happened)

    def move(self) -> None:
        """Run the head of the queue."""
        name, item = self.queue.popleft()
        if isinstance(item, FakeEvent):
            if name == "<mark>":
                item.has_happened = True
                item.error, self.pending_error = self.pending_error, None
            elif item.error is not None:
                self.pending_error = item.error
            return
        try:
            item()
        except Exception as error:
            self.pending_error = error
        self.device.trace.append(name)


class FakeDevice:
    """Two streams whose interleaving a seed picks; ``eagerness`` is how much runs unasked."""

    def __init__(self, seed: int = 0, eagerness: float = 0.3, can_capture: bool = False) -> None:
        self._random = random.Random(seed)
        self._eagerness = eagerness
        self.torch_device = torch.device("cpu")
        self.can_capture = can_capture
        self.compute = FakeStream(self)
        self.copy = FakeStream(self)
        self.num_host_waits = 0
        self.trace: deque[str] = deque(maxlen=10_000)
        # Put around every operation; see hostile.py.
        self.wrap: Callable[[Callable[[], None], str], Callable[[], None]] | None = None

    def capture(self, op: Callable[[], None]) -> Callable[[], None]:
        """Return the operation of the step that was captured: replays read its buffers only."""
        return op

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def run_one(self) -> None:
        """Move one stream by one operation."""
        movable = [stream for stream in (self.compute, self.copy) if stream.can_move]
        assert movable, "deadlock: no stream can move"
        self._random.choice(movable).move()

    def run_some(self) -> None:
        """Move as often as the seed says, which may be not at all."""
        while self._random.random() < self._eagerness:
            if not any(stream.can_move for stream in (self.compute, self.copy)):
                return
            self.run_one()
