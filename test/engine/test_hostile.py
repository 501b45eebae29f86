"""The surroundings of the engine's tests really are hostile: each mistake shows."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from fake_device import FakeDevice, FakeEvent
from grammars import CycleGrammar, TextGrammar
from harness import SMALL, Harness, key_of
from hash_model import expected_tokens

from photon_ros.core.errors import RequestCancelled
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.sequence import Sequence
from photon_ros.engine.step import Step


def running(eagerness: float = 0.0) -> tuple[Harness, Sequence]:
    """Return a harness with one text answer under way."""
    harness = Harness(eagerness=eagerness)
    sequence = harness.submit(TextGrammar(20, forbidden=(0,)), frame=1)
    for _ in range(3):
        harness.tick()
    return harness, sequence


def finish(harness: Harness) -> None:
    while harness.engine.has_work:
        harness.engine.tick()


# -- the device -------------------------------------------------------------------------------


def test_an_operation_reads_its_source_when_it_runs_and_not_when_it_is_queued() -> None:
    device = FakeDevice(eagerness=0.0)
    source, target = torch.zeros(1), torch.zeros(1)
    device.compute.submit(lambda: target.copy_(source), "copy")
    source.fill_(7)
    device.compute.record().synchronize()
    assert target.item() == 7


def test_a_stream_keeps_its_order_and_two_streams_have_none() -> None:
    orders = set()
    for seed in range(40):
        device = FakeDevice(seed, eagerness=0.0)
        ran: list[str] = []
        for name in "ab":
            device.compute.submit(partial(ran.append, name), name)
            device.copy.submit(partial(ran.append, name.upper()), name)
        for event in (device.compute.record(), device.copy.record()):
            event.synchronize()
        assert ran.index("a") < ran.index("b")
        assert ran.index("A") < ran.index("B")
        orders.add("".join(ran))
    assert len(orders) == 6  # every interleaving of two and two


def test_a_wait_holds_back_what_comes_after_it_until_its_event() -> None:
    for seed in range(20):
        device = FakeDevice(seed, eagerness=0.7)
        ran: list[str] = []
        device.compute.submit(partial(ran.append, "sample"), "sample")
        device.copy.wait(device.compute.record())
        device.copy.submit(partial(ran.append, "copy"), "copy")
        device.copy.record().synchronize()
        assert ran == ["sample", "copy"]


def test_an_error_reaches_the_next_event_and_the_streams_that_waited_for_it() -> None:
    def boom() -> None:
        raise RuntimeError("planted")

    device = FakeDevice(eagerness=0.0)
    early = device.compute.record()
    device.compute.submit(boom, "boom")
    device.copy.wait(device.compute.record())
    landed = device.copy.record()
    early.synchronize()
    with pytest.raises(RuntimeError, match="planted"):
        landed.synchronize()
    device.copy.record().synchronize()


def test_waiting_for_what_can_never_happen_is_a_deadlock_and_not_a_hang() -> None:
    device = FakeDevice(eagerness=0.0)
    device.copy.wait(FakeEvent(device))
    with pytest.raises(AssertionError, match="deadlock"):
        device.copy.record().synchronize()


# -- what nobody may look at ------------------------------------------------------------------


def test_a_committed_slot_holds_garbage_on_the_host() -> None:
    """A token read a moment after its commit is not the one that was sampled."""
    num_wrong = 0
    for seed in range(10):
        harness = Harness(seed=seed)
        state = TextGrammar(20, forbidden=(0,))
        harness.submit(state)
        harness.tick()
        slot = harness.engine._slots[0]
        harness.tick()
        assert len(state.tokens) == 1
        num_wrong += slot.landed_tokens(1)[0].id != state.tokens[0].id
        finish(harness)
    assert num_wrong > 5


def test_a_slot_launched_again_holds_garbage_on_the_device() -> None:
    harness, _ = running()
    slot = harness.engine._slots[harness.engine.pipeline.free_slot()]
    harness.device.compute.record().synchronize()
    buffers = (slot.hidden, slot.inputs.device, slot.landed.device)
    before = [buffer.clone() for buffer in buffers]
    step = Step("decode", [])
    step.slot = slot
    harness.engine.pipeline.launch(step)
    harness.device.compute.record().synchronize()
    for buffer, old in zip(buffers, before, strict=True):
        assert not torch.equal(buffer, old)


def test_pages_given_back_and_frames_not_yet_encoded_hold_garbage() -> None:
    harness = Harness()
    pool, cache = harness.engine.pool, harness.engine._forward._cache
    cache.values.fill_(99)
    pages = pool.take_pages(2)
    pool.give_pages(pages[:1])
    first = pool.prefixes.hold("frame").number
    harness.device.compute.record().synchronize()
    size = SMALL["page_size"]
    ruined = {int(p) // size for p in (cache.values[0, :, 0, 0] != 99).nonzero()[:, 0]}
    assert ruined == {pages[0], *range(first, first + pool.prefixes.pages_per_prefix)}


def test_a_relay_row_read_twice_is_reported() -> None:
    harness = Harness()
    relay = harness.engine._forward._relay
    relay.index_copy_(0, torch.tensor([1, 2]), torch.ones(2, relay.shape[1]))
    assert relay.index_select(0, torch.tensor([2])).eq(1).all()
    assert not harness.violations
    relay.index_select(0, torch.tensor([1, 2]))
    assert harness.violations == ["relay row 2 gathered without being written since"]


def test_a_relay_row_of_a_lane_given_back_is_reported() -> None:
    harness, sequence = running()
    lane = sequence.lane
    harness.engine.cancel(sequence, RequestCancelled("by the test"))
    finish(harness)
    harness.device.compute.record().synchronize()
    harness.engine._forward._relay.index_select(0, torch.tensor([lane]))
    assert harness.violations


# -- who may write where ----------------------------------------------------------------------


def test_an_operation_that_writes_another_page_is_reported() -> None:
    harness, _ = running()
    cache = harness.engine._forward._cache
    harness.device.compute.submit(lambda: cache.values[:, 5].add_(1), "decode")
    finish(harness)
    assert any("wrote position slots [5] of others" in text for text in harness.violations)


def test_pages_given_back_while_a_step_names_them_are_reported() -> None:
    harness, sequence = running()
    harness.engine.scheduler.withdraw(sequence)
    harness.engine.scheduler.release(sequence)
    sequence.finalized = True
    finish(harness)
    assert any("gave back its pages" in text for text in harness.violations)


def test_one_wrong_value_in_one_page_becomes_a_wrong_token() -> None:
    num_wrong = 0
    for seed in range(5):
        harness = Harness(seed=seed)
        state = TextGrammar(20, forbidden=(0,))
        sequence = harness.submit(state, prompt=(1, 2), frame=1)
        harness.tick()
        values = harness.engine._forward._cache.values
        slot = sequence.pages[0] * SMALL["page_size"] + 1
        harness.device.compute.submit(partial(values[:, slot, 0, seed].add_, 1), "poison")
        harness.run()
        wanted = expected_tokens((1, 2), 1, TextGrammar(20, forbidden=(0,)))
        num_wrong += key_of(state.tokens) != key_of(wanted)
    assert num_wrong == 5


# -- the harness ------------------------------------------------------------------------------


def test_an_outcome_delivered_twice_is_reported() -> None:
    harness = Harness()
    sequence = harness.submit(CycleGrammar(True, 1))
    harness.settle()
    sequence.on_done(sequence, harness.outcomes[sequence])
    with pytest.raises(AssertionError, match="delivered twice"):
        harness.check()


def test_a_fault_that_nobody_planted_is_reported() -> None:
    harness, _ = running()
    harness.engine._slots[0].hidden.resize_(0, 0)
    harness.engine._slots[1].hidden.resize_(0, 0)
    finish(harness)
    with pytest.raises(AssertionError, match="nobody planted"):
        harness.check()


@pytest.mark.parametrize("leak", ["page", "lane", "extent"])
def test_a_leak_is_reported_at_idle(leak: str) -> None:
    harness = Harness(config=EngineConfig(**SMALL))
    harness.submit(CycleGrammar(True, 1))
    if leak == "page":
        harness.engine.pool.take_pages(1)
    elif leak == "lane":
        harness.engine.scheduler._free_lanes.pop(0)
    else:
        harness.engine.pool.prefixes.hold("nobody")
    with pytest.raises(AssertionError):
        harness.run()
