"""Photon: the composition root. A model, the engine and the skills behind one object.

    with Photon("nano") as photon:
        photon.detect(image, "person")["objects"]
        photon.submit(Request("point", "red ball", frame)).result().detections

Images are cut into crops by a small thread pool, so that neither the caller nor the engine's
thread waits for resampling; the same pool turns finished sequences into results.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from photon_ros.core.errors import (
    DeadlineExceeded,
    EngineStopped,
    ImageError,
    InputError,
    RequestCancelled,
)
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Result, Timings
from photon_ros.models.moondream.crop_cache import CropCache, CropKey
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.cuda_device import CudaDevice
from photon_ros.engine.device import CpuDevice, Device
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import FrameCrops
from photon_ros.engine.metrics import EngineStats
from photon_ros.engine.sequence import (
    Outcome,
    PrefixSource,
    SamplingParams,
    Sequence,
)
from photon_ros.engine.worker import EngineWorker
from photon_ros.models.moondream.checkpoint import Checkpoint, load_checkpoint
from photon_ros.skills import SKILLS, skill_named
from photon_ros.skills.spatial import SpatialState

NUM_PREPARE_THREADS = 2


class Photon:
    """One loaded model, ready for requests from any thread.

    Args:
        model: "nano", a folder with a checkpoint of the family, or a loaded Checkpoint.
        device: "cpu", "cuda" or "cuda:N".
        dtype: "float32", "bfloat16" or "float16"; None takes float32 on the CPU and bfloat16
            on a GPU.
        config: sizes of the engine; None takes the defaults.

    Raises:
        ModelError: the model cannot be loaded; the message names what is missing.
        InputError: the device or dtype does not exist here.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Checkpoint = "nano",
        *,
        device: str = "cpu",
        dtype: str | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        engine_device = _device(device)
        if isinstance(model, Checkpoint):
            checkpoint = model
        else:
            dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
            checkpoint = load_model(model, device=device, dtype=dtype)
        self._prompting = checkpoint.prompting
        self._worker = EngineWorker(
            Engine(checkpoint.model, engine_device, config or EngineConfig())
        )
        self._pool = ThreadPoolExecutor(NUM_PREPARE_THREADS, thread_name_prefix="photon-prepare")
        self._crops = CropCache(checkpoint.config.vision, self._pool)
        self.model_name = checkpoint.name

    @property
    def skills(self) -> tuple[str, ...]:
        """Skills that this model was trained for."""
        return tuple(name for name in SKILLS if name in self._prompting.templates)

    @property
    def engine_stats(self) -> EngineStats:
        """Counters of the engine so far."""
        return self._worker.engine.stats

    def validate(self, skill: str, prompt: str) -> None:
        """Check a skill and a prompt before any frame is spent on them.

        Raises:
            InputError: there is no such skill.
            UnsupportedSkillError: this model does not have it.
            PromptError: the prompt is empty, too long, or holds unknown words.
        """
        skill_named(skill).prompt_ids(self._prompting, prompt)

    def submit(self, request: Request) -> Future[Result]:
        """Queue a request and return at once; ``cancel()`` on the future cancels the request.

        Requests that hold the same Frame object share its encoded image.

        Raises:
            InputError: the request itself is wrong; see :meth:`validate`.
            EngineStopped: after :meth:`close`.
        """
        skill = skill_named(request.skill)
        prompt_ids = skill.prompt_ids(self._prompting, request.prompt)
        if request.frame is None:
            raise InputError(f"{request.skill} needs a frame")
        key = self._crops.key_of(request.frame, request.max_crops)
        pending = _Pending(request, skill.start(self._prompting, request), prompt_ids, key, self)
        try:
            crops = self._crops.crops_of(key)
        except RuntimeError as error:  # the pool was shut down
            raise EngineStopped("photon was closed") from error
        crops.add_done_callback(pending.enter_engine)
        return pending.future

    def detect(
        self,
        image: NDArray[np.uint8] | Image.Image,
        prompt: str,
        *,
        max_objects: int = 50,
        max_crops: int | None = None,
    ) -> dict[str, list[dict[str, float]]]:
        """Return ``{"objects": [{x_min, y_min, x_max, y_max, score}]}``, normalised.

        Args:
            image: (height, width, 3) uint8 RGB, or a PIL image.
            prompt: what to look for.
            max_objects: objects after which the answer ends.
            max_crops: budget of local crops; 0 looks at the whole image only.
        """
        result = self._ask("detect", image, prompt, max_objects, max_crops)
        names = ("x_min", "y_min", "x_max", "y_max")
        return {
            "objects": [
                {**dict(zip(names, found.corners(), strict=True)), "score": found.score}
                for found in result.detections
            ]
        }

    def point(
        self,
        image: NDArray[np.uint8] | Image.Image,
        prompt: str,
        *,
        max_objects: int = 50,
        max_crops: int | None = None,
    ) -> dict[str, list[dict[str, float]]]:
        """Return ``{"points": [{x, y, score}]}``, normalised; arguments as in :meth:`detect`."""
        result = self._ask("point", image, prompt, max_objects, max_crops)
        return {
            "points": [{"x": found.x, "y": found.y, "score": found.score}
                       for found in result.detections]
        }  # fmt: skip

    def close(self) -> None:
        """Stop; requests not yet answered end with EngineStopped. Safe to call twice."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._worker.close()

    def __enter__(self) -> Photon:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ask(
        self,
        skill: str,
        image: NDArray[np.uint8] | Image.Image,
        prompt: str,
        max_objects: int,
        max_crops: int | None,
    ) -> Result:
        frame = Frame(_as_rgb(image))
        request = Request(skill, prompt, frame, max_objects=max_objects, max_crops=max_crops)
        return self.submit(request).result()


class _Pending:
    """One request between submit and its result."""

    def __init__(
        self,
        request: Request,
        state: SpatialState,
        prompt_ids: tuple[int, ...],
        key: CropKey,
        photon: Photon,
    ) -> None:
        self.future: Future[Result] = Future()
        self._request = request
        self._state = state
        self._prompt_ids = prompt_ids
        self._key = key
        self._photon = photon
        self._submitted_s = time.monotonic()
        self._prepared_s = self._submitted_s

    def enter_engine(self, crops: Future[FrameCrops]) -> None:
        """Hand the request to the engine once its frame is cut."""
        if crops.cancelled():
            self._deliver(error=EngineStopped("photon was closed"))
            return
        error = crops.exception()
        if error is not None:
            self._deliver(error=error)
            return
        if self.future.cancelled():
            return
        request = self._request
        self._prepared_s = time.monotonic()
        if request.deadline_s is not None and request.deadline_s <= self._prepared_s:
            self._deliver(error=DeadlineExceeded("deadline passed while the image was prepared"))
            return
        sequence = Sequence(
            prompt_ids=self._prompt_ids,
            state=self._state,
            on_done=self._on_done,
            source=PrefixSource(self._key, crops.result()),
            sampling=SamplingParams(request.temperature, request.top_p, request.seed),
            deadline_s=request.deadline_s,
        )
        worker = self._photon._worker
        try:
            worker.submit(sequence)
        except EngineStopped as stopped:
            self._deliver(error=stopped)
            return
        cancelled = RequestCancelled(f"{request.skill} {request.prompt!r} was cancelled")
        self.future.add_done_callback(
            lambda future: worker.cancel(sequence, cancelled) if future.cancelled() else None
        )

    def _on_done(self, sequence: Sequence, outcome: Outcome) -> None:
        """Called on the engine's thread, which has better things to do than build results."""
        if outcome.error is not None:
            self._deliver(error=outcome.error)
            return
        try:
            self._photon._pool.submit(self._finish, sequence, outcome, sequence.inflight_refs)
        except RuntimeError:  # closing: the pool takes nothing more, the answer is still good
            self._finish(sequence, outcome, sequence.inflight_refs)

    def _finish(self, sequence: Sequence, outcome: Outcome, num_zombie_steps: int) -> None:
        clock = sequence.clock
        state = self._state
        now_s = time.monotonic()
        timings = Timings(
            preprocess_ms=1e3 * (self._prepared_s - self._submitted_s),
            queue_ms=1e3 * (clock.launched_s - self._prepared_s),
            prefill_ms=1e3 * (clock.first_token_s - clock.launched_s),
            decode_ms=1e3 * (clock.finalized_s - clock.first_token_s),
            postprocess_ms=1e3 * (now_s - clock.finalized_s),
            total_ms=1e3 * (now_s - self._submitted_s),
            num_tokens=sequence.num_committed,
            batch_size=clock.num_decode_rows / max(1, clock.num_decode_steps),
            zombie_steps=num_zombie_steps,
        )
        result = Result(
            skill=self._request.skill,
            prompt=self._request.prompt,
            detections=tuple(state.detections),
            end_reason=outcome.by_length or EndReason.EOS,
            token_ids=tuple(state.token_ids),
            timings=timings,
        )
        self._deliver(result=result)

    def _deliver(self, result: Result | None = None, error: BaseException | None = None) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        if error is not None:
            self.future.set_exception(error)
        elif result is not None:
            self.future.set_result(result)


def load_model(model: str | os.PathLike[str], *, device: str, dtype: str) -> Checkpoint:
    """Load the embedded model by its name "nano", or a checkpoint folder.

    Raises:
        ModelError: nothing can be loaded from there; the message says what was looked for.
    """
    if os.fspath(model) == "nano":
        from photon_ros.models.nano import load_nano

        return load_nano(device=device, dtype=dtype)
    return load_checkpoint(model, device=device, dtype=dtype)


def _device(name: str) -> Device:
    kind = name.partition(":")[0]
    if kind == "cpu":
        return CpuDevice()
    if kind == "cuda":
        return CudaDevice(name)
    raise InputError(f"device must be 'cpu', 'cuda' or 'cuda:N', got {name!r}")


def _as_rgb(image: NDArray[np.uint8] | Image.Image) -> NDArray[np.uint8]:
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("RGB"))
    if not isinstance(image, np.ndarray):
        raise ImageError(f"image must be a numpy array or a PIL image, got {type(image).__name__}")
    return image
