"""From parameters to a model that is loaded, checked and warm."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from photon_ros.core.errors import CapacityError, DeadlineExceeded, InputError
from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.engine.config import EngineConfig
from photon_ros.models.loading import EMBEDDED
from photon_ros.models.moondream.image import ResizeMethod
from photon_ros.photon import Photon
from photon_ros.ros.params import NodeConfig

_RESIZE: Final[dict[str, ResizeMethod | None]] = {"auto": None, "exact": "exact", "fast": "fast"}
WARM_UP_SIZE = (480, 640)
WARM_UP_TIMEOUT_S = 300.0
BUDGET_CHECK_S = 1.0


def usable_device(device: str) -> str:
    """Return ``device``, or "cpu" where that is a GPU and this torch sees none."""
    if device.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        return "cpu"
    return device


def load_photon(config: NodeConfig, device: str) -> Photon:
    """Load the model named by the parameters, and answer one frame so that the first is not late.

    Raises:
        PhotonError: it cannot be loaded, does not know a skill or a word, a step fails, or the
            engine has too few KV pages for what is asked of a frame.
    """
    _check_revision(config)
    _choose_cpu_threads(config, device)
    photon = Photon(
        config.model_path,
        revision=config.model_revision or None,
        device=device,
        dtype=None if config.dtype == "auto" else config.dtype,
        resize=_RESIZE[config.resize],
        cuda_graphs=config.cuda_graphs,
        config=EngineConfig(
            max_rows=config.max_streams,
            num_private_pages=config.kv_pages,
            # A CPU runs each step as it is launched: a step ahead would overlap with nothing, and
            # the one behind each answer's last token would be for nobody.
            pipelined=config.pipelined and device != "cpu",
        ),
    )
    try:
        _warm_up(photon, config)
    except BaseException:
        photon.close()
        raise
    # Modules and weights stay as they are; walking them all again in each full collection would
    # hold up a frame by some two hundred milliseconds. A model loaded before is let go first.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return photon


def _choose_cpu_threads(config: NodeConfig, device: str) -> None:
    """Set torch's number of threads, before the engine's thread starts and takes it over.

    The operations of nano are too small to be shared: a second thread takes a third more CPU time
    from the rest of the robot, and the answers come later for it (docs/measurements.md).
    """
    if config.cpu_threads:
        torch.set_num_threads(config.cpu_threads)
    elif config.model_path == EMBEDDED and device == "cpu":
        torch.set_num_threads(1)


def _check_revision(config: NodeConfig) -> None:
    """Raise InputError where a revision would have no effect."""
    is_embedded = config.model_path == EMBEDDED
    if config.model_revision and (is_embedded or Path(config.model_path).exists()):
        what = "the model inside the package" if is_embedded else "a folder"
        raise InputError(
            f"model.revision {config.model_revision!r} is that of a hub id, and model.path "
            f"{config.model_path!r} is {what}"
        )


def _warm_up(photon: Photon, config: NodeConfig) -> None:
    for skill, prompt in config.asked():
        photon.validate(skill, prompt)
    max_crops = None if config.max_crops < 0 else config.max_crops
    shortest = Request(
        "detect", "", _grey_frame(), max_objects=1, max_tokens=1, max_crops=max_crops
    )
    _ask(photon, config, shortest)
    # With the budgets of a camera's frame: what can never be admitted is refused at once, and
    # nobody waits for a long answer about a grey picture.
    real = replace(shortest, max_objects=config.max_objects, max_tokens=config.max_tokens)
    _ask(photon, config, replace(real, deadline_s=time.monotonic() + BUDGET_CHECK_S))


def _grey_frame() -> Frame:
    return Frame(np.full((*WARM_UP_SIZE, 3), 127, np.uint8))


def _ask(photon: Photon, config: NodeConfig, example: Request) -> None:
    """Ask everything that is asked of a frame; raise InputError when some of it is too large."""
    asked = config.asked()
    futures = [
        photon.submit(replace(example, skill=skill, prompt=prompt)) for skill, prompt in asked
    ]
    too_large = []
    for (skill, prompt), future in zip(asked, futures, strict=True):
        error = future.exception(WARM_UP_TIMEOUT_S)
        if isinstance(error, CapacityError):
            too_large.append(f"{skill} {prompt!r}: {error}")
        elif error is not None and not isinstance(error, DeadlineExceeded):  # that was admitted
            raise error
    if too_large:
        raise InputError(
            f"engine.kv_pages {config.kv_pages} with max_objects {config.max_objects} and "
            f"max_tokens {config.max_tokens} cannot answer {'; '.join(too_large)}"
        )


def gpu_memory_mb(device: str) -> tuple[float, float] | None:
    """Return used and total memory of a GPU in MB, by whichever process; None for a CPU."""
    if device.partition(":")[0] != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return (total_bytes - free_bytes) / 1e6, total_bytes / 1e6
