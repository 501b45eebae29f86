"""Photon: the composition root. A model, the engine and the skills behind one object.

    with Photon("nano") as photon:
        photon.detect("image.jpg", "person")["objects"]
        photon.submit(Request("point", "red ball", frame)).result().detections

Images are cut into crops by a small thread pool, so that neither the caller nor the engine's
thread waits for resampling; the same pool turns finished sequences into results.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from photon_ros.core.errors import EngineStopped, InputError
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import Result
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import device_named
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import FrameCrops
from photon_ros.engine.lora import LoraAdapter
from photon_ros.engine.metrics import EngineLoad, EngineStats
from photon_ros.engine.worker import EngineWorker
from photon_ros.models.loading import load_model
from photon_ros.models.moondream.checkpoint import Checkpoint
from photon_ros.models.moondream.crop_cache import CropCache
from photon_ros.models.moondream.image import ResizeMethod
from photon_ros.models.moondream.lora_files import load_adapter
from photon_ros.pending import Pending
from photon_ros.pictures import Picture, frame_of
from photon_ros.questions import (
    Answer,
    Objects,
    Question,
    SpatialOptions,
    TextOptions,
    reasoning_dict,
    spatial_question,
    text_question,
)
from photon_ros.skills import SKILLS, skill_named
from photon_ros.skills.encode import EncodeState
from photon_ros.skills.prompt import Prompt
from photon_ros.skills.skill import AnswerState
from photon_ros.text_stream import StreamInbox, TextStream

if TYPE_CHECKING:
    from typing_extensions import Unpack

NUM_PREPARE_THREADS = 2


class Photon:
    """One loaded model, ready for requests from any thread.

    Args:
        model: "nano", a folder with a checkpoint of the family, its id on the Hugging Face hub
            ("vikhyatk/moondream2"), or a loaded Checkpoint.
        revision: which commit, tag or branch of a hub id; None takes the one that this release
            was made for, or else the newest.
        device: "cpu", "cuda" or "cuda:N"; also as a torch.device. A Checkpoint must be there.
        dtype: "float32", "bfloat16" or "float16"; None takes float32 on the CPU and bfloat16
            on a GPU.
        config: sizes of the engine; None takes the defaults.
        resize: "exact" resamples like the reference, "fast" in a fraction of the time with
            slightly different pixels; None takes the model's own: fast for nano, else exact.
        cuda_graphs: capture decode steps on a GPU; False launches them kernel by kernel.

    Raises:
        ModelError: the model cannot be loaded; the message names what is missing.
        InputError: the device, dtype or resize method does not exist here; or a revision or
            dtype is given for a Checkpoint, which has its own.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Checkpoint = "nano",
        *,
        revision: str | None = None,
        device: str | torch.device = "cpu",
        dtype: str | None = None,
        config: EngineConfig | None = None,
        resize: ResizeMethod | None = None,
        cuda_graphs: bool = True,
    ) -> None:
        if not isinstance(config, EngineConfig | None):
            raise InputError(f"config must be an EngineConfig or None, got {config!r}")
        engine_device = device_named(device, cuda_graphs=cuda_graphs)
        where = engine_device.torch_device
        if isinstance(model, Checkpoint):
            if (revision, dtype) != (None, None):
                raise InputError("a Checkpoint is loaded: revision and dtype cannot be chosen now")
            checkpoint = model
        else:
            dtype = dtype or ("float32" if where.type == "cpu" else "bfloat16")
            checkpoint = load_model(model, revision=revision, device=where, dtype=dtype)
        self._prompting = checkpoint.prompting
        self._pool = ThreadPoolExecutor(NUM_PREPARE_THREADS, thread_name_prefix="photon-prepare")
        self._crops = CropCache(checkpoint.config.vision, self._pool, resize or checkpoint.resize)
        self._worker = EngineWorker(
            Engine(checkpoint.model, engine_device, config or EngineConfig())
        )
        # Who drops a Photon without closing it still gets the answers asked for; then its
        # threads end, and the model goes with them.
        weakref.finalize(self, self._worker.retire)
        self._adapters: dict[str, LoraAdapter] = {}
        self.model_name = checkpoint.name

    @property
    def skills(self) -> tuple[str, ...]:
        """Skills that this model was trained for."""
        return tuple(name for name, skill in SKILLS.items() if skill.is_known_to(self._prompting))

    @property
    def engine_stats(self) -> EngineStats:
        """Counters of the engine so far."""
        return self._worker.engine.stats

    @property
    def engine_load(self) -> EngineLoad:
        """How full the engine is at this moment."""
        return self._worker.engine.scheduler.load

    def add_adapter(self, folder: str | os.PathLike[str], name: str | None = None) -> str:
        """Load a LoRA adapter in PEFT's layout; requests name it in ``adapter``.

        Requests with different adapters, and without one, run in the same batch. The engine
        needs ``EngineConfig.num_lora_slots`` for those in use at once.

        Args:
            folder: holds ``adapter_config.json`` and ``adapter_model.safetensors``.
            name: what to call it; None takes the folder's name.

        Returns the name.

        Raises:
            ModelError: the folder is no LoRA adapter for this family.
            CapacityError: it does not fit the model or the engine's slots.
        """
        adapter = load_adapter(folder, name)
        self._worker.engine.lora_bank.check(adapter)
        self._adapters[adapter.name] = adapter
        return adapter.name

    def validate(self, skill: str, prompt: str) -> None:
        """Check a skill and a prompt before any frame is spent on them.

        Raises:
            InputError: there is no such skill.
            UnsupportedSkillError: this model does not have it.
            PromptError: the prompt is empty, too long, or holds unknown words.
        """
        skill_named(skill).prompt(self._prompting, Request(skill, prompt), has_frame=True)

    def check(self, request: Request) -> None:
        """Check a whole request without running it; raises as :meth:`submit` does."""
        self._prompt_of(request)

    def submit(self, request: Request) -> Future[Result]:
        """Queue a request and return at once; ``cancel()`` on the future cancels the request.

        Requests that hold the same Frame object share its encoded image.

        Raises:
            InputError: the request itself is wrong; see :meth:`validate`.
            EngineStopped: after :meth:`close`.
        """
        return self._submit(request, None)

    def stream(self, request: Request) -> TextStream:
        """Queue a request for an answer in words, to be read while it is written.

        Raises:
            InputError: the request itself is wrong, or its skill does not answer in words.
            EngineStopped: after :meth:`close`.
        """
        inbox = StreamInbox()
        future = self._submit(request, inbox)
        tokenizer = self._prompting.tokenizer
        return TextStream(inbox, future, tokenizer, has_reasoning=request.reasoning)

    def point(self, image: Picture, prompt: str, **options: Unpack[SpatialOptions]) -> Objects:
        """Return ``{"points": [{x, y, score}]}``, normalised.

        Args:
            image: uint8 RGB (not OpenCV's BGR), RGBA or grey pixels, a PIL image,
                the path of a picture file, or what :meth:`encode_image` gave.
            prompt: what to look for.
            options: see :class:`photon_ros.questions.SpatialOptions`.
        """
        return self._ask(spatial_question("point", image, prompt, **options))

    def detect(self, image: Picture, prompt: str, **options: Unpack[SpatialOptions]) -> Objects:
        """Return ``{"objects": [{x_min, y_min, x_max, y_max, score}]}``, normalised.

        A box is what the model gave, not clamped: of an object at an edge a corner may lie
        outside [0, 1]. Arguments as in :meth:`point`. To draw what was found, take
        ``submit(Request("detect", prompt, frame)).result().detections`` for
        :func:`photon_ros.overlay.draw`.
        """
        return self._ask(spatial_question("detect", image, prompt, **options))

    def segment(
        self,
        image: Picture,
        prompt: str,
        *,
        spatial_refs: Sequence[Sequence[float]] = (),
        **options: Unpack[TextOptions],
    ) -> dict[str, Any]:
        """Return ``{"path": SVG path data, "bbox": {x_min, y_min, x_max, y_max}}``.

        The path is in units of the box. What the model wrote and is no path comes as
        ``"raw_text"``, with ``"parse_error"``; "bbox" is None when there is no box.

        Args:
            image, prompt: as in :meth:`point`.
            spatial_refs: points (x, y) and boxes (x_min, y_min, x_max, y_max) meant.
            options: see :class:`photon_ros.questions.TextOptions`.
        """
        return self._ask(
            text_question("segment", image, prompt, spatial_refs=spatial_refs, **options)
        )

    def query(
        self,
        image: Picture | None,
        question: str,
        *,
        stream: bool = False,
        reasoning: bool = False,
        spatial_refs: Sequence[Sequence[float]] = (),
        **options: Unpack[TextOptions],
    ) -> dict[str, Any]:
        """Return ``{"answer": text}``; with ``stream`` the text is an iterator of its pieces.

        Args:
            image: as in :meth:`point`; None asks about no image.
            question: what to answer.
            stream: return at once, or as soon as the reasoning is over.
            reasoning: think aloud first, and return ``"reasoning": {"text", "grounding":
                [{"start_idx", "end_idx", "points"}]}``, too.
            spatial_refs: points (x, y) and boxes (x_min, y_min, x_max, y_max) meant.
            options: see :class:`photon_ros.questions.TextOptions`.
        """
        asked = text_question(
            "query", image, question, reasoning=reasoning, spatial_refs=spatial_refs, **options
        )
        if not stream:
            return self._ask(asked)
        answer = self.stream(asked.request)
        if not reasoning:
            return {"answer": answer}
        return {"reasoning": reasoning_dict(answer.reasoning()), "answer": answer}

    def caption(
        self,
        image: Picture,
        length: str = "normal",
        *,
        stream: bool = False,
        **options: Unpack[TextOptions],
    ) -> dict[str, Any]:
        """Return ``{"caption": text}``; with ``stream`` the text is an iterator of its pieces.

        Args:
            image: as in :meth:`point`.
            length: "short", "normal" or "long", as far as the model knows it.
            stream: return at once.
            options: see :class:`photon_ros.questions.TextOptions`.
        """
        asked = text_question("caption", image, length, **options)
        return {"caption": self.stream(asked.request)} if stream else self._ask(asked)

    def encode_image(self, image: Picture, *, max_crops: int | None = None) -> Frame:
        """Encode an image now; requests about the returned Frame use what was encoded.

        They do as long as their crop budget is the same and the engine keeps the frame
        (``EngineConfig.max_prefixes``); afterwards it is encoded again.
        """
        frame = frame_of(image)
        self.submit_encoding(frame, max_crops=max_crops).result()
        return frame

    def submit_encoding(self, frame: Frame, *, max_crops: int | None = None) -> Future[Result]:
        """Queue the encoding of a frame alone, and return at once; see :meth:`encode_image`."""
        request = Request("encode", "", frame, max_crops=max_crops)
        prompt = Prompt((self._prompting.eos_id,))
        return self._enter(request, prompt, EncodeState(self._prompting))

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

    def _ask(self, question: Question[Answer]) -> Answer:
        return question.shape(self.submit(question.request).result())

    def _submit(self, request: Request, listener: StreamInbox | None) -> Future[Result]:
        prompt = self._prompt_of(request)
        state = skill_named(request.skill).start(self._prompting, request, listener)
        return self._enter(request, prompt, state)

    def _prompt_of(self, request: Request) -> Prompt:
        if not isinstance(request, Request):
            raise InputError(f"a request must be a Request, got {type(request).__name__}")
        skill = skill_named(request.skill)
        if request.adapter is not None and request.adapter not in self._adapters:
            known = ", ".join(sorted(self._adapters)) or "none"
            raise InputError(f"there is no adapter {request.adapter!r}; there are: {known}")
        if request.frame is None and skill.needs_frame:
            raise InputError(f"{request.skill} needs a frame")
        return skill.prompt(self._prompting, request, has_frame=request.frame is not None)

    def _enter(self, request: Request, prompt: Prompt, state: AnswerState) -> Future[Result]:
        adapter = None if request.adapter is None else self._adapters[request.adapter]
        pending = Pending(request, prompt, state, adapter, self._worker, self._pool)
        if request.frame is None:
            pending.enter(None)
            return pending.future
        key = self._crops.key_of(request.frame, request.max_crops)
        try:
            crops = self._crops.crops_of(key)
        except RuntimeError as error:  # the pool was shut down
            raise EngineStopped("photon was closed") from error
        keep = [self]  # until the engine has it, which answers what it has

        def enter(cut: Future[FrameCrops]) -> None:
            pending.enter_with_frame(key, cut)
            keep.clear()

        crops.add_done_callback(enter)
        return pending.future
