"""Engine: the tick. launch t+1 -> commit t -> finalize_sampling t+1.

A step without held rows is sampled right after its launch, a step ahead of the commit. A step
with any held row is sampled whole after the commit before it. Blocking is the same loop at
depth one. Only one thread may call an Engine; see worker.py for the one that does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence as Seq
from functools import partial

import torch

from photon_ros.core.errors import EngineFault
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.decode_slot import DecodeSlot
from photon_ros.engine.device import Device
from photon_ros.engine.forward import Forward
from photon_ros.engine.graphs import Graphs
from photon_ros.engine.interfaces import Model
from photon_ros.engine.kv_cache import KVCache
from photon_ros.engine.lifecycle import Lifecycle, fault
from photon_ros.engine.lora import LoraBank
from photon_ros.engine.metrics import EngineStats, StepRecord
from photon_ros.engine.page_pool import PagePool
from photon_ros.engine.pipeline import Pipeline
from photon_ros.engine.sampler import Sampler
from photon_ros.engine.scheduler import Scheduler
from photon_ros.engine.sequence import Outcome, Sequence
from photon_ros.engine.step import Step
from photon_ros.engine.submission import check_submission
from photon_ros.engine.watchdog import Watchdog

logger = logging.getLogger(__name__)


class Engine:
    """Pipelined decoding of many sequences over one model and one device."""

    def __init__(self, model: Model, device: Device, config: EngineConfig) -> None:
        spec = model.spec
        self._model = model
        self._device = device
        self._config = config
        self.pool = PagePool(
            num_private_pages=config.num_private_pages,
            max_prefixes=config.max_prefixes,
            pages_per_prefix=-(-spec.prefix_len // config.page_size),
        )
        self._slots = [DecodeSlot(i, device, spec, config) for i in range(2)]
        relay = device.device_buffer((config.max_rows + 1, spec.dim), spec.dtype)
        self._cache = KVCache(device, spec, self.pool, config.page_size)
        self.graphs = Graphs(device)
        self.lora_bank = LoraBank(device, spec, config.num_lora_slots, config.max_lora_rank)
        self._forward = Forward(
            model, device, self._cache, relay, self.graphs, self.lora_bank, config
        )
        self._sampler = Sampler(model, device, relay, self.graphs)
        self.pipeline = Pipeline(config.max_inflight_steps)
        self.scheduler = Scheduler(
            self.pool, config, max_context=spec.max_context, prefix_len=spec.prefix_len
        )
        self.stats = EngineStats()
        self._lifecycle = Lifecycle(self.scheduler, self.stats, spec.vocab_size, self._scrub)
        self.watchdog = Watchdog(config.stall_warning_s)

    @property
    def has_work(self) -> bool:
        """True while anything waits, runs, or is in flight."""
        return bool(self.pipeline.steps or self.scheduler.num_waiting or self.scheduler.running)

    @property
    def can_launch_or_commit(self) -> bool:
        """True when a tick can make progress: while paused nothing is launched."""
        return bool(self.pipeline.steps) or (self.has_work and not self.scheduler.is_paused)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises InputError for a prompt that cannot be run and CapacityError for one that can
        never fit; see :func:`photon_ros.engine.submission.check_submission`.
        """
        check_submission(sequence, self._model.spec, self.lora_bank)
        self.scheduler.add(sequence)

    def cancel(self, sequence: Sequence, error: BaseException) -> None:
        """End a sequence in whatever state it is; does nothing when it has already ended."""
        self._lifecycle.finalize(sequence, Outcome(error=error))

    @torch.inference_mode()
    def tick(self) -> None:
        """Launch the next step, commit the oldest, sample what was held."""
        self._lifecycle.shed_expired()
        launched = self._launch_next()
        if launched is not None and not launched.is_held:
            self._finalize_sampling(launched)
        self._commit_oldest(but_not=launched)
        # A fault of the step before would have taken this one with it.
        if launched is not None and launched.is_held and launched in self.pipeline.steps:
            self._finalize_sampling(launched)
        if not self._config.pipelined:
            self._commit_oldest()

    def _launch_next(self) -> Step | None:
        slot_id = self.pipeline.free_slot()
        step = None if slot_id is None else self.scheduler.plan()
        if slot_id is None or step is None:
            return None
        self._look_ahead(step)
        if not step.sequences:
            return None
        record = step.record = StepRecord(step.kind, slot_id, len(step.sequences))
        record.launch_s = time.monotonic()
        step.slot = self._slots[slot_id]
        self.pipeline.launch(step)
        for sequence in step.sequences:
            sequence.inflight_refs += 1
        try:
            self._forward.submit(step)
        except Exception as error:  # whatever a model raises must not end the loop
            self._fail_step(step, fault(f"its {step.kind} step failed", error))
            return None
        for sequence in step.sequences:
            sequence.count_launch(record)
        for place, _ in (*step.new_prefixes, *step.new_adapters):
            place.is_launched = True
        record.launched_s = time.monotonic()
        self.stats.count_launch(record, len(step.new_prefixes), is_held=step.is_held)
        return step

    def _look_ahead(self, step: Step) -> None:
        """Find each row's constraint, None where it must be held; rows that fail leave."""
        asked = {
            sequence: self._lifecycle.constraint_ahead(sequence, sequence.num_inflight)
            for sequence in step.sequences
        }
        # Only now: what is told of one row's end may have cancelled any other.
        step.sequences = [sequence for sequence in asked if not sequence.finalized]
        step.constraints = [asked[sequence] for sequence in step.sequences]
        if self._config.hold_constrained:
            step.constraints = [
                None if c is not None and (c.allowed or c.forbidden) else c
                for c in step.constraints
            ]
        step.is_held = any(constraint is None for constraint in step.constraints)
        step.new_prefixes = [item for item in step.new_prefixes if item[0].num_holders]
        step.new_adapters = [item for item in step.new_adapters if item[0].num_holders]

    def _finalize_sampling(self, step: Step) -> None:
        step.record.sample_s = time.monotonic()
        self.pipeline.sample(step)
        constraints = step.constraints
        if step.is_held:  # from the committed state; a zombie's stays None
            constraints = [self._lifecycle.constraint_ahead(s, 0) for s in step.sequences]
        try:
            self._sampler.submit(step, constraints)
            step.record.sampled_s = time.monotonic()
        except Exception as error:
            self._fail_step(step, fault("its sampling failed", error))

    def _commit_oldest(self, but_not: Step | None = None) -> None:
        step = self.pipeline.oldest
        if step is None or step is but_not:
            return
        record = step.record
        record.wait_s = time.monotonic()
        try:
            with self.watchdog.watch(step):
                step.slot.copied_event.synchronize()  # sync: the tick's only wait
            tokens = step.slot.landed_tokens(len(step.sequences))
        except Exception as error:
            self._fail_step(step, fault("its copy to the host failed", error))
            return
        record.copied_s = time.monotonic()
        for sequence, token in zip(step.sequences, tokens, strict=True):
            record.num_zombies += not self._lifecycle.commit(sequence, token, record.copied_s)
        self.pipeline.commit(step)
        record.is_last = not self.has_work
        record.committed_s = time.monotonic()
        self.stats.count_commit(record)

    def _fail_step(self, failed: Step, error: EngineFault) -> None:
        """Fail a step whose device work cannot be trusted, and every step after it.

        Later steps read what the failed one should have left in the relay. All queued work is
        fenced before anything is given back.
        """
        self._fence()
        while (step := self._drop_newest()) is not None:
            for sequence in step.sequences:
                sequence.inflight_refs -= 1
                sequence.is_tainted = True
                self._lifecycle.finalize(sequence, Outcome(error=error))
            if step is failed:
                return

    def recover(self, error: EngineFault) -> None:
        """Fail everything in flight after a bug of the engine itself, wherever it struck.

        A commit or a launch may have been left half done, so reference counts are not to be
        trusted: no step survives, and every sequence that owns anything is told and released.
        """
        self._fence()
        named = list(self.scheduler.running)
        while (step := self._drop_newest()) is not None:
            named += step.sequences
        for sequence in dict.fromkeys(named):
            sequence.inflight_refs = 0
            sequence.is_tainted = True
            self._lifecycle.finalize(sequence, Outcome(error=error))

    def _drop_newest(self) -> Step | None:
        """Take the newest step out of flight, and out of sight what it should have written."""
        step = self.pipeline.newest
        if step is None:
            return None
        self.pipeline.abandon(step)
        for prefix, _ in step.new_prefixes:
            self.pool.prefixes.drop(prefix)
        for place, _ in step.new_adapters:
            self.scheduler.adapters.drop(place)
        return step

    def _scrub(self, pages: Seq[int]) -> None:
        """Queue the cleaning of pages ahead of all that may read them later."""
        try:
            self._device.compute.submit(partial(self._cache.scrub, tuple(pages)), "scrub")
        except Exception:  # a device that takes nothing more; they are given back all the same
            logger.exception("pages could not be scrubbed")

    def _fence(self) -> None:
        """Wait until nothing queued can touch a buffer any more; only after a fault."""
        self.stats.num_faults += 1
        for stream in (self._device.compute, self._device.copy):
            with contextlib.suppress(Exception):  # the fault being handled, or a later one
                stream.record().synchronize()
