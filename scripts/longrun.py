"""Run random workloads on the fake device for many steps: ``python -m scripts.longrun``.

Every episode draws an engine (sizes, mode, how eager its device is, whether it captures steps)
and a workload (kinds of answers, frames, adapters, arrivals, cancels, deadlines, pauses, planted
faults), checks all invariants each tick, compares every answer with the one computed alone, and
looks for anything still held at the end. One seed gives one episode, so a difference is found
again by ``--seed N --episodes 1``.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from photon_ros.core.errors import RequestCancelled
from photon_ros.engine.config import EngineConfig

TESTS = Path(__file__).resolve().parents[1] / "test" / "engine"
CANCELLED = RequestCancelled("cancelled by the long run")


@dataclass
class Tally:
    """What some episodes came to."""

    num_episodes: int = 0
    num_steps: int = 0
    num_tokens: int = 0
    num_answers: int = 0
    num_ended_early: int = 0
    num_faults: int = 0
    num_replays: int = 0
    num_differences: int = 0
    num_leaks: int = 0
    complaints: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Episode:
    """One engine and its workload, both drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._harness_of, self._hash_model = _tests("harness"), _tests("hash_model")
        self._grammars = _tests("grammars")
        self.asked: list[tuple[Any, tuple[int, ...], int | None, Any, Any, Any]] = []
        rng = self._random
        config = EngineConfig(
            max_rows=rng.choice([1, 2, 4, 6]),
            max_prefixes=rng.choice([1, 2, 4]),
            page_size=rng.choice([2, 4, 8]),
            num_private_pages=rng.choice([24, 60, 120]),
            max_prefixes_per_step=rng.choice([1, 2]),
            pipelined=rng.random() < 0.8,
            hold_constrained=rng.random() < 0.25,
            num_lora_slots=2,
            max_lora_rank=2,
        )
        self.harness = self._harness_of.Harness(
            seed,
            rng.choice([0.0, 0.2, 0.5, 0.9]),
            config,
            can_capture=rng.random() < 0.3,
            is_synchronous=rng.random() < 0.1,
        )
        self._adapters = [self._hash_model.adapter_of(number) for number in range(1, 4)]

    def run(self, num_requests: int) -> None:
        """Submit everything, with what goes wrong in between, and tick until idle."""
        rng, harness = self._random, self.harness
        for _ in range(num_requests):
            self._submit()
            for _ in range(rng.choice([0, 0, 1, 2, 4])):
                harness.tick()
            self._disturb()
        harness.engine.scheduler.is_paused = False
        harness.model.fail_on.clear()
        harness.settle(100_000)

    def differences(self) -> Iterator[str]:
        """Say which answers are not those that were computed alone."""
        key_of = self._harness_of.key_of
        for sequence, prompt, frame, adapter, state, fresh in self.asked:
            self._hash_model.expected_tokens(prompt, frame, fresh, adapter=adapter)
            got, wanted = key_of(state.tokens), key_of(fresh.tokens)
            is_whole = self.harness.outcomes[sequence].error is None
            if got != (wanted if is_whole else wanted[: len(got)]):
                yield f"prompt {prompt} on frame {frame}: {got} is not {wanted}"

    def _submit(self) -> None:
        rng, grammars = self._random, self._grammars
        size = rng.randint(1, 12)
        make: Callable[[], Any] = rng.choice(
            [
                lambda: grammars.CycleGrammar(True, size),
                lambda: grammars.CycleGrammar(False, size),
                lambda: grammars.TextGrammar(size + 3, forbidden=(0,) if size % 2 else ()),
                lambda: grammars.ParityGrammar(size + 2),
                lambda: grammars.TwoPhaseGrammar(size, 3),
                lambda: grammars.FoldGrammar(True, size),
            ]
        )
        prompt = tuple(rng.randint(1, 22) for _ in range(rng.choice([1, 2, 3, 9])))
        frame = rng.choice([None, 0, 1, 2, 3, 4])
        adapter = rng.choice([None, None, None, *self._adapters])
        deadline_s = rng.choice([None, None, None, time.monotonic() + rng.random() * 0.1])
        state = make()
        sequence = self.harness.submit(
            state, prompt=prompt, frame=frame, adapter=adapter, deadline_s=deadline_s
        )
        self.asked.append((sequence, prompt, frame, adapter, state, make()))

    def _disturb(self) -> None:
        rng, harness = self._random, self.harness
        chance = rng.random()
        if chance < 0.06:
            harness.engine.cancel(rng.choice(harness.sequences), CANCELLED)
        elif chance < 0.08:
            method = rng.choice(["decode", "encode_frames", "coord_logits", "vocab_logits"])
            harness.model.fail_on[method] = rng.randint(0, 5)
        elif chance < 0.12:
            harness.engine.scheduler.is_paused = not harness.engine.scheduler.is_paused


def _tests(name: str) -> ModuleType:
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    return importlib.import_module(name)


def run_episode(seed: int, num_requests: int = 60) -> Tally:
    """Run one episode; whatever it finds is in the tally, with the seed."""
    torch.set_num_threads(1)
    episode = Episode(seed)
    tally = Tally(num_episodes=1)
    try:
        episode.run(num_requests)
    except AssertionError as error:
        tally.num_differences += 1
        tally.complaints.append(f"seed {seed}: {' '.join(str(error).split())[:300]}")
    else:
        found = list(episode.differences())
        tally.num_differences += len(found)
        tally.complaints += [f"seed {seed}: {text[:300]}" for text in found]
        try:
            episode.harness.run()
        except AssertionError as error:
            tally.num_leaks += 1
            tally.complaints.append(f"seed {seed}: leak: {error}")
    stats, outcomes = episode.harness.engine.stats, episode.harness.outcomes.values()
    tally.num_steps = stats.num_prefill_steps + stats.num_decode_steps
    tally.num_tokens, tally.num_faults = stats.num_tokens, stats.num_faults
    tally.num_replays = episode.harness.engine.graphs.num_replays
    tally.num_answers = len(outcomes)
    tally.num_ended_early = sum(outcome.error is not None for outcome in outcomes)
    return tally


def main(arguments: list[str] | None = None) -> int:
    """Run episodes until the steps are reached; return 1 when anything was found."""
    parser = argparse.ArgumentParser(prog="python -m scripts.longrun")
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after so many steps")
    parser.add_argument("--episodes", type=int, default=None, help="or after so many episodes")
    parser.add_argument("--minutes", type=float, default=None, help="or after so many minutes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first episode")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    started_s = shown_s = time.monotonic()
    total = Tally()
    last = None if options.episodes is None else options.seed + options.episodes
    seeds = iter(range(options.seed, sys.maxsize if last is None else last))
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for tally in pool.imap(run_episode, _throttled(seeds, total, options.jobs)):
            total.add(tally)
            now_s = time.monotonic()
            for complaint in tally.complaints:
                print(complaint, flush=True)
            if now_s - shown_s > 30:
                shown_s = now_s
                print(_line(total, options.seed, now_s - started_s), flush=True)
            is_late = options.minutes is not None and now_s - started_s > 60 * options.minutes
            if total.num_steps >= options.steps or is_late:
                break
        pool.terminate()
    print(_line(total, options.seed, time.monotonic() - started_s))
    return 1 if total.num_differences or total.num_leaks else 0


def _throttled(seeds: Iterator[int], total: Tally, num_jobs: int) -> Iterator[int]:
    """Hand out seeds only a little ahead of what is done, so that the pool can be stopped."""
    for number, seed in enumerate(seeds):
        while number > total.num_episodes + 2 * num_jobs:
            time.sleep(0.01)
        yield seed


def _line(total: Tally, first_seed: int, seconds: float) -> str:
    last_seed = first_seed + total.num_episodes - 1
    return (
        f"{total.num_steps} steps in {seconds:.0f} s, seeds {first_seed} to {last_seed}: "
        f"{total.num_tokens} tokens, {total.num_answers} answers "
        f"({total.num_ended_early} ended by cancel, deadline or fault), {total.num_faults} faults, "
        f"{total.num_replays} replays; "
        f"{total.num_differences} differences, {total.num_leaks} leaks"
    )


if __name__ == "__main__":
    sys.exit(main())
