"""Engine: the tick. launch t+1 -> commit t -> finalize_sampling t+1.

A step without held rows is sampled right after its launch, a step ahead of the commit. A step
with any held row is sampled whole after the commit before it. Blocking is the same loop at
depth one. Only one thread may call an Engine; see worker.py for the one that does.
"""

from __future__ import annotations

import contextlib
import time

import torch

from photon_ros.core.errors import DeadlineExceeded, EngineFault
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.decode_slot import DecodeSlot
from photon_ros.engine.device import Device
from photon_ros.engine.endings import Endings, fault
from photon_ros.engine.forward import Forward
from photon_ros.engine.graphs import Graphs
from photon_ros.engine.interfaces import Constraint, Model, SampledToken
from photon_ros.engine.kv_cache import KVCache
from photon_ros.engine.lora import LoraBank
from photon_ros.engine.metrics import EngineStats, StepRecord
from photon_ros.engine.page_pool import PagePool
from photon_ros.engine.pipeline import Pipeline
from photon_ros.engine.sampler import Sampler
from photon_ros.engine.scheduler import Scheduler, StepPlan
from photon_ros.engine.sequence import Outcome, Sequence, SequenceStatus
from photon_ros.engine.step import Step
from photon_ros.engine.submission import check_submission
from photon_ros.engine.watchdog import Watchdog


class Engine:
    """Pipelined decoding of many sequences over one model and one device."""

    def __init__(self, model: Model, device: Device, config: EngineConfig) -> None:
        spec = model.spec
        self._model = model
        self._device = device
        self._config = config
        pages_per_prefix = -(-spec.prefix_len // config.page_size)
        self.pool = PagePool(
            num_private_pages=config.num_private_pages,
            max_prefixes=config.max_prefixes,
            pages_per_prefix=pages_per_prefix,
        )
        self._slots = [DecodeSlot(i, device, spec, config) for i in range(2)]
        relay = device.device_buffer((config.max_rows + 1, spec.dim), spec.dtype)
        cache = KVCache(device, spec, self.pool, config.page_size)
        self.graphs = Graphs(device)
        self.lora_bank = LoraBank(device, spec, config.num_lora_slots, config.max_lora_rank)
        self._forward = Forward(model, device, cache, relay, self.graphs, self.lora_bank, config)
        self._sampler = Sampler(model, device, relay, self.graphs)
        self.pipeline = Pipeline(config.max_inflight_steps)
        self.scheduler = Scheduler(
            self.pool, config, max_context=spec.max_context, prefix_len=spec.prefix_len
        )
        self._endings = Endings(self.scheduler)
        self._steps: dict[int, Step] = {}
        self.stats = EngineStats()
        self.watchdog = Watchdog(config.stall_warning_s)

    @property
    def has_work(self) -> bool:
        """True while anything waits, runs, or is in flight."""
        return bool(
            self.pipeline.num_inflight or self.scheduler.num_waiting or self.scheduler.running
        )

    @property
    def can_launch_or_commit(self) -> bool:
        """True when a tick can make progress: while paused nothing is launched."""
        return self.pipeline.num_inflight > 0 or (self.has_work and not self.scheduler.is_paused)

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises InputError for a prompt that cannot be run and CapacityError for one that can
        never fit; see :func:`photon_ros.engine.submission.check_submission`.
        """
        check_submission(sequence, self._model.spec, self.lora_bank)
        sequence.clock.submitted_s = time.monotonic()
        self.scheduler.add(sequence)

    def cancel(self, sequence: Sequence, error: BaseException) -> None:
        """End a sequence in whatever state it is; does nothing when it has already ended."""
        if not sequence.finalized:
            self._endings.finalize(sequence, Outcome(error=error))

    @torch.inference_mode()
    def tick(self) -> None:
        """Launch the next step, commit the oldest, sample what was held."""
        self._shed_expired()
        launched = self._launch_next()
        if launched is not None and not launched.is_held:
            self._finalize_sampling(launched)
        self._commit_oldest(but_not=launched)
        if launched is not None and launched.is_held and self._is_inflight(launched):
            self._finalize_sampling(launched)
        if not self._config.pipelined:
            self._commit_oldest()

    def _is_inflight(self, step: Step) -> bool:
        """Return False when a fault of the step before took this one with it."""
        return self._steps.get(step.slot.slot_id) is step

    # -- launch ---------------------------------------------------------------------------

    def _launch_next(self) -> Step | None:
        slot_id = self.pipeline.free_slot()
        if slot_id is None:
            return None
        plan = self.scheduler.plan()
        if plan is None:
            return None
        constraints = self._constraints_ahead(plan)
        if not plan.sequences:
            self._forget_unusable(plan)  # what it was to load never will be
            return None
        slot = self._slots[slot_id]
        record = StepRecord(plan.kind, slot_id, len(plan.sequences))
        record.launch_s = time.monotonic()
        self.pipeline.launch(slot_id)
        for sequence in plan.sequences:
            sequence.inflight_refs += 1
        try:
            inputs = self._forward.submit(plan, slot)
        except Exception as error:  # whatever a model raises must not end the loop
            self._abandon(slot_id, plan, error)
            return None
        for sequence in plan.sequences:
            sequence.num_launched += 1
            if plan.kind == "prefill":
                sequence.clock.launched_s = sequence.clock.launched_s or record.launch_s
            else:
                sequence.clock.num_decode_steps += 1
                sequence.clock.num_decode_rows += len(plan.sequences)
        for prefix, _ in plan.new_prefixes:
            prefix.is_launched = True
        record.launched_s = time.monotonic()
        step = Step(plan, slot, inputs, constraints, record)
        self._steps[slot_id] = step
        self._count_launch(step)
        return step

    def _constraints_ahead(self, plan: StepPlan) -> list[Constraint | None]:
        """Return each row's constraint, None where it must be held; rows that fail leave."""
        constraints: list[Constraint | None] = []
        for sequence in list(plan.sequences):
            try:
                constraint = sequence.state.constraint_ahead(sequence.num_inflight)
            except Exception as error:
                plan.sequences.remove(sequence)
                self._endings.finalize(sequence, Outcome(error=fault("its grammar failed", error)))
                continue
            is_free = constraint is not None and not (constraint.allowed or constraint.forbidden)
            constraints.append(
                None if self._config.hold_constrained and not is_free else constraint
            )
        held = {s.prefix for s in plan.sequences}
        plan.new_prefixes[:] = [item for item in plan.new_prefixes if item[0] in held]
        return constraints

    def _abandon(self, slot_id: int, plan: StepPlan, error: BaseException) -> None:
        """Undo a launch that failed: fence what was queued, then fail its requests."""
        self._fence()
        self.pipeline.abandon(slot_id)
        self.stats.num_faults += 1
        self._forget_unusable(plan)
        for sequence in plan.sequences:
            sequence.inflight_refs -= 1
            self._endings.end_after_fault(sequence, fault(f"its {plan.kind} step failed", error))

    def _count_launch(self, step: Step) -> None:
        if step.plan.kind == "prefill":
            self.stats.num_prefill_steps += 1
            self.stats.num_prefixes += len(step.plan.new_prefixes)
        else:
            self.stats.num_decode_steps += 1
            self.stats.num_decode_rows += len(step.sequences)
        self.stats.num_held_steps += step.is_held

    # -- finalize_sampling ----------------------------------------------------------------

    def _finalize_sampling(self, step: Step) -> None:
        slot, sequences = step.slot, step.sequences
        held = step.is_held
        step.record.sample_s = time.monotonic()
        self.pipeline.sample(slot.slot_id, held=held)
        try:
            constraints = self._constraints_now(step) if held else _known(step.constraints)
            inputs = step.inputs
            self._sampler.submit(
                slot,
                inputs.lanes,
                constraints,
                sequences,
                is_fixed_shape=inputs.row_prefix is not None,
            )
            step.record.sampled_s = time.monotonic()
        except Exception as error:
            self._fail_step(step, fault("its sampling failed", error))

    def _constraints_now(self, step: Step) -> list[Constraint]:
        """Return the rows' constraints from the committed state; a zombie's are never read."""
        constraints = []
        for sequence in step.sequences:
            constraint = None
            if not sequence.finalized:
                try:
                    constraint = sequence.state.constraint_ahead(0)
                except Exception as error:  # fails alone; its row is a zombie's from here on
                    ended = Outcome(error=fault("its grammar failed", error))
                    self._endings.finalize(sequence, ended)
            if constraint is None:
                constraint = Constraint(allowed=(self._model.spec.eos_id,), spatial=True)
            constraints.append(constraint)
        return constraints

    # -- commit ---------------------------------------------------------------------------

    def _commit_oldest(self, but_not: Step | None = None) -> None:
        slot_id = self.pipeline.oldest
        if slot_id is None or (but_not is not None and but_not.slot.slot_id == slot_id):
            return
        step = self._steps[slot_id]
        slot = step.slot
        assert slot.copied_event is not None
        record = step.record
        record.wait_s = time.monotonic()
        try:
            with self.watchdog.watch(step.name):
                slot.copied_event.synchronize()  # sync: the tick's only wait
            tokens = slot.landed_tokens(len(step.sequences))
        except Exception as error:
            self._fail_step(step, fault("its copy to the host failed", error))
            return
        record.copied_s = time.monotonic()
        for sequence, token in zip(step.sequences, tokens, strict=True):
            self._commit_row(sequence, token, record)
        del self._steps[slot_id]
        self.pipeline.commit(slot_id)
        record.committed_s = time.monotonic()
        self.stats.num_zombie_rows += record.num_zombies
        self.stats.records.append(record)

    def _commit_row(self, sequence: Sequence, token: SampledToken, record: StepRecord) -> None:
        sequence.inflight_refs -= 1
        if sequence.finalized:
            record.num_zombies += 1
            self._endings.release_if_unnamed(sequence)
            return
        if sequence.is_between_phases:
            record.num_zombies += 1
            self._endings.resume_if_unnamed(sequence)
            return
        if not sequence.clock.first_token_s:
            sequence.clock.first_token_s = record.copied_s
        sequence.num_committed += 1
        self.stats.num_tokens += 1
        try:
            has_ended = sequence.state.advance(token)
            next_ids = sequence.state.next_phase() if has_ended else None
        except Exception as error:
            self._endings.finalize(sequence, Outcome(error=fault("its grammar failed", error)))
            return
        if next_ids is not None:
            sequence.enter_phase(next_ids)
            self._endings.resume_if_unnamed(sequence)
        elif has_ended:
            self._endings.finalize(sequence, Outcome())
        elif sequence.num_committed >= sequence.max_new_tokens:
            self._endings.finalize(sequence, Outcome(by_length=sequence.length_reason))

    # -- faults ---------------------------------------------------------------------------

    def _fail_step(self, failed: Step, error: EngineFault) -> None:
        """Fail a step whose device work cannot be trusted, and every step after it.

        Later steps read what the failed one should have left in the relay. All queued work is
        fenced before anything is given back.
        """
        self._fence()
        self.stats.num_faults += 1
        while (slot_id := self.pipeline.newest) is not None:
            step = self._steps.pop(slot_id)
            self.pipeline.abandon(slot_id)
            self._forget_unusable(step.plan)
            for sequence in step.sequences:
                sequence.inflight_refs -= 1
                self._endings.end_after_fault(sequence, error)
            if step is failed:
                return

    def recover(self, error: EngineFault) -> None:
        """Fail everything in flight after a bug of the engine itself, wherever it struck.

        A commit or a launch may have been left half done, so reference counts are not to be
        trusted: no step survives, and every sequence that owns anything is told and released.
        """
        self._fence()
        self.stats.num_faults += 1
        named = list(self.scheduler.running)
        while (slot_id := self.pipeline.newest) is not None:
            step = self._steps.pop(slot_id, None)
            self.pipeline.abandon(slot_id)
            if step is None:
                continue
            self._forget_unusable(step.plan)
            named += [sequence for sequence in step.sequences if sequence.finalized]
        for sequence in dict.fromkeys(named):
            sequence.inflight_refs = 0
            self._endings.end_after_fault(sequence, error)

    def _forget_unusable(self, plan: StepPlan) -> None:
        """Let nobody find the prefixes and adapters that a failed step should have written."""
        for prefix, _ in plan.new_prefixes:
            self.pool.drop(prefix)
        for lora_slot, _ in plan.new_adapters:
            self.scheduler.lora_slots.forget(lora_slot)

    def _fence(self) -> None:
        """Wait until nothing queued can touch a buffer any more; only after a fault."""
        events = [self._device.compute.record(), self._device.copy.record()]
        for event in events:
            with contextlib.suppress(Exception):  # the fault being handled, or a later one
                event.synchronize()

    def _shed_expired(self) -> None:
        now_s = time.monotonic()
        for sequence in self.scheduler.expired(now_s):
            late_ms = 1e3 * (now_s - (sequence.deadline_s or now_s))
            has_started = sequence.status is not SequenceStatus.WAITING
            while_what = "running" if has_started else "waiting"
            error = DeadlineExceeded(
                f"deadline passed {late_ms:.0f} ms ago while {while_what}", has_started=has_started
            )
            self._endings.finalize(sequence, Outcome(error=error))


def _known(constraints: list[Constraint | None]) -> list[Constraint]:
    return [constraint for constraint in constraints if constraint is not None]
