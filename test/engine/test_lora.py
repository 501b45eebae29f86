"""Adapters: each row gets what it gets alone, slots are counted, faults leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from grammars import CycleGrammar, TextGrammar, TwoPhaseGrammar
from harness import SMALL, Harness, key_of
from hash_model import SPEC, HashModel, adapter_of, expected_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.core.errors import CapacityError, InputError
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.lora import LoraAdapter, LoraBank

MODES = [(True, False), (True, True), (False, False)]


def config(pipelined: bool = True, hold: bool = False, slots: int = 2) -> EngineConfig:
    sizes = {**SMALL, "max_prefixes": 4, "num_lora_slots": slots, "max_lora_rank": 4}
    return EngineConfig(**sizes, pipelined=pipelined, hold_constrained=hold)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 1, 2, 3, 4]),
            st.integers(0, 2),
            st.sampled_from(["detect", "text", "phases"]),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(MODES),
    st.integers(0, 999),
    st.booleans(),
)
def test_mixed_adapters_give_each_row_what_it_gets_alone(
    mix: list[tuple[int, int, str, int]], mode: tuple[bool, bool], seed: int, can_capture: bool
) -> None:
    make = {
        "detect": lambda: CycleGrammar(True, 4),
        "text": lambda: TextGrammar(7),
        "phases": lambda: TwoPhaseGrammar(3, 3),
    }
    adapters = {number: adapter_of(number) for number in range(1, 5)}
    harness = Harness(seed, 0.4, config(*mode), can_capture=can_capture)
    asked = []
    for index, (number, frame, kind, pause) in enumerate(mix):
        state, prompt = make[kind](), (index + 1, 3)
        harness.submit(state, prompt=prompt, frame=frame, adapter=adapters.get(number))
        asked.append((state, prompt, frame, adapters.get(number), make[kind]()))
        for _ in range(pause):
            harness.tick()
    harness.run()
    for state, prompt, frame, adapter, fresh in asked:
        expected = expected_tokens(prompt, frame, fresh, adapter=adapter)
        assert key_of(state.tokens) == key_of(expected)


def test_adapters_change_answers() -> None:
    plain = expected_tokens((4, 2), 1, TextGrammar(9))
    adapted = [expected_tokens((4, 2), 1, TextGrammar(9), adapter=adapter_of(n)) for n in (1, 2)]
    assert len({tuple(key_of(tokens)) for tokens in (plain, *adapted)}) == 3


def test_more_adapters_than_slots_take_turns() -> None:
    harness = Harness(config=config(slots=1))
    states = [CycleGrammar(True, 3) for _ in range(5)]
    for number, state in enumerate(states):
        harness.submit(state, prompt=(number + 1,), adapter=adapter_of(number + 1))
    harness.run()
    for number, state in enumerate(states):
        expected = expected_tokens(
            (number + 1,), 7, CycleGrammar(True, 3), adapter=adapter_of(number + 1)
        )
        assert key_of(state.tokens) == key_of(expected)


def test_an_adapter_in_use_is_loaded_once_for_all_its_rows() -> None:
    harness = Harness(config=config())
    adapter = adapter_of(2)
    for number in range(3):
        harness.submit(CycleGrammar(True, 3), prompt=(number + 1,), adapter=adapter)
    harness.run()
    assert harness.device.trace.count("load adapter") == 1


@pytest.mark.parametrize("is_synchronous", [True, False])
def test_an_adapter_whose_first_step_failed_is_loaded_again(is_synchronous: bool) -> None:
    model = HashModel({"decode": 0})
    harness = Harness(config=config(), model=model, is_synchronous=is_synchronous)
    adapter = adapter_of(3)
    harness.submit(TextGrammar(5), adapter=adapter)
    harness.run()
    harness.engine.lora_bank.down["value"].fill_(9)  # what a failed load may leave behind
    state = TextGrammar(5)
    harness.submit(state, prompt=(8,), adapter=adapter)
    harness.run()
    expected = expected_tokens((8,), 7, TextGrammar(5), adapter=adapter)
    assert key_of(state.tokens) == key_of(expected)


def shaped(rank: int = 2, inputs: int = 8, outputs: int = 8, name: str = "value") -> LoraAdapter:
    factors = {(0, name): (torch.ones(rank, inputs), torch.ones(outputs, rank))}
    return LoraAdapter("mine", rank, factors)


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (shaped(rank=5), "'mine' has rank 5; slots hold 4"),
        (shaped(name="router"), "'mine': no 'router' in layer 0"),
        (shaped(inputs=7), "'value' of layer 0 maps 7 to 8, the model's maps 8 to 8"),
        (shaped(outputs=9), "'value' of layer 0 maps 8 to 9, the model's maps 8 to 8"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_with_the_figures(
    adapter: LoraAdapter, message: str
) -> None:
    harness = Harness(config=config())
    with pytest.raises(CapacityError, match=message):
        harness.submit(TextGrammar(2), adapter=adapter)


def test_an_engine_without_slots_refuses_adapters() -> None:
    harness = Harness(config=config(slots=0))
    with pytest.raises(CapacityError, match="this engine has no LoRA slots"):
        harness.submit(TextGrammar(2), adapter=shaped())


def test_a_negative_number_of_slots_is_refused() -> None:
    with pytest.raises(InputError, match="num_lora_slots must be >= 0, got -1"):
        EngineConfig(num_lora_slots=-1)


def test_a_slot_that_is_loaded_anew_keeps_nothing_of_the_adapter_before() -> None:
    bank = LoraBank(CpuDevice(), SPEC, 1, 4)
    bank.load(1, shaped(rank=4))
    bank.load(1, shaped(rank=1))
    x = torch.ones(1, 1, 8)
    assert bank.adapt(torch.tensor([1]), 0, "value", x).flatten().tolist() == [8.0] * 8
    assert bank.adapt(torch.tensor([0]), 0, "value", x).abs().max() == 0
