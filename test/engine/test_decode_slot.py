"""A slot's staging lands where the step looks for it, whatever was staged before."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from grammars import TextGrammar
from hash_model import SPEC
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photon_ros.engine.config import EngineConfig
from photon_ros.engine.decode_slot import MAX_PROMPT_VALUES, DecodeSlot, Twin
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.interfaces import Constraint, FrameCrops, SampledToken
from photon_ros.engine.sequence import Sequence
from photon_ros.engine.step_inputs import ForwardInputs

ROWS, PREFIXES = 5, 3
CONFIG = EngineConfig(max_rows=ROWS, max_prefixes=PREFIXES, page_size=4)
MAX_PAGES = SPEC.max_context // 4
NAMES = [field.name for field in fields(ForwardInputs)]


def make_slot(config: EngineConfig = CONFIG) -> DecodeSlot:
    return DecodeSlot(0, CpuDevice(), SPEC, config)


def arrays_of(rows: int, tokens: int, pages: int, prefixes: int | None) -> list[np.ndarray]:
    """Return fields of a step filled with distinct numbers."""
    shapes = {
        "lanes": (rows,), "lora_slots": (rows,), "last_index": (rows,),
        "page_table": (rows, pages), "prefix_starts": (prefixes,), "row_prefix": (rows,),
    }  # fmt: skip
    made, start = [], 1
    for name in NAMES if prefixes is not None else NAMES[:-2]:
        shape = shapes.get(name, (rows, tokens))
        count = int(np.prod(shape))
        made.append(np.arange(start, start + count, dtype=np.int64).reshape(shape))
        start += count
    return made


def assert_staged(slot: DecodeSlot, arrays: list[np.ndarray]) -> None:
    num_inputs, inputs = slot.stage_inputs(arrays)
    assert num_inputs == sum(array.size for array in arrays)
    slot.inputs.device.fill_(-1)
    slot.inputs.to_device(num_inputs)
    for name, array in zip(NAMES, arrays, strict=False):
        assert getattr(inputs, name).tolist() == array.tolist(), name
    assert (slot.inputs.device[num_inputs:] == -1).all()


steps = st.tuples(
    st.integers(1, ROWS),
    st.sampled_from([1, 1, 2, 7]),
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(1, PREFIXES)),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(steps, min_size=1, max_size=6))
def test_every_field_lands_in_its_view_after_any_other_step(made: list) -> None:
    slot = make_slot()
    for step in made:
        assert_staged(slot, arrays_of(*step))


@pytest.mark.parametrize("prefixes", [None, PREFIXES])
def test_the_largest_step_fits(prefixes: int | None) -> None:
    tokens = 1 if prefixes is not None else SPEC.max_context
    assert_staged(make_slot(), arrays_of(ROWS, tokens, MAX_PAGES, prefixes))


def test_what_is_staged_is_read_when_the_copy_runs() -> None:
    slot = make_slot()
    first, second = arrays_of(2, 1, 3, None), arrays_of(2, 1, 3, None)
    num_inputs, inputs = slot.stage_inputs(first)
    slot.stage_inputs([array + 100 for array in second])
    slot.inputs.to_device(num_inputs)
    assert inputs.lanes.tolist() == (second[0] + 100).tolist()


def buffers_of(slot: DecodeSlot) -> list[Tensor]:
    values = list(vars(slot).values())
    twins = [value for value in values if isinstance(value, Twin)]
    lone = [value for value in values if isinstance(value, Tensor)]
    return lone + [buffer for twin in twins for buffer in (twin.host, twin.device)]


def test_every_host_buffer_has_a_device_buffer_of_its_shape_and_type() -> None:
    slot = make_slot()
    twins = {name: value for name, value in vars(slot).items() if isinstance(value, Twin)}
    assert {"inputs", "controls", "mask", "crops", "landed"} <= set(twins)
    for name, twin in twins.items():
        assert (twin.host.shape, twin.host.dtype) == (twin.device.shape, twin.device.dtype), name
        assert np.shares_memory(twin.array, twin.host.numpy())
    storages = [buffer.untyped_storage().data_ptr() for buffer in buffers_of(slot)]
    assert len(set(storages)) == len(storages), "two buffers share memory"


def test_two_slots_share_nothing() -> None:
    slots = make_slot(), make_slot()  # both alive, or the second may get the first one's memory
    first, second = ({buffer.data_ptr() for buffer in buffers_of(slot)} for slot in slots)
    assert not first & second


def test_crops_of_several_frames_land_each_in_its_own_place() -> None:
    slot = make_slot(EngineConfig(max_rows=2, max_prefixes_per_step=2))
    frames = [
        FrameCrops(np.full((count, 2, 2, 3), 40 + count, dtype=np.uint8), (1, 1))
        for count in (1, 2)
    ]
    slot.stage_crops(frames)
    devices = slot.copy_crops([1, 2])
    assert [tuple(device.shape) for device in devices] == [(1, 2, 2, 3), (2, 2, 2, 3)]
    for frame, device in zip(frames, devices, strict=True):
        assert np.array_equal(device.numpy(), frame.pixels)


def valued(*values: tuple[int, tuple[float, ...]]) -> Sequence:
    return Sequence((1,) * 9, TextGrammar(), lambda *_: None, prompt_values=values)


def test_values_of_prompts_land_by_kind_at_their_flat_places() -> None:
    slot = make_slot()
    sequences = [
        valued((2, (0.25,)), (3, (0.5, 0.75))),
        valued(),
        valued((0, (0.125, 1.0)), (8, (0.0,))),
    ]
    assert slot.stage_values(sequences, num_tokens=9) == (2, 2)
    slot.value_index.to_device(4)
    slot.values.to_device(4)
    assert slot.value_index.device[:4].tolist() == [2, 2 * 9 + 8, 3, 2 * 9]
    assert slot.values.device[:2, 0].tolist() == [0.25, 0.0]
    assert slot.values.device[2:4].tolist() == [[0.5, 0.75], [0.125, 1.0]]


def test_prompts_without_values_stage_none() -> None:
    assert make_slot().stage_values([valued(), valued()], num_tokens=4) == (0, 0)


def test_as_many_values_as_a_prompt_may_have_fit_in_every_row() -> None:
    slot = make_slot()
    full = tuple((index, (index / 100, 0.5)) for index in range(MAX_PROMPT_VALUES))
    staged = slot.stage_values([valued(*full)] * ROWS, num_tokens=70)
    assert staged == (0, ROWS * MAX_PROMPT_VALUES)
    assert slot.value_index.array[-1] == 4 * 70 + MAX_PROMPT_VALUES - 1


def test_a_mask_row_is_written_again_only_for_another_constraint() -> None:
    slot = make_slot()
    held, other = Constraint(allowed=(1, 2)), Constraint(forbidden=(3,))
    slot.stage_mask([held, other])
    slot.mask.host[0] = False  # shows whether the row is written again
    slot.stage_mask([held, held])
    assert not slot.mask.host[0].any()
    assert (~slot.mask.host[1]).nonzero().flatten().tolist() == [1, 2]
    slot.stage_mask([other, held])
    assert slot.mask.host[0].nonzero().flatten().tolist() == [3]


def test_an_equal_constraint_that_is_another_object_is_written() -> None:
    slot = make_slot()
    slot.stage_mask([Constraint(allowed=(1, 2))])
    slot.mask.host[0] = False
    slot.stage_mask([Constraint(allowed=(1, 2))])
    assert slot.mask.host[0].sum() == SPEC.vocab_size - 2


def test_landed_tokens_are_those_of_the_device_in_row_order() -> None:
    slot = make_slot()
    slot.landed.device[:3] = torch.tensor(
        [[5, 7, -1, -1, 0.5, 0.25], [6, -1, 2, 9, 1.0, 0.125], [0, -1, -1, -1, 0.75, 1.0]]
    )
    slot.landed.to_host(3)
    assert slot.landed_tokens(3) == [
        SampledToken(5, 7, (-1, -1), 0.5, 0.25),
        SampledToken(6, -1, (2, 9), 1.0, 0.125),
        SampledToken(0, -1, (-1, -1), 0.75, 1.0),
    ]


def test_a_copy_of_few_rows_leaves_the_others() -> None:
    slot = make_slot()
    slot.landed.device.fill_(3)
    slot.landed.to_host(2)
    assert slot.landed.host[:2].eq(3).all()
    assert slot.landed.host[2:].eq(0).all()
