"""The checks that need a CUDA device, in one run of a few minutes.

    python -m scripts.gpu_check [--device cuda] [--json FILE]

    equality    tokens on the device equal those on the CPU, with and without graphs
    sync        no tick waits for the device outside commit, no copy starts from unpinned memory
    graphs      replays read their inputs anew: staging is poisoned between rounds
    leaks       device memory and pages after many rounds are those after the first
    timings     pipelined against blocking at 1, 8 and 32 rows, random 2B weights in bfloat16

Exit code 0 when all checks pass. ``--device cpu`` runs what makes sense without a GPU (equality,
graphs, leaks), to test this script.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import FrameCrops
from photon_ros.engine.sequence import PrefixSource, Sequence
from photon_ros.models.moondream.builtin import builtin_config
from photon_ros.models.moondream.model import MoondreamModel
from scripts.gpu_workload import Answer, Rounds, make_device, small_model

ROUNDS = 12
TIMED_ROWS = (1, 8, 32)
TIMED_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    name: str
    has_passed: bool
    detail: str


def check_equality(name: str) -> Check:
    """Compare tokens with the CPU's, eager and captured, pipelined and blocking."""
    expected = Rounds(small_model("cpu"), CpuDevice(), pipelined=False)
    variants = {
        f"graphs={graphs} pipelined={pipelined}": Rounds(
            small_model(name), make_device(name, use_graphs=graphs), pipelined=pipelined
        )
        for graphs in (False, True)
        for pipelined in (False, True)
    }
    wrong = []
    for number in range(ROUNDS):
        expected.run(number)
        for rounds in variants.values():
            rounds.run(number)
    for label, rounds in variants.items():
        num_wrong = sum(a != b for a, b in zip(rounds.tokens(), expected.tokens(), strict=True))
        wrong += [f"{label}: {num_wrong} answers differ"] if num_wrong else []
        wrong += [f"{label}: {error}" for error in rounds.errors[:1]]
    total = len(expected.answers)
    return Check("equality", not wrong, "; ".join(wrong) or f"{total} answers, 4 variants")


class _UnpinnedCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects copies to a GPU that start from pageable memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        name = func.overloadpacket.__name__
        if name in ("copy_", "_to_copy"):
            tensors = [arg for arg in args if isinstance(arg, Tensor)]
            target = tensors[0] if name == "copy_" else None
            source = tensors[-1]
            to_gpu = target is None or target.is_cuda
            if source.device.type == "cpu" and to_gpu and not source.is_pinned():
                self.found.append(f"{name} of {tuple(source.shape)}")
        return func(*args, **(kwargs or {}))


def check_sync(name: str) -> Check:
    """Run warm ticks with CUDA's sync detector raising and unpinned copies collected."""
    rounds = Rounds(small_model(name), make_device(name))
    for number in range(8):  # a shape is captured the second time that it meets a slot
        rounds.run(number)
    torch.cuda.set_sync_debug_mode("error")
    try:
        with _UnpinnedCopies() as copies:
            for number in range(8, 12):
                rounds.run(number)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    problems = [str(error) for error in rounds.errors[:2]] + copies.found[:3]
    return Check("sync", not problems, "; ".join(problems) or "4 warm rounds")


def check_graphs(name: str) -> Check:
    """Poison every staging buffer between rounds; replays must not see it."""
    rounds = Rounds(small_model(name), make_device(name))
    expected = Rounds(small_model("cpu"), CpuDevice(), pipelined=False)
    for number in range(ROUNDS):
        rounds.run(number)
        expected.run(number)
        for slot in rounds.engine._slots:
            slot.inputs.host.random_(0, 3)
            slot.inputs.device.random_(0, 3)
            slot.controls.device.random_(0, 3)
            slot.hidden.normal_()
        _wait_for_all(name)  # the poison is on another stream than what it must not overtake
    num_wrong = sum(a != b for a, b in zip(rounds.tokens(), expected.tokens(), strict=True))
    replays = rounds.engine.graphs.num_replays
    detail = f"{replays} replays, {num_wrong} of {len(expected.answers)} answers differ"
    return Check("graphs", replays > 0 and not num_wrong and not rounds.errors, detail)


def check_leaks(name: str) -> Check:
    """Compare memory and pages after many rounds with those after the first ones."""
    rounds = Rounds(small_model(name), make_device(name))
    for number in range(6):
        rounds.run(number)
    before = _allocated_bytes(name)
    for number in range(6, 6 + 3 * ROUNDS):
        rounds.run(number)
    grown = _allocated_bytes(name) - before
    pool = rounds.engine.pool
    pool.check()
    kept = pool.num_private_pages - pool.num_free_pages
    detail = f"{grown} bytes and {kept} pages kept after {3 * ROUNDS} rounds"
    return Check("leaks", grown <= 0 and not kept and not rounds.errors, detail)


def _wait_for_all(name: str) -> None:
    if name != "cpu":
        torch.cuda.synchronize(name)


def _allocated_bytes(name: str) -> int:
    _wait_for_all(name)
    return 0 if name == "cpu" else torch.cuda.memory_allocated(name)


def time_decoding(name: str) -> dict[str, Any]:
    """Return milliseconds a decode step of a 2B model, pipelined and blocking, in turns."""
    with torch.device(name):
        model = MoondreamModel(builtin_config("moondream2")).to(torch.bfloat16)
    model.reset_tables(torch.device(name))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    model.freeze()
    rows_timed = []
    for rows in TIMED_ROWS:
        for use_graphs in (False, True):
            times = {
                pipelined: _step_ms(model, name, rows, use_graphs, pipelined)
                for pipelined in (False, True)
            }
            rows_timed.append(
                {
                    "rows": rows,
                    "graphs": use_graphs,
                    "blocking_ms": times[False],
                    "pipelined_ms": times[True],
                    "speed_up": times[False] / times[True] - 1,
                }
            )
    return {"device": torch.cuda.get_device_name(name), "decode": rows_timed}


def _step_ms(
    model: MoondreamModel, name: str, rows: int, use_graphs: bool, pipelined: bool
) -> float:
    config = EngineConfig(max_rows=rows, num_private_pages=rows * 8, pipelined=pipelined)
    config = replace(config, max_prefixes=max(2, (rows + 3) // 4))
    engine = Engine(model, make_device(name, use_graphs=use_graphs), config)
    best_ms = float("inf")
    for turn in range(3):
        side = model.spec.crop_size_px
        crops = FrameCrops(np.zeros((1, side, side, 3), dtype=np.uint8), (1, 1))
        for row in range(rows):
            source = PrefixSource((turn, row // 4), crops)
            answer = Answer(TIMED_TOKENS, spatial=False)
            engine.submit(Sequence((1, 7, 20), answer, lambda *_: None, source=source))
        while engine.has_work:
            engine.tick()
        steps = [r for r in engine.stats.records if r.kind == "decode" and r.num_rows == rows]
        steps = steps[-TIMED_TOKENS // 2 :]
        spent_s = steps[-1].copied_s - steps[0].copied_s
        best_ms = min(best_ms, 1e3 * spent_s / (len(steps) - 1))
    return best_ms


def main(arguments: Seq[str] | None = None) -> int:
    """Run the checks, print a line each, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    parsed = parser.parse_args(arguments)
    is_gpu = parsed.device != "cpu"
    if is_gpu and not torch.cuda.is_available():
        print("gpu-check: this torch sees no CUDA GPU", file=sys.stderr)
        return 2
    if is_gpu:
        torch.backends.cuda.matmul.allow_tf32 = False
    checks: list[Callable[[str], Check]] = [check_equality, check_graphs, check_leaks]
    if is_gpu:
        checks.insert(1, check_sync)
    started_s = time.perf_counter()
    found = []
    for check in checks:
        found.append(check(parsed.device))
        print(f"{'ok  ' if found[-1].has_passed else 'FAIL'} {found[-1].name}: {found[-1].detail}")
    timings = time_decoding(parsed.device) if is_gpu else None
    if timings is not None:
        print(json.dumps(timings, indent=2))
    if parsed.json:
        figures = {"checks": [asdict(check) for check in found], "timings": timings}
        with open(parsed.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)
    failed = sum(not check.has_passed for check in found)
    print(f"{len(found) - failed} passed, {failed} failed, {time.perf_counter() - started_s:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
