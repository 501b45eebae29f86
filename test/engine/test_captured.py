"""Steps of fixed shape: the same attention as the eager step, whatever the padding."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from grammars import CycleGrammar, TextGrammar
from harness import SMALL, key_of
from hash_model import HashModel, crops_of, expected_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.engine.attention import CapturedRowsAttend, RowsAttend
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.engine import Engine
from photon_ros.engine.graphs import Graphs
from photon_ros.engine.sequence import PrefixSource, Sequence
from photon_ros.engine.shared_places import Place
from photon_ros.engine.step_inputs import ForwardInputs, StepRows, bucket

FIELDS = [field.name for field in fields(ForwardInputs)]
PREFIX_LEN, PAGE, HEADS, WIDTH = 6, 4, 4, 8
EXTENT_PAGES = 2


class Cache:
    """Random keys and values: whatever is there must be read alike by both."""

    page_size = PAGE
    prefix_len = PREFIX_LEN

    def __init__(self, kv_heads: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        both = torch.randn((1, 2 * kv_heads, 60 * PAGE, WIDTH), generator=generator)
        self.layers = both.unbind(0)
        self.keys, self.values = both.transpose(1, 2).chunk(2, dim=2)


def step_rows(made: list[tuple[int | None, int]]) -> StepRows:
    """Make decoding rows of (prefix number, tokens so far), ordered by prefix."""
    sequences, page = [], 20
    for lane, (prefix, length) in enumerate(
        sorted(made, key=lambda r: -1 if r[0] is None else r[0])
    ):
        sequence = Sequence((1,) * length, TextGrammar(), lambda *_: None)
        sequence.num_launched, sequence.lane = 1, lane
        count = (length + 1) // PAGE + 1
        sequence.pages = list(range(page, page + count))
        page += count
        if prefix is not None:
            sequence.prefix = Place(prefix, 1 + prefix * EXTENT_PAGES)
        sequences.append(sequence)
    return StepRows(sequences, PAGE, PREFIX_LEN)


def tensors(arrays: list) -> ForwardInputs:
    return ForwardInputs(*[torch.from_numpy(array) for array in arrays])


@settings(deadline=None, max_examples=80)
@given(
    st.lists(
        st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(1, 9)), min_size=1, max_size=7
    ),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 99),
)
def test_captured_attention_equals_the_eager_one(
    made: list[tuple[int | None, int]], kv_heads: int, seed: int
) -> None:
    rows = step_rows(made)
    count = len(made)
    generator = torch.Generator().manual_seed(seed + 1)
    q = torch.randn((count, 1, HEADS, WIDTH), generator=generator)
    k, v = torch.randn((2, count, 1, kv_heads, WIDTH), generator=generator)
    eager_cache, captured_cache = Cache(kv_heads, seed), Cache(kv_heads, seed)
    eager = RowsAttend(eager_cache, tensors(rows.decode_fields()), rows.groups)
    padded = tensors(rows.fixed_fields(max_rows=8, max_pages=16, max_prefixes=4))
    captured = CapturedRowsAttend(captured_cache, padded)
    num_padding = len(padded.lanes) - count

    def grown(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, torch.randn((num_padding, *x.shape[1:]), generator=generator)))

    expected = eager(0, q, k, v)
    got = captured(0, grown(q), grown(k), grown(v))
    torch.testing.assert_close(got[:count], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(captured_cache.keys[0, PAGE:], eager_cache.keys[0, PAGE:])
    torch.testing.assert_close(captured_cache.values[0, PAGE:], eager_cache.values[0, PAGE:])


@given(
    st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(1, 9)), min_size=1, max_size=8)
)
def test_padding_rows_touch_only_the_reserved_page_and_the_paddings_lane(
    made: list[tuple[int | None, int]],
) -> None:
    rows = step_rows(made)
    grown_fields = rows.fixed_fields(max_rows=8, max_pages=16, max_prefixes=4)
    padded = dict(zip(FIELDS, grown_fields, strict=True))
    lanes, positions, write_slots = padded["lanes"], padded["positions"], padded["write_slots"]
    table, starts, row_prefix = (
        padded["page_table"],
        padded["prefix_starts"],
        padded["row_prefix"],
    )
    count = len(made)
    assert len(lanes) in (1, 2, 4, 8)
    assert len(lanes) >= count
    assert lanes[:count].tolist() == list(range(count))
    assert (lanes[count:] == 8).all()
    assert (write_slots[count:] < PAGE).all()
    assert (table[count:] == 0).all()
    assert (positions[count:] == 0).all()
    for row in range(count):
        prefix = rows.sequences[row].prefix
        start = starts[row_prefix[row]] if row_prefix[row] >= 0 else None
        assert start == (None if prefix is None else prefix.number * PAGE)


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [(0, 8, 1), (1, 8, 1), (2, 8, 2), (3, 8, 4), (5, 8, 8), (5, 6, 6), (9, 12, 12), (12, 12, 12)],
)
def test_buckets_are_powers_of_two_that_end_at_the_limit(
    count: int, limit: int, expected: int
) -> None:
    assert bucket(count, limit) == expected


class CountingDevice(CpuDevice):
    """Counts captures; a replay runs the captured operation.

    As a GPU does, it captures only what fits its memory, and queues nothing when it fails.
    """

    can_capture = True

    def __init__(self, room: int = 1_000_000) -> None:
        super().__init__()
        self.num_captures = 0
        self.room = room

    def capture(self, op):
        self.num_captures += 1
        if self.room < self.num_captures:
            raise torch.cuda.OutOfMemoryError("planted: no room for a graph")
        return op


def test_a_key_is_run_then_captured_then_replayed() -> None:
    device = CountingDevice()
    graphs = Graphs(device)
    ran: list[str] = []
    for turn in range(4):
        graphs.run("a", lambda turn=turn: ran.append(f"a{turn}"))
    assert ran == ["a0", "a1", "a1", "a1"]  # replays do again what the captured call did
    graphs.run("b", lambda: ran.append("b"))
    assert (device.num_captures, graphs.num_replays) == (1, 3)


def test_after_a_failed_capture_all_that_is_not_captured_runs_eagerly_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = CountingDevice(room=1)
    graphs = Graphs(device)
    ran: list[str] = []
    for turn in range(5):
        for key in "abc":
            graphs.run(key, lambda key=key, turn=turn: ran.append(f"{key}{turn}"))
    assert ran[::3] == ["a0", "a1", "a1", "a1", "a1"]
    assert ran[1::3] == ["b0", "b1", "b2", "b3", "b4"], "each turn runs what it was given"
    assert ran[2::3] == ["c0", "c1", "c2", "c3", "c4"]
    assert (device.num_captures, graphs.num_replays) == (2, 4)
    (warning,) = caplog.records
    assert "could not be captured; from now on new ones run eagerly" in warning.message
    assert "planted" in caplog.text


def test_an_operation_that_fails_while_it_is_captured_fails_its_own_run() -> None:
    graphs = Graphs(CountingDevice(room=0))
    graphs.run("a", lambda: None)
    with pytest.raises(ZeroDivisionError):
        graphs.run("a", lambda: 1 / 0)


@pytest.mark.parametrize("room", [0, 2])
def test_an_engine_whose_steps_cannot_be_captured_gives_the_same_tokens(room: int) -> None:
    device = CountingDevice(room)
    engine = Engine(HashModel(), device, EngineConfig(**SMALL))
    asked, outcomes = [], []
    for number in range(6):
        state, prompt, frame = CycleGrammar(True, 4), (number + 1, 3), number % 2
        source = PrefixSource(frame, crops_of(frame))
        on_done = lambda sequence, outcome: outcomes.append(outcome)  # noqa: E731
        engine.submit(Sequence(prompt, state, on_done, source=source))
        asked.append((state, prompt, frame))
    while engine.has_work:
        engine.tick()
    assert [outcome.error for outcome in outcomes] == [None] * 6
    for state, prompt, frame in asked:
        wanted = expected_tokens(prompt, frame, CycleGrammar(True, 4))
        assert key_of(state.tokens) == key_of(wanted)
    assert device.num_captures == room + 1
    assert (engine.graphs.num_replays > 0) == (room > 0)
    assert engine.stats.num_faults == 0
