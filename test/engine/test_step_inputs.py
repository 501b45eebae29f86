"""What a step's forward reads, against a reference that does one token at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from grammars import TextGrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from photon_ros.engine.page_pool import RESERVED_PAGE
from photon_ros.engine.sequence import Sequence
from photon_ros.engine.shared_places import Place
from photon_ros.engine.step_inputs import RowGroup, StepRows, row_groups, sampled_positions

PREFIX_LEN = 7
FIELDS = [
    "lanes", "lora_slots", "last_index", "token_ids", "positions", "private_positions",
    "write_slots", "page_table",
]  # fmt: skip


def stage_fields(sequences: list[Sequence], kind: str, page_size: int) -> list[np.ndarray]:
    step_rows = StepRows(sequences, page_size, PREFIX_LEN)
    return step_rows.prefill_fields() if kind == "prefill" else step_rows.decode_fields()


@dataclass(frozen=True)
class Row:
    """One row to be: a prompt, how far it is, and how much room it was given."""

    prompt: tuple[int, ...]
    num_launched: int  # 0 in a prefill
    num_spare_pages: int
    prefix_page: int | None


rows = st.builds(
    Row,
    st.lists(st.integers(1, 50), min_size=1, max_size=12).map(tuple),
    st.integers(1, 20),
    st.integers(0, 2),
    st.sampled_from([None, 1, 4]),
)


def sequences_of(made: list[Row], kind: str, page_size: int) -> list[Sequence]:
    sequences, next_page = [], 100
    for lane, row in enumerate(made):
        sequence = Sequence(row.prompt, TextGrammar(), lambda *_: None)
        sequence.num_launched = row.num_launched if kind == "decode" else 0
        end = len(row.prompt) + max(sequence.num_launched - 1, 0) + (kind == "decode")
        count = -(-end // page_size) + row.num_spare_pages
        sequence.pages = list(range(next_page + count - 1, next_page - 1, -1))  # descending
        next_page += count + 3
        sequence.lane = (lane * 5 + 3) % 64
        if row.prefix_page is not None:
            sequence.prefix = Place("frame", row.prefix_page)
        sequences.append(sequence)
    return sequences


def reference(sequences: list[Sequence], kind: str, page_size: int) -> dict[str, object]:
    """Say for each token what belongs to it; padding is not listed."""
    tokens = []
    for row, s in enumerate(sequences):
        if kind == "prefill":
            places = list(enumerate(range(len(s.prompt_ids))))
        else:
            places = [(0, len(s.prompt_ids) + s.num_launched - 1)]
        for column, private in places:
            tokens.append(
                {
                    "at": (row, column),
                    "private": private,
                    "position": private + (PREFIX_LEN if s.prefix is not None else 0),
                    "slot": s.pages[private // page_size] * page_size + private % page_size,
                    "id": s.prompt_ids[column] if kind == "prefill" else None,
                }
            )
    return {"tokens": tokens, "lanes": [s.lane for s in sequences]}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(rows, min_size=1, max_size=6),
    st.sampled_from(["prefill", "decode"]),
    st.integers(1, 5),
)
def test_every_token_gets_its_page_slot_and_position(
    made: list[Row], kind: str, page_size: int
) -> None:
    sequences = sequences_of(made, kind, page_size)
    fields = dict(zip(FIELDS, stage_fields(sequences, kind, page_size), strict=True))
    wanted = reference(sequences, kind, page_size)
    assert fields["lanes"].tolist() == wanted["lanes"]
    real = np.zeros(fields["positions"].shape, dtype=bool)
    for token in wanted["tokens"]:
        at = token["at"]
        real[at] = True
        assert fields["private_positions"][at] == token["private"]
        assert fields["positions"][at] == token["position"]
        assert fields["write_slots"][at] == token["slot"]
        if kind == "prefill":
            assert fields["token_ids"][at] == token["id"]
    lasts = [fields["last_index"][row] for row in range(len(sequences))]
    assert lasts == [row * real.shape[1] + count - 1 for row, count in enumerate(real.sum(axis=1))]
    check_padding(fields, real, page_size)
    check_page_table(fields["page_table"], sequences, fields, real, page_size)
    assert all(field.dtype == np.int64 for field in fields.values())


def check_padding(fields: dict[str, np.ndarray], real: np.ndarray, page_size: int) -> None:
    """Padding writes to the reserved page only, and its positions are ones of its row."""
    padded = ~real
    assert (fields["write_slots"][padded] // page_size == RESERVED_PAGE).all()
    assert (fields["token_ids"][padded] == 0).all()
    for row in range(len(real)):
        last = fields["positions"][row][real[row]].max()
        assert (fields["positions"][row][padded[row]] == last).all()


def check_page_table(
    table: np.ndarray,
    sequences: list[Sequence],
    fields: dict[str, np.ndarray],
    real: np.ndarray,
    page_size: int,
) -> None:
    """It names each position up to the row's last, and beyond only pages of its own."""
    longest = 0
    for row, sequence in enumerate(sequences):
        last = int(fields["private_positions"][row][real[row]].max())
        longest = max(longest, last + 1)
        used = last // page_size + 1
        assert table[row, :used].tolist() == sequence.pages[:used]
        assert set(table[row, used:].tolist()) <= set(sequence.pages)
    assert table.shape == (len(sequences), -(-longest // page_size))


def test_padding_of_a_ragged_prefill_is_on_the_reserved_page() -> None:
    made = [Row((9, 8, 7, 6, 5), 1, 0, None), Row((4,), 1, 2, 1)]
    sequences = sequences_of(made, "prefill", 2)
    fields = dict(zip(FIELDS, stage_fields(sequences, "prefill", 2), strict=True))
    assert fields["token_ids"].tolist() == [[9, 8, 7, 6, 5], [4, 0, 0, 0, 0]]
    assert fields["positions"].tolist() == [[0, 1, 2, 3, 4], [7, 7, 7, 7, 7]]
    assert (fields["write_slots"][1, 1:] < 2).all()
    assert fields["last_index"].tolist() == [4, 5]


@given(st.lists(st.sampled_from([None, 1, 4, 9]), min_size=1, max_size=10), st.integers(1, 4))
def test_groups_are_the_runs_of_rows_with_one_prefix(pages: list[int | None], size: int) -> None:
    sequences = [
        Sequence((1,), TextGrammar(), lambda *_: None, prefix=None if p is None else Place(p, p))
        for p in pages
    ]
    groups = row_groups(sequences, size)
    assert [row for g in groups for row in range(g.begin, g.end)] == list(range(len(pages)))
    for group in groups:
        for row in range(group.begin, group.end):
            page = pages[row]
            assert group.prefix_start == (-1 if page is None else page * size)
    assert all(a.prefix_start != b.prefix_start for a, b in itertools.pairwise(groups))


def test_text_rows_are_a_group_of_their_own() -> None:
    made = [Row((1,), 1, 0, None), Row((1,), 1, 0, 4), Row((1,), 1, 0, 4)]
    sequences = sequences_of(made, "prefill", 4)
    assert row_groups(sequences, 4) == [RowGroup(-1, 0, 1), RowGroup(16, 1, 3)]


@pytest.mark.parametrize("kind", ["prefill", "decode"])
@settings(deadline=None)
@given(made=st.lists(rows, min_size=1, max_size=5))
def test_a_sampled_token_has_the_position_at_which_it_would_be_fed(
    kind: str, made: list[Row]
) -> None:
    sequences = sequences_of(made, kind, 4)
    for sequence in sequences:  # as the engine does at launch
        sequence.num_launched += 1
        sequence.pages = [*sequence.pages, 900, 901]
    sampled = sampled_positions(sequences, PREFIX_LEN)
    fed = dict(zip(FIELDS, stage_fields(sequences, "decode", 4), strict=True))
    assert sampled == fed["positions"][:, 0].tolist()
