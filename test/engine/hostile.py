"""Surroundings in which every forbidden read or write shows.

Whatever may legally hold garbage does hold garbage, from the first moment on that it may:

- a slot's host buffers from the end of its commit, its device buffers from its launch;
- a lane's relay row from the release of its sequence, and from the moment it was gathered;
- private pages from the moment they are given back, a frame's extent until it is encoded;
- everything that was never written.

Garbage in the reserved page and in extents not yet encoded is not even finite. In private pages
it is, unless a model left worse there: what is given back must have been made so.

And each operation on the compute stream may write the cache only where the sequences it was
launched for own it, while they own it. Device-side garbage is written by operations on the
compute stream, so that it is as late as everything else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from photon_ros.engine.decode_slot import DecodeSlot, Twin
from photon_ros.engine.device import Device
from photon_ros.engine.engine import Engine
from photon_ros.engine.forward import Forward
from photon_ros.engine.page_pool import RESERVED_PAGE, PagePool
from photon_ros.engine.pipeline import Pipeline
from photon_ros.engine.scheduler import Scheduler
from photon_ros.engine.sequence import Sequence, SequenceStatus
from photon_ros.engine.shared_places import Place, SharedPlaces
from photon_ros.engine.step import Step

Report = Callable[[str], None]
NUM_GARBAGE = 100_000


class Garbage:
    """Values that are wrong but plausible: in range as lane, id, page and position."""

    def __init__(self, seed: int, below: int) -> None:
        self._random = random.Random(seed)
        drawn = np.random.default_rng(seed).integers(0, below, NUM_GARBAGE)
        dtypes = (torch.int64, torch.float32, torch.float64, torch.bool, torch.uint8)
        self._drawn = {dtype: torch.from_numpy(drawn).to(dtype) for dtype in dtypes}

    def fill(self, tensor: Tensor) -> None:
        count = tensor.numel()
        assert count < NUM_GARBAGE
        begin = self._random.randrange(NUM_GARBAGE - count)
        tensor.copy_(self._drawn[tensor.dtype][begin : begin + count].view(tensor.shape))

    def coin(self) -> bool:
        return self._random.random() < 0.5


class RelayTensor(Tensor):
    """A relay that knows which rows hold a value that was written and not yet gathered.

    Rows behind those of ``written`` belong to nobody and may always be read.
    """

    written: list[bool]
    report: Report
    garbage: Garbage

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        relay = next((a for a in args if isinstance(a, RelayTensor)), None)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if relay is None or not hasattr(relay, "written"):
                return result
            if name == "index_select" and args[0] is relay:
                result = result.as_subclass(Tensor).clone()
                relay._consume(args[2].tolist())
            elif name == "index_copy_" and args[0] is relay:
                for lane in args[2].tolist():
                    relay._set(lane, True)
        return result

    def _set(self, lane: int, is_written: bool) -> None:
        if lane < len(self.written):
            self.written[lane] = is_written

    def _consume(self, lanes: list[int]) -> None:
        for lane in lanes:
            if lane < len(self.written):
                if not self.written[lane]:
                    self.report(f"relay row {lane} gathered without being written since")
                self.forget(lane)

    def excuse(self) -> None:
        """Allow what is unwritten to be read: its writer failed, and so will its readers."""
        self.written[:] = [True] * len(self.written)

    def forget(self, lane: int) -> None:
        """Make the value of a lane unreadable."""
        with torch._C.DisableTorchFunctionSubclass():
            self.garbage.fill(self[lane])
        self._set(lane, False)


class PoisoningPipeline(Pipeline):
    """Ruins a slot's buffers as soon as nobody may read them."""

    device: Device
    garbage: Garbage

    def launch(self, step: Step) -> None:
        super().launch(step)
        buffers = _buffers(step.slot, on_host=False)
        self.device.compute.submit(lambda: self._ruin(buffers), "poison")

    def commit(self, step: Step) -> None:
        super().commit(step)
        self._ruin_host(step.slot)

    def abandon(self, step: Step) -> None:
        super().abandon(step)
        self._ruin_host(step.slot)

    def _ruin_host(self, slot: DecodeSlot) -> None:
        buffers = _buffers(slot, on_host=True)
        if self.garbage.coin():  # the slot's memory of its mask rows is put to the test
            buffers = [buffer for buffer in buffers if buffer is not slot.mask.host]
        else:
            slot._masked_by = [None] * len(slot._masked_by)
        self._ruin(buffers)

    def _ruin(self, buffers: list[Tensor]) -> None:
        for buffer in buffers:
            self.garbage.fill(buffer)


def _buffers(slot: DecodeSlot, *, on_host: bool) -> list[Tensor]:
    twins = [value for value in vars(slot).values() if isinstance(value, Twin)]
    if on_host:
        return [twin.host for twin in twins]
    lone = [value for value in vars(slot).values() if isinstance(value, Tensor)]
    return [twin.device for twin in twins] + lone


class PoisoningPool(PagePool):
    """Ruins private pages that are given back."""

    poison_pages: Callable[[list[int]], None]

    def give_pages(self, pages: Iterable[int]) -> None:
        pages = list(pages)
        super().give_pages(pages)
        self.poison_pages(pages)


class PoisoningPrefixes(SharedPlaces):
    """Ruins extents that are about to be encoded."""

    poison_pages: Callable[[list[int]], None]
    pages_per_prefix: int

    def hold(self, key: Hashable) -> Place:
        is_new = not self.has(key)
        prefix = super().hold(key)
        if is_new:
            first = prefix.number
            self.poison_pages(list(range(first, first + self.pages_per_prefix)))
        return prefix


class PoisoningScheduler(Scheduler):
    """Ruins the relay row of a lane that is given back."""

    device: Device
    relay: RelayTensor

    def release(self, sequence: Sequence) -> None:
        lane = sequence.lane
        super().release(sequence)
        if lane >= 0:
            self.device.compute.submit(lambda: self.relay.forget(lane), "poison")


class WatchedForward(Forward):
    """Says, for each operation it queues, which position slots of the cache it may write."""

    watch: CacheWatch

    def submit(self, step: Step) -> None:
        self.watch.expect(step)
        try:
            super().submit(step)
        finally:
            self.watch.expect(None)


class CacheWatch:
    """Compares the cache before and after every operation."""

    def __init__(
        self,
        values: Tensor,
        relay: RelayTensor,
        pool: PagePool,
        page_size: int,
        prefix_len: int,
        report: Report,
    ) -> None:
        self._values = values
        self._relay = relay
        self._pool = pool
        self._page_size = page_size
        self._prefix_len = prefix_len
        self._report = report
        self._step: Step | None = None

    def expect(self, step: Step | None) -> None:
        self._step = step

    def wrap(self, op: Callable[[], None], name: str) -> Callable[[], None]:
        if name == "poison":
            return op
        rows = self._owners(name)
        allowed = self._allowed(name)
        if name == "scrub":
            assert isinstance(op, partial)
            allowed = self._scrubbed(*op.args)

        def watched() -> None:
            for sequence, pages in rows:
                if sequence.status is not SequenceStatus.RUNNING or sequence.pages != pages:
                    self._report(f"{name} ran after a sequence of it gave back its pages")
                prefix = sequence.prefix
                if prefix is not None and prefix.num_holders < 1:
                    self._report(f"{name} ran after its frame's prefix was let go")
            before = self._values.clone()
            try:
                op()
            except Exception:
                self._relay.excuse()
                raise
            finally:
                differs = self._values != before
                differs &= ~(self._values.isnan() & before.isnan())
                if differs.any():
                    changed = differs.flatten(2).any(-1).any(0)
                    wrong = set(changed.nonzero()[:, 0].tolist()) - allowed
                    if wrong:
                        self._report(f"{name} wrote position slots {sorted(wrong)[:8]} of others")

        return watched

    def _owners(self, name: str) -> list[tuple[Sequence, list[int]]]:
        if self._step is None or name not in ("encode", "prefill", "decode"):
            return []
        return [(sequence, list(sequence.pages)) for sequence in self._step.sequences]

    def _scrubbed(self, pages: Iterable[int]) -> set[int]:
        if not self._pool._owned.issuperset(pages):
            self._report(f"pages {pages} are scrubbed after they were given back")
        return {page * self._page_size + i for page in pages for i in range(self._page_size)}

    def _allowed(self, name: str) -> set[int]:
        page, step = self._page_size, self._step
        if step is None:
            return set()
        if name == "encode":
            firsts = [prefix.number for prefix, _ in step.new_prefixes]
            return {first * page + i for first in firsts for i in range(self._prefix_len)}
        allowed = {RESERVED_PAGE * page + i for i in range(page)}
        for sequence in step.sequences:
            prompt_end = sequence.prompt_start + len(sequence.prompt_ids)
            if name == "prefill":
                places = range(sequence.prompt_start, prompt_end)
            else:
                place = prompt_end + sequence.num_launched - 1
                places = range(place, place + 1)
            allowed |= {sequence.pages[p // page] * page + p % page for p in places}
        return allowed


def surround(engine: Engine, device: Device, seed: int, report: Report) -> CacheWatch:
    """Put an engine into hostile surroundings; return the watch over its cache."""
    config, spec = engine._config, engine._model.spec
    garbage = Garbage(seed, min(config.max_rows, 4))
    cache = engine._forward._cache
    page = config.page_size

    def poison_pages(pages: list[int]) -> None:
        def ruin() -> None:
            for number in pages:
                extent = slice(number * page, (number + 1) * page)
                for part in (cache.values[:, extent], cache.keys[:, extent]):
                    is_worse = part.isnan()  # than garbage; it stays until it is scrubbed
                    garbage.fill(part)
                    part[is_worse] = float("nan")

        device.compute.submit(ruin, "poison")

    relay = engine._forward._relay.as_subclass(RelayTensor)
    relay.written = [False] * config.max_rows  # the row behind them is the padding's
    relay.report, relay.garbage = report, garbage
    engine._forward._relay = engine._sampler._relay = relay
    for unwritten in (relay, cache.keys, cache.values):
        garbage.fill(unwritten)
    first_private_slot = (engine.pool.num_pages - engine.pool.num_private_pages) * page
    for part in (cache.keys, cache.values):  # no real row may read the reserved page
        part[:, :first_private_slot] = float("nan")
    watch = CacheWatch(cache.values, relay, engine.pool, page, spec.prefix_len, report)
    _adopt(engine.pipeline, PoisoningPipeline, device=device, garbage=garbage)
    pool = engine.pool
    _adopt(pool, PoisoningPool, poison_pages=poison_pages)
    _adopt(
        pool.prefixes,
        PoisoningPrefixes,
        poison_pages=poison_pages,
        pages_per_prefix=-(-spec.prefix_len // page),
    )
    _adopt(engine.scheduler, PoisoningScheduler, device=device, relay=relay)
    _adopt(engine._forward, WatchedForward, watch=watch)
    return watch


def _adopt(thing: object, cls: type, **attributes: Any) -> None:
    """Turn an object into one of a subclass, so that everybody who holds it sees it."""
    assert issubclass(cls, type(thing))
    thing.__class__ = cls  # type: ignore[assignment]
    for name, value in attributes.items():
        setattr(thing, name, value)
