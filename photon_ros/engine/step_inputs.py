"""What a step's forward reads, computed on the host from the sequences' launched clocks.

Plain numpy: a step's metadata is built in a few arrays and moved in one copy, because many
tiny tensor operations cost more than the forward hides.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from photon_ros.engine.page_pool import RESERVED_PAGE
from photon_ros.engine.sequence import Sequence

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """Device views of what one forward of ``rows`` rows and T tokens reads, all int64.

    Attributes:
        lanes, lora_slots, last_index: (rows,) relay row, adapter slot, and place of each row's
            last real token among all ``rows * T``. ``lanes`` comes first: a captured sampling
            finds it by ``rows`` alone.
        token_ids, positions, private_positions, write_slots: (rows, T).
        page_table: (rows, num_pages), private pages, padded with the row's first: what nobody
            may see must be finite, and the reserved page need not be. Padding rows have only that.
        prefix_starts, row_prefix: (F,) and (rows,), in steps of fixed shape only: position slots
            of the prefixes, and which of them a row reads (-1: none).
    """

    lanes: Tensor
    lora_slots: Tensor
    last_index: Tensor
    token_ids: Tensor
    positions: Tensor
    private_positions: Tensor
    write_slots: Tensor
    page_table: Tensor
    prefix_starts: Tensor | None = None
    row_prefix: Tensor | None = None

    @property
    def is_fixed(self) -> bool:
        """True when the step has a fixed shape, so that it can be captured."""
        return self.row_prefix is not None


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows ``begin`` to ``end`` share the prefix at position slot ``prefix_start`` (-1: none)."""

    prefix_start: int
    begin: int
    end: int


class StepRows:
    """What stays the same from step to step while the rows of a batch are the same sequences.

    Attributes:
        sequences: the rows, in order.
        has_adapters: some row has one.
        groups: runs of rows that read the same prefix.
    """

    def __init__(self, sequences: list[Sequence], page_size: int, prefix_len: int) -> None:
        self.sequences = list(sequences)
        self._page_size = page_size
        self._lanes = np.array([s.lane for s in sequences], dtype=np.int64)
        prefix_lens = [[0 if s.prefix is None else prefix_len] for s in sequences]
        self._prefix_lens = np.array(prefix_lens, dtype=np.int64)
        self._lora_slots = np.array([s.lora_slot for s in sequences], dtype=np.int64)
        self.has_adapters = bool(self._lora_slots.any())
        self.groups = row_groups(sequences, page_size)
        shape = len(sequences), max(len(s.pages) for s in sequences)
        self._page_table = np.empty(shape, dtype=np.int64)
        for row, sequence in enumerate(sequences):
            self._page_table[row] = sequence.pages[0]
            self._page_table[row, : len(sequence.pages)] = sequence.pages
        self._rows = np.arange(len(sequences))

    def decode_fields(self) -> list[Int64]:
        """Return the fields of ForwardInputs, in its order, for the next decode step."""
        private = np.array([s.private_position() for s in self.sequences], dtype=np.int64)[:, None]
        no_tokens = np.zeros_like(private)  # the relay is read instead
        return self._fields(self._rows, no_tokens, private)

    def prefill_fields(self) -> list[Int64]:
        """Return the fields of ForwardInputs, in its order, for the prompts of all rows."""
        prompts = [s.prompt_ids for s in self.sequences]
        last = np.array([len(prompt) - 1 for prompt in prompts], dtype=np.int64)
        token_ids = np.zeros((len(prompts), int(last.max()) + 1), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            token_ids[row, : len(prompt)] = prompt
        steps = np.arange(token_ids.shape[1])
        starts = np.array([[s.prompt_start] for s in self.sequences], dtype=np.int64)
        # Padding tokens stay inside the context: the rotary table ends there.
        private = starts + np.minimum(steps, last[:, None])
        last_index = self._rows * len(steps) + last
        return self._fields(last_index, token_ids, private, is_padding=steps > last[:, None])

    def _fields(
        self,
        last_index: Int64,
        token_ids: Int64,
        private: Int64,
        is_padding: NDArray[np.bool_] | None = None,
    ) -> list[Int64]:
        page_size = self._page_size
        page_index = private // page_size
        pages = self._page_table[self._rows[:, None], page_index]
        if is_padding is not None:
            pages[is_padding] = RESERVED_PAGE
        width = int(page_index.max()) + 1
        return [
            self._lanes,
            self._lora_slots,
            last_index,
            token_ids,
            self._prefix_lens + private,
            private,
            pages * page_size + private % page_size,
            self._page_table[:, :width],
        ]

    def fixed_fields(self, *, max_rows: int, max_pages: int, max_prefixes: int) -> list[Int64]:
        """Return decode fields rounded up to a bucket, with prefix_starts and row_prefix behind.

        Buckets end at the maxima. Padding rows write to the reserved page, have lane
        ``max_rows``, which is nobody's, and nobody reads what they compute.
        """
        *fields, page_table = self.decode_fields()
        num_rows, num_pages = page_table.shape
        rows = bucket(num_rows, max_rows)
        padded = [_grown(field, rows) for field in fields]
        padded[0][num_rows:] = max_rows  # lanes; slot 0 and position 0 are on the reserved page
        table = np.full((rows, bucket(num_pages, max_pages)), RESERVED_PAGE, dtype=np.int64)
        table[:num_rows] = page_table[:, :1]
        table[:num_rows, :num_pages] = page_table
        starts = sorted({g.prefix_start for g in self.groups if g.prefix_start >= 0})
        num_prefixes = bucket(len(starts), max_prefixes)
        prefix_starts = np.full(num_prefixes, starts[0] if starts else 0, dtype=np.int64)
        prefix_starts[: len(starts)] = starts
        row_prefix = np.full(rows, -1, dtype=np.int64)
        for group in self.groups:
            if group.prefix_start >= 0:
                row_prefix[group.begin : group.end] = starts.index(group.prefix_start)
        return [*padded, table, prefix_starts, row_prefix]


def bucket(count: int, limit: int) -> int:
    """Return the smallest power of two that holds ``count``, or ``limit`` if that is less."""
    return min(limit, 1 << (max(1, count) - 1).bit_length())


def _grown(field: Int64, rows: int) -> Int64:
    """Return ``field`` with rows of zeros behind."""
    grown = np.zeros((rows, *field.shape[1:]), dtype=np.int64)
    grown[: len(field)] = field
    return grown


def row_groups(sequences: list[Sequence], page_size: int) -> list[RowGroup]:
    """Return runs of neighbouring rows that read the same prefix extent."""
    groups: list[RowGroup] = []
    for row, sequence in enumerate(sequences):
        start = -1 if sequence.prefix is None else sequence.prefix.number * page_size
        if groups and groups[-1].prefix_start == start:
            groups[-1] = RowGroup(start, groups[-1].begin, row + 1)
        else:
            groups.append(RowGroup(start, row, row + 1))
    return groups


def sampled_positions(sequences: Seq[Sequence], prefix_len: int) -> list[int]:
    """Return the absolute position of the token each row of a launched step samples."""
    return [(0 if s.prefix is None else prefix_len) + s.private_position() for s in sequences]
