"""The training loop: draw a batch, step, log, keep the state."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.architecture import CONFIG
from training.cutting import Sample
from training.dense import DenseTarget, dense_accuracy, dense_loss
from training.grouping import Grouping
from training.initial import align_words, whiten_patches
from training.log import Log
from training.losses import question_losses
from training.muon import Muon
from training.network import HEADS, Network
from training.packing import pack
from training.placing import shown_in
from training.pool import Pool
from training.questions import ask
from training.schedule import Schedule
from training.state import has_state, read_state, write_state

# The vision stage skips rendered scenes with fewer objects: a step costs the same.
RICH_OBJECTS = 6
# The patches' own say on where their object is, beside the text decoder's.
PLACE_WEIGHT = 0.5
# Scenes whose patches the patch embedding starts from.
WHITENING_SCENES = 200


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that is chosen about training.

    Attributes:
        seed: of the initial weights and of every batch.
        vision_batch, joint_batch: scenes of a step when they are looked at as a whole.
        vision_tiled_batch, joint_tiled_batch: the same with tiles, which cost seven times.
        vision_tiled_share, joint_tiled_share: share of the steps on scenes with tiles.
        max_questions, max_tokens: most questions on a scene, and positions of all of them.
        muon_lr, adam_lr: greatest step sizes.
        vision_lr_share: step sizes of the vision encoder as a share of those, once the text
            decoder is trained too.
        patch_lr: that of the patch embedding. The pixels of a patch are nearly equal, so equal
            steps of its 768 weights add up: at ``adam_lr`` each step would move its output by
            more than the detail in it.
        max_grad_norm: gradients longer than this are shortened.
        bf16: multiply matrices in bfloat16, for a processor that does that faster.
    """

    seed: int = 1
    vision_batch: int = 16
    joint_batch: int = 12
    vision_tiled_batch: int = 4
    joint_tiled_batch: int = 4
    vision_tiled_share: float = 0.15
    joint_tiled_share: float = 0.45
    max_questions: int = 10
    max_tokens: int = 170
    muon_lr: float = 0.01
    adam_lr: float = 7e-4
    vision_lr_share: float = 0.5
    patch_lr: float = 1e-4
    weight_decay: float = 0.02
    max_grad_norm: float = 1.0
    bf16: bool = False


class Trainer:
    """One run in one folder.

    Args:
        folder: where state and log are kept; a run found there goes on.
        pool: the scenes.
        recipe: everything that is chosen.
        schedule: how long the run is.
        start: weights of :func:`training.state.read_weights` that a new run starts from; None
            starts from nothing.
    """

    def __init__(
        self,
        folder: Path,
        pool: Pool,
        recipe: Recipe,
        schedule: Schedule,
        start: dict[str, Tensor] | None = None,
    ) -> None:
        self.folder = folder
        self.pool = pool
        self.recipe = recipe
        self.schedule = schedule
        self.step = 0
        self.elapsed_s = 0.0
        torch.manual_seed(recipe.seed)
        self.network = Network(CONFIG)
        self._muon, self._adam = _optimisers(self.network, recipe)
        self._index_pool()
        folder.mkdir(parents=True, exist_ok=True)
        if has_state(folder):
            self._resume(read_state(folder))
        elif start is not None:
            self.network.start_from(start)
        else:
            scenes = np.flatnonzero(self.pool.num_crops == 1)[:WHITENING_SCENES]
            crops = np.concatenate([self.pool[int(i)].crops() for i in scenes])
            whiten_patches(self.network.vision, torch.from_numpy(crops))
        self._log = Log(folder / "log.csv", self.step)

    @property
    def _optimisers(self) -> tuple[Muon, torch.optim.AdamW]:
        return self._muon, self._adam

    @property
    def is_over(self) -> bool:
        """True when the run has come to its end."""
        return self.step >= self.schedule.num_steps

    def run(
        self,
        *,
        save_every_s: float = 180.0,
        stop_after_s: float | None = None,
        stop_after_steps: int | None = None,
        on_save: Callable[[Trainer], None] | None = None,
    ) -> None:
        """Train to the end of the schedule, or until so many seconds or steps have passed.

        ``on_save`` is called after the state was kept.
        """
        started = last_save = time.monotonic()
        last_step = None if stop_after_steps is None else self.step + stop_after_steps
        while not self.is_over and self.step != last_step:
            self._one_step()
            now = time.monotonic()
            if stop_after_s is not None and now - started > stop_after_s:
                break
            if now - last_save > save_every_s:
                self._keep(on_save)
                last_save = now
        self._keep(on_save)

    def _keep(self, on_save: Callable[[Trainer], None] | None) -> None:
        self.save()
        if on_save is not None:
            on_save(self)

    def save(self) -> None:
        """Keep the state of the run."""
        state = {
            "network": self.network.state_dict(),
            "muon": self._muon.state_dict(),
            "adam": self._adam.state_dict(),
            "step": self.step,
            "elapsed_s": self.elapsed_s,
        }
        write_state(self.folder, state)
        self._log.flush()

    def summary(self) -> str:
        """Return the means of the last 100 steps in words."""
        return self._log.summary()

    def _resume(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])
        self.step, self.elapsed_s = int(state["step"]), float(state["elapsed_s"])

    def _index_pool(self) -> None:
        whole, rich = self.pool.num_crops == 1, self.pool.num_objects >= RICH_OBJECTS
        self._scenes = {
            (tiled, joint): np.flatnonzero(
                (whole != tiled) & (np.ones_like(rich) if joint else rich | self.pool.is_real)
            )
            for tiled in (False, True)
            for joint in (False, True)
        }

    def _draw(self, rng: np.random.Generator, joint: bool) -> tuple[list[Sample], bool]:
        recipe = self.recipe
        share = recipe.joint_tiled_share if joint else recipe.vision_tiled_share
        tiled = bool(rng.random() < share) and len(self._scenes[True, joint]) > 0
        if tiled:
            size = recipe.joint_tiled_batch if joint else recipe.vision_tiled_batch
        else:
            size = recipe.joint_batch if joint else recipe.vision_batch
        samples = [self.pool[int(i)] for i in rng.choice(self._scenes[tiled, joint], size)]
        return [s.mirrored() if rng.random() < 0.5 else s for s in samples], tiled

    def _one_step(self) -> None:
        started = time.monotonic()
        joint = self.schedule.is_joint(self.step)
        if self.step == self.schedule.vision_steps > 0:
            align_words(self.network.text, *self.network.dense.directions())
        # Every batch depends on seed and step alone, so a resumed run sees the same ones.
        rng = np.random.default_rng([self.recipe.seed, 2, self.step])
        samples, tiled = self._draw(rng, joint)
        losses, accuracy = self._losses(samples, rng, joint)
        torch.autograd.backward(torch.stack(list(losses.values())).sum())
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.max_grad_norm)
        factor = self.schedule.lr_factor(self.step)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                share = self.recipe.vision_lr_share if joint and group["is_vision"] else 1.0
                group["lr"] = group["full_lr"] * factor * share
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.elapsed_s += time.monotonic() - started
        self.step += 1
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        values |= {"kind_accuracy": accuracy[0], "colour_accuracy": accuracy[1]}
        self._log.add(
            {"step": self.step, "elapsed_s": round(self.elapsed_s, 1),
             "joint": int(joint), "tiled": int(tiled), **values}
        )  # fmt: skip

    def _losses(
        self, samples: list[Sample], rng: np.random.Generator, joint: bool
    ) -> tuple[dict[str, Tensor], tuple[float, float]]:
        crops = [sample.crops() for sample in samples]
        pixels = torch.from_numpy(_lit(np.concatenate(crops), [len(c) for c in crops], rng))
        target = DenseTarget(samples)
        # Plain products instead of the fused attention: faster here in bfloat16.
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.recipe.bf16),
            sdpa_kernel(SDPBackend.MATH),
            Grouping(self.network.vision) as grouping,
        ):
            embeds = self.network.embed_image(
                pixels, [len(c) for c in crops], [sample.tiling for sample in samples]
            )
            dense = self.network.dense(embeds)
            first, beside = shown_in(samples)
            losses = {
                "dense": dense_loss(dense, target),
                "group": grouping.loss(samples, [len(c) for c in crops]),
                "place": PLACE_WEIGHT
                * self.network.place.loss(self.network.region, embeds, first, beside),
                "outline": self.network.outline.loss(embeds, first),
            }
            if joint:
                recipe = self.recipe
                asked = [ask(s, rng, recipe.max_questions, recipe.max_tokens) for s in samples]
                losses |= question_losses(self.network, embeds, pack(samples, asked, rng))
        return losses, dense_accuracy(dense.detach(), target)


def _lit(
    crops: np.ndarray[Any, np.dtype[np.uint8]], num_crops: list[int], rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Change the light of each scene a little: gain and offset, the same for all its crops."""
    gain = np.repeat(rng.uniform(0.85, 1.15, len(num_crops)), num_crops)
    offset = np.repeat(rng.uniform(-12, 12, len(num_crops)), num_crops)
    levels = np.arange(256)
    tables = np.clip(levels * gain[:, None] + offset[:, None], 0, 255).astype(np.uint8)
    return np.stack([table[crop] for table, crop in zip(tables, crops, strict=True)])


def _optimisers(network: Network, recipe: Recipe) -> tuple[Muon, torch.optim.AdamW]:
    muon_groups: dict[str, list[nn.Parameter]] = {"text": [], "vision": []}
    adam_groups: dict[str, list[nn.Parameter]] = {"text": [], "vision": [], "patches": []}
    for name, param in network.named_parameters():
        part = "vision" if name.startswith(("vision.", *HEADS)) else "text"
        if ".blocks." in name and param.ndim == 2:
            muon_groups[part].append(param)
        else:
            adam_groups["patches" if ".patch_emb." in name else part].append(param)
    muon = Muon(
        [
            _group(muon_groups["text"], recipe.muon_lr, is_vision=False),
            _group(muon_groups["vision"], recipe.muon_lr, is_vision=True),
        ],
        weight_decay=recipe.weight_decay,
        dtype=torch.bfloat16 if recipe.bf16 else torch.float32,
    )
    adam = torch.optim.AdamW(
        [
            _group(adam_groups["text"], recipe.adam_lr, is_vision=False),
            _group(adam_groups["vision"], recipe.adam_lr, is_vision=True),
            {**_group(adam_groups["patches"], recipe.patch_lr, is_vision=True), "weight_decay": 0},
        ],
        betas=(0.9, 0.98),
        weight_decay=recipe.weight_decay,
    )
    return muon, adam


def _group(params: list[nn.Parameter], lr: float, *, is_vision: bool) -> dict[str, Any]:
    return {"params": params, "lr": lr, "full_lr": lr, "is_vision": is_vision}
