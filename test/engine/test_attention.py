"""Paged attention over shared prefixes is dense attention with an explicit mask."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import pytest
import torch
from hash_model import SPEC
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photon_ros.engine.attention import PrefixAttend, RowsAttend
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.kv_cache import KVCache
from photon_ros.engine.page_pool import PagePool
from photon_ros.engine.step_inputs import ForwardInputs, RowGroup

PAGE, PREFIX_LEN, WIDTH = 4, 6, 8
HEADS = [(4, 4), (4, 2), (6, 1)]
TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Row:
    """A row: its prefix (-1: none), private positions already written, new tokens."""

    prefix: int
    num_past: int
    num_new: int


def attend_inputs(**fields: Tensor) -> ForwardInputs:
    """Return the inputs of which attention reads these fields."""
    unread = torch.empty(0, dtype=torch.int64)
    names = ("lanes", "lora_slots", "last_index", "token_ids", "positions")
    return ForwardInputs(**dict.fromkeys(names, unread), **fields)


class World:
    """A cache filled with noise, and the plain keys and values of every row beside it."""

    def __init__(
        self, heads: int, kv_heads: int, rows: Seq[Row], dtype: torch.dtype, seed: int = 0
    ) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.heads, self.kv_heads, self.rows, self.dtype = heads, kv_heads, list(rows), dtype
        pool = PagePool(num_private_pages=40, max_prefixes=3, pages_per_prefix=2)
        spec = type(SPEC)(**{
            **{name: getattr(SPEC, name) for name in SPEC.__slots__},
            "num_layers": 2, "num_kv_heads": kv_heads, "head_dim": WIDTH, "dtype": dtype,
            "prefix_len": PREFIX_LEN,
        })  # fmt: skip
        self.cache = KVCache(CpuDevice(), spec, pool, PAGE)
        self.cache.keys.copy_(self.noise(*self.cache.keys.shape))
        self.cache.values.copy_(self.noise(*self.cache.values.shape))
        self.starts = [pool.prefixes.hold(i).number * PAGE for i in range(3)]
        self.num_new = max(row.num_new for row in rows)
        longest = max(row.num_past + self.num_new for row in rows)
        self.num_pages = -(-longest // PAGE)
        self.pages = [pool.take_pages(self.num_pages) for _ in rows]

    def noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random).to(self.dtype)

    def slot(self, row: int, position: int) -> int:
        return self.pages[row][position // PAGE] * PAGE + position % PAGE

    def attend(self) -> RowsAttend:
        """As the engine builds it: padding writes to page 0, rows with one prefix are a group."""
        writes, places = [], []
        for number, row in enumerate(self.rows):
            for t in range(self.num_new):
                place = row.num_past + t
                places.append(place)
                writes.append(self.slot(number, place) if t < row.num_new else place % PAGE)
        groups: list[RowGroup] = []
        for number, row in enumerate(self.rows):
            start = -1 if row.prefix < 0 else self.starts[row.prefix]
            if groups and groups[-1].prefix_start == start:
                groups[-1] = RowGroup(start, groups[-1].begin, number + 1)
            else:
                groups.append(RowGroup(start, number, number + 1))
        inputs = attend_inputs(
            write_slots=torch.tensor(writes).view(len(self.rows), -1),
            page_table=torch.tensor(self.pages),
            private_positions=torch.tensor(places).view(len(self.rows), -1),
        )
        return RowsAttend(self.cache, inputs, groups)

    def dense(self, layer: int, number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return (num_new, H, E) in float64: every key in a row, every pair asked for."""
        row = self.rows[number]
        slots = [self.slot(number, p) for p in range(row.num_past)]
        prefix = [] if row.prefix < 0 else [self.starts[row.prefix] + i for i in range(PREFIX_LEN)]
        past = prefix + slots
        keys = torch.cat((self.cache.keys[layer, past], k[number, : row.num_new])).double()
        values = torch.cat((self.cache.values[layer, past], v[number, : row.num_new])).double()
        out = torch.zeros(row.num_new, self.heads, WIDTH, dtype=torch.float64)
        for t in range(row.num_new):
            seen = len(past) + t + 1
            for head in range(self.heads):
                of = head // (self.heads // self.kv_heads)
                scores = keys[:seen, of] @ q[number, t, head].double() / WIDTH**0.5
                out[t, head] = torch.softmax(scores, 0) @ values[:seen, of]
        return out


def check(world: World) -> None:
    attend = world.attend()
    rows, tokens = len(world.rows), world.num_new
    for layer in range(2):
        q = world.noise(rows, tokens, world.heads, WIDTH)
        k = world.noise(rows, tokens, world.kv_heads, WIDTH)
        v = world.noise(rows, tokens, world.kv_heads, WIDTH)
        wanted = [world.dense(layer, number, q, k, v) for number in range(rows)]
        got = attend(layer, q, k, v)
        assert got.shape == q.shape
        assert got.dtype == world.dtype
        for number, row in enumerate(world.rows):
            error = (got[number, : row.num_new].double() - wanted[number]).abs().max()
            assert error < TOLERANCES[world.dtype], (layer, number, row)


row_lists = st.lists(
    st.builds(Row, st.integers(-1, 2), st.integers(0, 9), st.just(1)), min_size=1, max_size=6
)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@settings(max_examples=40, deadline=None)
@given(rows=row_lists, seed=st.integers(0, 99))
def test_decode_rows_of_any_mix_match_dense_attention(
    heads: int, kv_heads: int, rows: list[Row], seed: int
) -> None:
    check(World(heads, kv_heads, sorted(rows, key=lambda row: row.prefix), torch.float32, seed))


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 7)), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_ragged_prompts_match_dense_attention(
    heads: int, kv_heads: int, lengths: list[tuple[int, int]], seed: int
) -> None:
    rows = [Row(prefix, 0, num_new) for prefix, num_new in lengths]
    check(World(heads, kv_heads, rows, torch.float32, seed))


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_within_its_rounding(
    heads: int, kv_heads: int, dtype: torch.dtype
) -> None:
    rows = [Row(-1, 3, 1), Row(0, 9, 1), Row(0, 0, 1), Row(2, 5, 1)]
    check(World(heads, kv_heads, rows, dtype))


def test_rows_resumed_with_several_tokens_see_their_past() -> None:
    check(World(4, 2, [Row(-1, 5, 3), Row(1, 2, 4), Row(1, 0, 1)], torch.float32))


def test_rows_with_one_prefix_that_are_not_neighbours_are_right_too() -> None:
    check(World(4, 2, [Row(0, 3, 1), Row(1, 4, 1), Row(0, 2, 1), Row(-1, 1, 1)], torch.float32))


def test_very_large_scores_do_not_overflow() -> None:
    world = World(4, 2, [Row(0, 4, 1), Row(-1, 2, 1)], torch.float32)
    world.cache.keys.mul_(1000.0)
    q = world.noise(2, 1, 4, WIDTH) * 30
    k, v = world.noise(2, 1, 2, WIDTH), world.noise(2, 1, 2, WIDTH)
    wanted = [world.dense(0, number, q, k, v) for number in range(2)]
    got = world.attend()(0, q, k, v)
    assert torch.isfinite(got).all()
    for number in range(2):
        assert (got[number].double() - wanted[number]).abs().max() < 1e-3


def test_rows_write_their_own_positions_and_the_reserved_page_and_nothing_else() -> None:
    rows = [Row(-1, 0, 5), Row(0, 0, 2), Row(0, 0, 1), Row(2, 0, 3)]
    world = World(4, 2, rows, torch.float32)
    before_k, before_v = world.cache.keys.clone(), world.cache.values.clone()
    shape = (len(rows), world.num_new, 2, WIDTH)
    k, v = world.noise(*shape), world.noise(*shape)
    world.attend()(1, world.noise(len(rows), world.num_new, 4, WIDTH), k, v)
    assert torch.equal(world.cache.keys[0], before_k[0])
    for number, row in enumerate(rows):
        for t in range(row.num_new):
            slot = world.slot(number, t)
            assert torch.equal(world.cache.keys[1, slot], k[number, t])
            assert torch.equal(world.cache.values[1, slot], v[number, t])
            before_k[1, slot], before_v[1, slot] = k[number, t], v[number, t]
    assert torch.equal(world.cache.keys[1, PAGE:], before_k[1, PAGE:])
    assert torch.equal(world.cache.values[1, PAGE:], before_v[1, PAGE:])


def test_a_row_never_sees_the_pages_of_another() -> None:
    rows = [Row(0, 3, 1), Row(0, 7, 1)]
    world = World(4, 2, rows, torch.float32)
    q = world.noise(2, 1, 4, WIDTH)
    k, v = world.noise(2, 1, 2, WIDTH), world.noise(2, 1, 2, WIDTH)
    first = world.attend()(0, q, k, v).clone()
    for page in world.pages[1]:
        world.cache.values[0, page * PAGE : (page + 1) * PAGE] = 1e6
    assert torch.equal(world.attend()(0, q, k, v)[0], first[0])


def test_what_lies_beyond_a_rows_position_is_never_seen() -> None:
    world = World(4, 2, [Row(-1, 2, 1), Row(1, 9, 1)], torch.float32)
    q = world.noise(2, 1, 4, WIDTH)
    k, v = world.noise(2, 1, 2, WIDTH), world.noise(2, 1, 2, WIDTH)
    first = world.attend()(0, q, k, v).clone()
    for position in range(3, world.num_pages * PAGE):
        world.cache.values[0, world.slot(0, position)] = 1e6
    assert torch.equal(world.attend()(0, q, k, v)[0], first[0])


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_every_position_of_a_prefix_sees_every_other_one(heads: int, kv_heads: int) -> None:
    world = World(heads, kv_heads, [Row(-1, 0, 1)], torch.float32)
    starts = [world.starts[2], world.starts[0]]
    q = world.noise(2, PREFIX_LEN, heads, WIDTH)
    k = world.noise(2, PREFIX_LEN, kv_heads, WIDTH)
    v = world.noise(2, PREFIX_LEN, kv_heads, WIDTH)
    got = PrefixAttend(world.cache, starts)(1, q, k, v)
    for frame in range(2):
        for head in range(heads):
            of = head // (heads // kv_heads)
            scores = q[frame, :, head].double() @ k[frame, :, of].double().T / WIDTH**0.5
            wanted = torch.softmax(scores, -1) @ v[frame, :, of].double()
            assert (got[frame, :, head].double() - wanted).abs().max() < 2e-6


def test_prefixes_are_written_to_their_extents_and_nowhere_else() -> None:
    world = World(4, 2, [Row(-1, 0, 1)], torch.float32)
    before = world.cache.keys.clone()
    k = world.noise(2, PREFIX_LEN, 2, WIDTH)
    starts = [world.starts[2], world.starts[0]]
    PrefixAttend(world.cache, starts)(0, world.noise(2, PREFIX_LEN, 4, WIDTH), k, k)
    for frame, start in enumerate(starts):
        extent = slice(start, start + PREFIX_LEN)
        assert torch.equal(world.cache.keys[0, extent], k[frame])
        assert torch.equal(world.cache.values[0, extent], k[frame])
        before[0, extent] = k[frame]
    assert torch.equal(world.cache.keys, before)
