"""Decode steps of fixed shape: padding, attention over prefixes as data, and replays."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from grammars import CycleGrammar, ParityGrammar, TextGrammar
from harness import SMALL, Harness, key_of
from hash_model import adapter_of, expected_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from test_attention import HEADS, PAGE, PREFIX_LEN, TOLERANCES, WIDTH, Row, World, attend_inputs

from photon_ros.engine.attention import CapturedRowsAttend
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.graphs import Graphs
from photon_ros.engine.page_pool import RESERVED_PAGE
from photon_ros.engine.sequence import Sequence
from photon_ros.engine.shared_places import Place
from photon_ros.engine.step_inputs import ForwardInputs, StepRows, bucket

FIELDS = [field.name for field in fields(ForwardInputs)]
MAX_ROWS, MAX_PAGES, MAX_PREFIXES = 6, 12, 3
rows = st.lists(
    st.builds(Row, st.integers(-1, 2), st.integers(0, 9), st.just(1)), min_size=1, max_size=6
).map(lambda made: sorted(made, key=lambda row: row.prefix))


@pytest.mark.parametrize(
    ("count", "limit", "wanted"),
    [(1, 8, 1), (2, 8, 2), (3, 8, 4), (4, 8, 4), (5, 8, 8), (5, 6, 6), (6, 6, 6), (0, 8, 1)],
)
def test_a_bucket_is_the_next_power_of_two_up_to_the_limit(
    count: int, limit: int, wanted: int
) -> None:
    assert bucket(count, limit) == wanted


def sequences_of(made: list[Row]) -> list[Sequence]:
    sequences, page = [], 30
    for number, row in enumerate(made):
        sequence = Sequence((1,) * (row.num_past + 1), TextGrammar(), lambda *_: None)
        sequence.num_launched = 0
        sequence.pages = list(range(page, page + row.num_past // PAGE + 1 + number % 2))
        page += len(sequence.pages)
        sequence.lane = (number * 5 + 2) % MAX_ROWS
        if row.prefix >= 0:
            sequence.prefix = Place(row.prefix, 1 + 2 * row.prefix)
        sequences.append(sequence)
    return sequences


@settings(max_examples=200, deadline=None)
@given(rows)
def test_padding_changes_no_real_row_and_names_nobodys_page(made: list[Row]) -> None:
    sequences = sequences_of(made)
    step_rows = StepRows(sequences, PAGE, PREFIX_LEN)
    plain = step_rows.decode_fields()
    padded = step_rows.fixed_fields(
        max_rows=MAX_ROWS, max_pages=MAX_PAGES, max_prefixes=MAX_PREFIXES
    )
    count, width = len(made), plain[-1].shape[1]
    *grown, table, prefix_starts, row_prefix = padded
    num_rows = bucket(count, MAX_ROWS)
    num_prefixes = len({row.prefix for row in made if row.prefix >= 0})
    assert table.shape == (num_rows, bucket(width, MAX_PAGES))
    assert row_prefix.shape == (num_rows,)
    assert prefix_starts.shape == (bucket(num_prefixes, MAX_PREFIXES),)
    assert all(len(field) == num_rows for field in grown)
    for before, after in zip(plain[:-1], grown, strict=True):
        assert after.dtype == np.int64
        assert np.array_equal(after[:count], before)
    named = dict(zip(FIELDS, padded, strict=True))
    assert named["lanes"][count:].tolist() == [MAX_ROWS] * (num_rows - count)
    write_slots = named["write_slots"]
    assert (write_slots[count:] // PAGE == RESERVED_PAGE).all()
    assert np.array_equal(table[:count, :width], plain[-1])
    assert (table[count:] == RESERVED_PAGE).all()
    assert (table[:count, width:] == table[:count, :1]).all()
    for row, sequence in enumerate(sequences):
        if sequence.prefix is None:
            assert row_prefix[row] == -1
        else:
            assert prefix_starts[row_prefix[row]] == sequence.prefix.number * PAGE
    assert (row_prefix[count:] == -1).all()


def check(world: World, num_padding: int, num_extra_prefixes: int) -> None:
    """Compare with dense attention: padding rows are on page 0, some prefixes are read by none."""
    used = sorted({row.prefix for row in world.rows if row.prefix >= 0})
    starts = [world.starts[p] for p in used]
    starts += [starts[0] if starts else 0] * (num_extra_prefixes + (not starts))
    count = len(world.rows)
    writes = [world.slot(n, row.num_past) for n, row in enumerate(world.rows)]
    table = [*world.pages, *[[0] * world.num_pages] * num_padding]
    inputs = attend_inputs(
        write_slots=torch.tensor(writes + [0] * num_padding)[:, None],
        page_table=torch.tensor(table),
        private_positions=torch.tensor([[r.num_past] for r in world.rows] + [[0]] * num_padding),
        prefix_starts=torch.tensor(starts),
        row_prefix=torch.tensor(
            [used.index(r.prefix) if r.prefix >= 0 else -1 for r in world.rows] + [-1] * num_padding
        ),
    )
    attend = CapturedRowsAttend(world.cache, inputs)
    for layer in range(2):
        shape = (count + num_padding, 1)
        q = world.noise(*shape, world.heads, WIDTH)
        k, v = (world.noise(*shape, world.kv_heads, WIDTH) for _ in range(2))
        wanted = [world.dense(layer, number, q, k, v) for number in range(count)]
        got = attend(layer, q, k, v)
        assert got.shape == q.shape
        assert got.dtype == world.dtype
        assert torch.isfinite(got).all()
        for number in range(count):
            error = (got[number].double() - wanted[number]).abs().max()
            assert error < TOLERANCES[world.dtype], (layer, number)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@settings(max_examples=40, deadline=None)
@given(made=rows, padding=st.integers(0, 3), extra=st.integers(0, 2), seed=st.integers(0, 99))
def test_prefixes_as_data_match_dense_attention(
    heads: int, kv_heads: int, made: list[Row], padding: int, extra: int, seed: int
) -> None:
    check(World(heads, kv_heads, made, torch.float32, seed), padding, extra)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_within_its_rounding(
    heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    check(World(heads, kv_heads, [Row(-1, 3, 1), Row(0, 9, 1), Row(2, 0, 1)], dtype), 1, 1)


def test_the_first_run_is_eager_the_second_captured_and_later_ones_replayed() -> None:
    log: list[str] = []

    class Capturing:
        def capture(self, op: object) -> object:
            log.append("capture")
            return lambda: log.append("replay")

    graphs = Graphs(Capturing())
    for _ in range(4):
        graphs.run("key", lambda: log.append("eager"))
    graphs.run("other", lambda: log.append("eager"))
    assert log == ["eager", "capture", "replay", "replay", "replay", "eager"]
    assert graphs.num_replays == 3


def test_what_does_not_change_with_the_step_is_all_that_a_replay_remembers() -> None:
    """Other frames, lanes, lengths, kinds and adapters through the graphs of the first ones."""
    sizes = {**SMALL, "num_private_pages": 100, "num_lora_slots": 2, "max_lora_rank": 4}
    harness = Harness(seed=1, config=EngineConfig(**sizes), can_capture=True)
    adapters = [adapter_of(1), adapter_of(2), adapter_of(3), None]
    makes = [
        lambda n: CycleGrammar(True, 2 + n),
        lambda n: CycleGrammar(False, 3 + n),
        lambda n: TextGrammar(5 + n, forbidden=(0, n)),
        lambda n: ParityGrammar(4 + n),
    ]
    for turn in range(12):
        asked = []
        for number in range(1 + turn % 4):
            make, prompt = makes[(turn + number) % 4], (turn + 1, number + 1)
            frame = None if (turn + number) % 5 == 4 else (turn * 3 + number) % 4
            adapter = adapters[(turn + number) % 4] if turn % 3 == 2 else None
            state = make(number)
            harness.submit(state, prompt=prompt, frame=frame, adapter=adapter)
            asked.append((state, prompt, frame, adapter, make(number)))
        while harness.engine.has_work:
            harness.engine.tick()
        for state, prompt, frame, adapter, fresh in asked:
            wanted = expected_tokens(prompt, frame, fresh, adapter=adapter)
            assert key_of(state.tokens) == key_of(wanted)
        harness.settle()
    assert harness.engine.graphs.num_replays > 50
    harness.run()
