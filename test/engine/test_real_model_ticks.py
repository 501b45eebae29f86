"""Ticks of a real, small Moondream read nothing from the device and keep nothing they allocate."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from grammars import ParityGrammar, TextGrammar
from hash_model import crops_of
from small_moondream import CapturingCpu, Run, detect, held, picture, small_model, text
from strict_devices import DeviceRules, ValuelessDevice
from torch import Tensor

from photon_ros.core.errors import EngineFault
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.sequence import PrefixSource
from photon_ros.models.moondream.model import MoondreamModel


def watched_round(run: Run) -> DeviceRules:
    run.submit_round()
    with DeviceRules() as rules:
        run.finish()
    return rules


DEVICES = [CpuDevice, CapturingCpu]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("hold", [True, False])
def test_no_tick_reads_a_value_or_has_a_size_that_depends_on_one(
    pipelined: bool, hold: bool, device: type[CpuDevice]
) -> None:
    run = Run(small_model(), device(), pipelined=pipelined, hold_constrained=hold)
    for _ in range(3):  # with captures: eager, captured, replayed
        watched_round(run)
    assert len(run.outcomes) == 24
    assert (run.engine.graphs.num_replays > 0) == device.can_capture


@pytest.mark.parametrize("device", DEVICES)
def test_after_warm_up_every_round_allocates_the_same(device: type[CpuDevice]) -> None:
    run = Run(small_model(), device())
    watched_round(run)
    rounds = [watched_round(run) for _ in range(3)]
    assert rounds[0].num_allocations
    assert rounds[0].num_allocations == rounds[1].num_allocations == rounds[2].num_allocations
    assert rounds[0].num_bytes == rounds[1].num_bytes == rounds[2].num_bytes


@pytest.mark.parametrize("device", DEVICES)
def test_after_warm_up_nothing_that_a_tick_allocates_outlives_its_round(
    device: type[CpuDevice],
) -> None:
    run = Run(small_model(), device())
    for _ in range(2):
        watched_round(run)
    before = live_bytes()
    for _ in range(3):
        watched_round(run)
    assert live_bytes() == before


def live_bytes() -> int:
    gc.collect()
    storages = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for t in gc.get_objects()
        if type(t) in (Tensor, torch.nn.Parameter)
    }
    return sum(storages.values())


@pytest.mark.parametrize(
    "break_rule",
    [
        lambda x: int(x.sum()),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: torch.nonzero(x),
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.index_put_((x > 0,), torch.tensor(1.0)),
    ],
)
def test_the_rules_refuse_what_stalls_a_gpu(break_rule: Callable[[Tensor], object]) -> None:
    for mode in (torch.inference_mode, torch.no_grad):  # composite operations differ
        with mode(), DeviceRules(), pytest.raises(AssertionError, match=r"host|values"):
            break_rule(torch.ones(3))


# -- a device without values ------------------------------------------------------------------


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("can_capture", [True, False])
def test_the_whole_engine_runs_on_a_device_whose_values_cannot_be_read(
    pipelined: bool, hold: bool, can_capture: bool
) -> None:
    device = ValuelessDevice(can_capture)
    run = Run(small_model("meta"), device, pipelined=pipelined, hold_constrained=hold)
    run.submit_round()
    run.submit_round()
    run.finish()
    stats = run.engine.stats
    assert len(run.outcomes) == 16
    assert stats.num_prefixes == 6
    assert device.num_host_waits == stats.num_prefill_steps + stats.num_decode_steps


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.sum().item(),
        lambda t: t.tolist(),
        lambda t: t.cpu(),
        lambda t: t.numpy(),
        lambda t: t[t > 0],
        lambda t: torch.zeros(t.shape).copy_(t),
        lambda t: t + torch.zeros(t.shape),
    ],
)
def test_a_read_of_the_device_or_a_mix_of_sides_is_a_fault_there(
    read: Callable[[Tensor], object],
) -> None:
    class Reading(MoondreamModel):
        def vocab_logits(self, hidden_RD: Tensor) -> Tensor:
            read(hidden_RD)
            return super().vocab_logits(hidden_RD)

    model = small_model("meta")
    model.__class__ = Reading
    run = Run(model, ValuelessDevice())
    run.submit(text(), None)
    while run.engine.has_work:
        run.engine.tick()
    assert isinstance(run.outcomes[0].error, EngineFault)


# -- and its tokens ---------------------------------------------------------------------------


def spread_model() -> MoondreamModel:
    """Random weights, made large enough that decisions have margins."""
    model = small_model()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.5)
    return model.freeze()


def tokens_of(
    pipelined: bool, hold: bool, device: type[CpuDevice] = CpuDevice
) -> list[list[tuple[int, int, tuple[int, int]]]]:
    run = Run(spread_model(), device(), pipelined=pipelined, hold_constrained=hold)
    states: list[Any] = []
    for number in range(18):
        state = [detect, text, held][number % 3]()
        state.ends = True
        adapted = number % 6 if number % 6 < 2 else None  # a frame's key names its adapter
        frame = number % 3 + (0 if adapted is None else 10 * adapted + 10)
        source = None if number % 4 == 3 else picture(frame, (1, 3, 5)[number % 3])
        run.submit(
            state,
            source,
            prompt=(1, number + 8, 3),
            temperature=number % 2 * 0.8,
            adapter_number=adapted,
        )
        states.append(state)
        if number % 2:
            run.engine.tick()
    run.finish()
    return [[(t.id, t.coord_bin, t.size_bins) for t in state.tokens] for state in states]


def test_the_real_model_gives_the_same_tokens_in_every_mode() -> None:
    wanted = tokens_of(pipelined=False, hold=False)
    assert len({token for tokens in wanted for token in tokens}) > 20, "too plain to tell"
    for pipelined, hold in ((True, False), (True, True), (False, True)):
        assert tokens_of(pipelined, hold) == wanted
    assert tokens_of(True, False, CapturingCpu) == wanted


def test_grammars_of_the_other_suites_run_on_it_too() -> None:
    run = Run(spread_model(), CpuDevice())
    for state in (TextGrammar(6), ParityGrammar(6)):
        run.submit(state, picture(1, 5))
    run.finish()
    assert len(run.outcomes) == 2


def test_crops_of_the_wrong_size_are_refused_before_they_are_queued() -> None:
    run = Run(small_model(), CpuDevice())
    with pytest.raises(Exception, match="crops of shape"):
        run.submit(detect(), PrefixSource(0, crops_of(0)))
    assert not run.engine.has_work
