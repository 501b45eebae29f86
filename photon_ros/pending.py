"""Pending: one request between submit and its result."""

from __future__ import annotations

import time
import weakref
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial

from photon_ros.core.errors import DeadlineExceeded, EngineStopped, RequestCancelled
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Result, Timings
from photon_ros.engine.interfaces import FrameCrops
from photon_ros.engine.lora import LoraAdapter
from photon_ros.engine.sequence import Outcome, PrefixSource, SamplingParams, Sequence
from photon_ros.engine.worker import EngineWorker
from photon_ros.models.moondream.crop_cache import CropKey
from photon_ros.skills.prompt import Prompt
from photon_ros.skills.skill import AnswerState


class Pending:
    """Carries one request through the engine; ``future`` gets its result or its error.

    Args:
        request: what was asked.
        prompt: what the sequence starts with.
        state: the grammar of its answer.
        adapter: changes the model for this request.
        worker: the engine's thread.
        executor: builds the result, so that the engine's thread does not.
    """

    def __init__(
        self,
        request: Request,
        prompt: Prompt,
        state: AnswerState,
        adapter: LoraAdapter | None,
        worker: EngineWorker,
        executor: Executor,
    ) -> None:
        self.future: Future[Result] = Future()
        self._request = request
        self._prompt = prompt
        self._state = state
        self._adapter = adapter
        # Weakly: who keeps an answer's future does not keep the model that gave it.
        self._worker = weakref.ref(worker)
        self._executor = weakref.ref(executor)
        self._submitted_s = time.monotonic()

    def enter_with_frame(self, key: CropKey, crops: Future[FrameCrops]) -> None:
        """Hand the request to the engine; its frame has been cut, or has failed to be."""
        if crops.cancelled():
            self._deliver(error=EngineStopped("photon was closed"))
            return
        error = crops.exception()
        if error is not None:
            self._deliver(error=error)
            return
        self.enter(PrefixSource((key, self._adapter), crops.result()))

    def enter(self, source: PrefixSource | None) -> None:
        """Hand the request to the engine, with its image or without one."""
        if self.future.cancelled():
            return
        request = self._request
        if request.deadline_s is not None and request.deadline_s <= time.monotonic():
            self._deliver(error=DeadlineExceeded("deadline passed while the image was prepared"))
            return
        sequence = Sequence(
            prompt_ids=self._prompt.ids,
            prompt_values=self._prompt.values,
            state=self._state,
            on_done=self._on_done,
            source=source,
            adapter=self._adapter,
            sampling=SamplingParams(request.temperature, request.top_p, request.seed),
            deadline_s=request.deadline_s,
        )
        worker = self._worker()
        try:
            if worker is None:
                raise EngineStopped("photon is no longer there")
            worker.submit(sequence)
        except EngineStopped as stopped:
            self._deliver(error=stopped)
            return
        self.future.add_done_callback(partial(self._cancel, sequence))

    def _cancel(self, sequence: Sequence, future: Future[Result]) -> None:
        worker = self._worker()
        if worker is not None and future.cancelled():
            request = self._request
            error = RequestCancelled(f"{request.skill} {request.prompt!r} was cancelled")
            worker.cancel(sequence, error)

    def _on_done(self, sequence: Sequence, outcome: Outcome) -> None:
        """Called on the engine's thread, which has better things to do than build results."""
        if outcome.error is not None:
            self._deliver(error=outcome.error)
            return
        finish = partial(self._finish, sequence, outcome, sequence.inflight_refs)
        executor = self._executor()
        try:
            if executor is None:
                raise RuntimeError("the pool is no longer there")
            work = executor.submit(finish)
        except RuntimeError:  # closing: the pool takes nothing more, the answer is still good
            finish()
            return
        # Closing drops what the pool has queued; that answer is still good, too.
        work.add_done_callback(lambda done: finish() if done.cancelled() else None)

    def _finish(self, sequence: Sequence, outcome: Outcome, num_zombie_steps: int) -> None:
        end_reason = outcome.by_length or EndReason.EOS
        try:
            result = self._state.build_result(self._request, end_reason)
        except Exception as error:  # a tokenizer of somebody else's: nobody may wait for ever
            self._deliver(error=error)
            return
        timings = self._timings(sequence, result, num_zombie_steps)
        self._deliver(result=replace(result, timings=timings))

    def _timings(self, sequence: Sequence, result: Result, num_zombie_steps: int) -> Timings:
        clock, now_s = sequence.clock, time.monotonic()
        stages_ms = clock.stages_ms()
        num_tokens = sequence.num_committed
        if sequence.prompt_start and result.reasoning is not None:  # it counts a phase's tokens
            num_tokens += len(result.reasoning.token_ids) + 1
        return Timings(
            preprocess_ms=1e3 * (clock.submitted_s - self._submitted_s),
            queue_ms=stages_ms["queue"],
            prefill_ms=stages_ms["prefill"],
            decode_ms=stages_ms["decode"],
            postprocess_ms=1e3 * (now_s - clock.finalized_s),
            total_ms=1e3 * (now_s - self._submitted_s),
            num_tokens=num_tokens,
            batch_size=clock.num_decode_rows / max(1, clock.num_decode_steps),
            zombie_steps=num_zombie_steps,
        )

    def _deliver(self, result: Result | None = None, error: BaseException | None = None) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        if error is not None:
            self.future.set_exception(error)
        elif result is not None:
            self.future.set_result(result)
