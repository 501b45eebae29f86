"""Runs sequences through an engine tick by tick and recomputes its invariants each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fake_device import FakeDevice
from hash_model import HashModel, crops_of
from hostile import surround

from photon_ros.core.errors import EngineFault
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice, Device
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import SkillState
from photon_ros.engine.lora import LoraAdapter
from photon_ros.engine.sequence import (
    Outcome,
    PrefixSource,
    SamplingParams,
    Sequence,
    SequenceStatus,
)
from photon_ros.engine.shared_places import SharedPlaces

Key = tuple[int, int, tuple[int, int]]
SMALL = {"max_rows": 4, "max_prefixes": 2, "page_size": 4, "num_private_pages": 40}


def num_holders(places: SharedPlaces) -> int:
    """Return the holds on all places together, those on garbage included."""
    return sum(place.num_holders for place in (*places._places.values(), *places._dropped))


def num_free_when_cleared(places: SharedPlaces) -> int:
    """Forget all content, which nobody may hold; return how many places are free then."""
    for place in list(places._places.values()):
        places.drop(place)
    return places.num_free


def key_of(tokens: list) -> list[Key]:
    """Return what must be equal of tokens: id, coordinate and size bins."""
    return [(t.id, t.coord_bin, t.size_bins) for t in tokens]


@dataclass
class Harness:
    """An engine on a fake device, and every outcome it delivered."""

    seed: int = 0
    eagerness: float = 0.3
    config: EngineConfig = field(default_factory=lambda: EngineConfig(**SMALL))
    model: HashModel = field(default_factory=HashModel)

    can_capture: bool = False
    may_overflow: bool = False  # numbers that are not finite are part of the test
    is_synchronous: bool = False  # the CPU's device: a fault is raised where it is submitted

    def __post_init__(self) -> None:
        self.device = FakeDevice(self.seed, self.eagerness, self.can_capture)
        device: Device = CpuDevice() if self.is_synchronous else self.device
        self.engine = Engine(self.model, device, self.config)
        self.sequences: list[Sequence] = []
        self.outcomes: dict[Sequence, Outcome] = {}
        # Kept and asserted in check(): the engine survives what its callbacks raise.
        self.violations: list[str] = []
        self.faults: list[str] = []  # those that nobody planted
        watch = surround(self.engine, device, self.seed, self.violations.append)
        self.device.wrap = watch.wrap

    def submit(
        self,
        state: SkillState,
        prompt: tuple[int, ...] = (1, 2, 3),
        frame: int | None = 7,
        deadline_s: float | None = None,
        on_done: Callable[[Sequence, Outcome], None] | None = None,
        values: tuple[tuple[int, tuple[float, ...]], ...] = (),
        sampling: SamplingParams | None = None,
        adapter: LoraAdapter | None = None,
    ) -> Sequence:
        key = ("frame", frame, adapter)
        source = None if frame is None else PrefixSource(key, crops_of(frame))

        def deliver(sequence: Sequence, outcome: Outcome) -> None:
            if sequence in self.outcomes:
                self.violations.append("an outcome was delivered twice")
            error = outcome.error
            is_overflow = self.may_overflow and "no finite number" in str(error)
            if isinstance(error, EngineFault) and not (
                is_overflow or "planted" in str(error).lower()
            ):
                self.faults.append(str(error))
            self.outcomes[sequence] = outcome
            if on_done is not None:
                on_done(sequence, outcome)

        sequence = Sequence(
            prompt,
            state,
            deliver,
            source=source,
            sampling=sampling or SamplingParams(),
            deadline_s=deadline_s,
            prompt_values=values,
            adapter=adapter,
        )
        self.engine.submit(sequence)
        self.sequences.append(sequence)
        return sequence

    def tick(self) -> None:
        """Tick once and check every invariant that can be recomputed from outside."""
        self.engine.tick()
        self.check()

    def run(self, max_ticks: int = 2000) -> None:
        """Tick until idle; then nothing may be held any more, frames neither."""
        self.settle(max_ticks)
        assert num_free_when_cleared(self.engine.pool.prefixes) == self.config.max_prefixes

    def settle(self, max_ticks: int = 2000) -> None:
        """Tick until idle; then nothing may be held any more but frames that nobody reads."""
        for _ in range(max_ticks):
            if not self.engine.has_work:
                break
            self.tick()
        assert not self.engine.has_work, "the engine never became idle"
        self.check_idle()

    def check(self) -> None:
        engine = self.engine
        assert not self.violations, self.violations[:5]
        # The surroundings keep NaN wherever nothing was written: whoever meets it read too early,
        # or what is not its own, and that is about pages and no crash.
        met = [fault for fault in self.faults if "no finite number" in fault]
        assert not met, f"a row read what nobody wrote for it: {met[0]}"
        assert not self.faults, f"a fault that nobody planted: {self.faults[0]}"
        engine.pool.check()
        named: dict[Sequence, int] = {}
        for step in engine.pipeline.steps:
            for sequence in step.sequences:
                named[sequence] = named.get(sequence, 0) + 1
        owned: list[int] = []
        lanes: list[int] = []
        for sequence in self.sequences:
            assert sequence.inflight_refs == named.get(sequence, 0)
            assert 0 <= sequence.inflight_refs <= self.config.max_inflight_steps
            if not sequence.finalized:
                named_now = 0 if sequence.is_between_phases else sequence.inflight_refs
                assert sequence.num_inflight == named_now
            is_over = sequence.finalized and sequence.inflight_refs == 0
            assert (sequence.status is SequenceStatus.RELEASED) == is_over
            assert sequence.finalized == (sequence in self.outcomes)
            assert sequence.num_launched <= max(sequence.max_new_tokens, 1)
            owned += sequence.pages
            lanes += [sequence.lane] if sequence.lane >= 0 else []
        assert len(set(owned)) == len(owned), "two sequences own one page"
        assert len(set(lanes)) == len(lanes), "two sequences own one lane"
        assert len(owned) == engine.pool.num_private_pages - engine.pool.num_free_pages

    def check_idle(self) -> None:
        assert num_holders(self.engine.scheduler.adapters) == 0
        pool = self.engine.pool
        assert pool.num_free_pages == pool.num_private_pages
        assert len(self.engine.scheduler._free_lanes) == self.config.max_rows
        assert num_holders(pool.prefixes) == 0
        assert not self.engine.pipeline.steps
