"""Engine: the tick. launch t+1 -> commit t -> finalize_sampling t+1.

A step without held rows is sampled right after its launch, a step ahead of the commit. A step
with any held row is sampled whole after the commit before it. Blocking is the same loop at
depth one. Only one thread may call an Engine; see worker.py for the one that does.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field

import torch

from photon_ros.core.errors import CapacityError, DeadlineExceeded, EngineFault
from photon_ros.core.result import EndReason
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.decode_slot import MAX_PROMPT_VALUES, DecodeSlot, ForwardInputs
from photon_ros.engine.device import Device
from photon_ros.engine.forward import Forward
from photon_ros.engine.interfaces import Constraint, Model, SampledToken
from photon_ros.engine.kv_cache import KVCache
from photon_ros.engine.metrics import EngineStats
from photon_ros.engine.page_pool import PagePool
from photon_ros.engine.pipeline import Pipeline
from photon_ros.engine.sampler import Sampler
from photon_ros.engine.scheduler import Scheduler, StepPlan
from photon_ros.engine.sequence import Outcome, Sequence, SequenceStatus
from photon_ros.engine.step_inputs import sampled_positions

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Step:
    """One launched forward and its sampling; ``sequences`` is the row order of its buffers."""

    plan: StepPlan
    slot: DecodeSlot
    inputs: ForwardInputs
    constraints: list[Constraint | None] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        """Rows in order."""
        return self.plan.sequences

    @property
    def is_held(self) -> bool:
        """True when a row's constraint depends on a token that is not committed yet."""
        return any(constraint is None for constraint in self.constraints)


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
        relay = device.device_buffer((config.max_rows, spec.dim), spec.dtype)
        cache = KVCache(device, spec, self.pool, config.page_size)
        self._forward = Forward(model, device, cache, relay)
        self._sampler = Sampler(model, device, relay)
        self.pipeline = Pipeline(config.max_inflight_steps)
        self.scheduler = Scheduler(
            self.pool, config, max_context=spec.max_context, prefix_len=spec.prefix_len
        )
        self._steps: dict[int, Step] = {}
        self.stats = EngineStats()

    @property
    def has_work(self) -> bool:
        """True while anything waits, runs, or is in flight."""
        return bool(
            self.pipeline.num_inflight or self.scheduler.num_waiting or self.scheduler.running
        )

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence; raises CapacityError when it can never run."""
        source = sequence.source
        if source is not None:
            shape, limit = source.crops.pixels.shape, self._slots[0].crops_host.shape[1:]
            if shape[0] > limit[0] or shape[1:] != tuple(limit[1:]):
                raise CapacityError(f"crops of shape {shape}; the slot takes up to {tuple(limit)}")
        if len(sequence.prompt_values) > MAX_PROMPT_VALUES:
            raise CapacityError(
                f"the prompt gives {len(sequence.prompt_values)} coordinates and sizes; "
                f"at most {MAX_PROMPT_VALUES} fit"
            )
        sequence.clock.submitted_s = time.monotonic()
        self.scheduler.add(sequence)

    def cancel(self, sequence: Sequence, error: BaseException) -> None:
        """End a sequence in whatever state it is; does nothing when it has already ended."""
        if not sequence.finalized:
            self._finalize(sequence, Outcome(error=error))

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
            return None
        slot = self._slots[slot_id]
        self.pipeline.launch(slot_id)
        now_s = time.monotonic()
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
                sequence.clock.launched_s = sequence.clock.launched_s or now_s
            else:
                sequence.clock.num_decode_steps += 1
                sequence.clock.num_decode_rows += len(plan.sequences)
        for prefix, _ in plan.new_prefixes:
            prefix.is_launched = True
        step = Step(plan, slot, inputs, constraints)
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
                self._finalize(sequence, Outcome(error=_fault("its grammar failed", error)))
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
        for prefix, _ in plan.new_prefixes:
            self.pool.drop(prefix)
        for sequence in plan.sequences:
            sequence.inflight_refs -= 1
            self._end_after_fault(sequence, _fault(f"its {plan.kind} step failed", error))

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
        self.pipeline.sample(slot.slot_id, held=held)
        try:
            constraints = self._constraints_now(step) if held else _known(step.constraints)
            positions = sampled_positions(step.plan, self._model.spec.prefix_len)
            self._sampler.submit(slot, step.inputs.lanes, constraints, sequences, positions)
        except Exception as error:
            self._fail_step(step, _fault("its sampling failed", error))

    def _constraints_now(self, step: Step) -> list[Constraint]:
        """Return the rows' constraints from the committed state; a zombie's are never read."""
        constraints = []
        for sequence in step.sequences:
            constraint = None if sequence.finalized else sequence.state.constraint_ahead(0)
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
        waited_s = time.monotonic()
        try:
            slot.copied_event.synchronize()  # sync: the tick's only wait
            tokens = slot.landed_tokens(len(step.sequences))
        except Exception as error:
            self._fail_step(step, _fault("its copy to the host failed", error))
            return
        now_s = time.monotonic()
        self.stats.wait_s += now_s - waited_s
        for sequence, token in zip(step.sequences, tokens, strict=True):
            self._commit_row(sequence, token, now_s)
        del self._steps[slot_id]
        self.pipeline.commit(slot_id)

    def _commit_row(self, sequence: Sequence, token: SampledToken, now_s: float) -> None:
        sequence.inflight_refs -= 1
        if sequence.finalized:
            self.stats.num_zombie_rows += 1
            self._release_if_unnamed(sequence)
            return
        if sequence.is_between_phases:
            self.stats.num_zombie_rows += 1
            self._resume_if_unnamed(sequence)
            return
        if not sequence.clock.first_token_s:
            sequence.clock.first_token_s = now_s
        sequence.num_committed += 1
        self.stats.num_tokens += 1
        try:
            has_ended = sequence.state.advance(token)
            next_ids = sequence.state.next_phase() if has_ended else None
        except Exception as error:
            self._finalize(sequence, Outcome(error=_fault("its grammar failed", error)))
            return
        if next_ids is not None:
            sequence.enter_phase(next_ids)
            self._resume_if_unnamed(sequence)
        elif has_ended:
            self._finalize(sequence, Outcome())
        elif sequence.num_committed >= sequence.max_new_tokens:
            self._finalize(sequence, Outcome(by_length=sequence.length_reason))

    # -- endings --------------------------------------------------------------------------

    def _finalize(self, sequence: Sequence, outcome: Outcome) -> None:
        """End a sequence and deliver its outcome, once; its pages stay while a step names it."""
        sequence.finalized = True
        sequence.clock.finalized_s = time.monotonic()
        self.scheduler.withdraw(sequence)
        self._release_if_unnamed(sequence)
        try:
            sequence.on_done(sequence, outcome)
        except Exception:
            logger.exception("the callback of a finished request failed")

    def _resume_if_unnamed(self, sequence: Sequence) -> None:
        """Queue the next phase once no step in flight can write behind it."""
        if sequence.inflight_refs:
            return
        try:
            self.scheduler.resume(sequence)
        except CapacityError:
            self._finalize(sequence, Outcome(by_length=EndReason.MAX_CONTEXT))

    def _release_if_unnamed(self, sequence: Sequence) -> None:
        if sequence.inflight_refs == 0 and sequence.status is not SequenceStatus.RELEASED:
            self.scheduler.release(sequence)

    def _end_after_fault(self, sequence: Sequence, error: BaseException) -> None:
        if sequence.finalized:
            self._release_if_unnamed(sequence)
        else:
            self._finalize(sequence, Outcome(error=error))

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
            for prefix, _ in step.plan.new_prefixes:
                self.pool.drop(prefix)
            for sequence in step.sequences:
                sequence.inflight_refs -= 1
                self._end_after_fault(sequence, error)
            if step is failed:
                return

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
            started = "waiting" if sequence.status is SequenceStatus.WAITING else "running"
            error = DeadlineExceeded(f"deadline passed {late_ms:.0f} ms ago while {started}")
            self._finalize(sequence, Outcome(error=error))


def _known(constraints: list[Constraint | None]) -> list[Constraint]:
    return [constraint for constraint in constraints if constraint is not None]


def _fault(what: str, cause: BaseException) -> EngineFault:
    error = EngineFault(f"{what}: {type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error
