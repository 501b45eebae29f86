"""What a step's forward reads, computed on the host from the sequences' launched clocks.

Plain numpy: a step's metadata is built in a few arrays and moved in one copy, because many
tiny tensor operations cost more than the forward hides.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from photon_ros.engine.attention import RowGroup
from photon_ros.engine.page_pool import RESERVED_PAGE
from photon_ros.engine.sequence import Sequence

Int64 = NDArray[np.int64]


class StepRows:
    """What stays the same from step to step while the rows of a batch are the same sequences.

    Attributes:
        sequences: the rows, in order.
        lanes, prefix_lens, lora_slots: (rows,) int64.
        has_adapters: some row has one.
        groups: runs of rows that read the same prefix.
    """

    def __init__(self, sequences: list[Sequence], page_size: int, prefix_len: int) -> None:
        self.sequences = list(sequences)
        self._page_size = page_size
        self.lanes = np.array([s.lane for s in sequences], dtype=np.int64)
        self.prefix_lens = np.array(
            [0 if s.prefix is None else prefix_len for s in sequences], dtype=np.int64
        )
        self.lora_slots = np.array([s.lora_slot for s in sequences], dtype=np.int64)
        self.has_adapters = bool(self.lora_slots.any())
        self.groups = row_groups(sequences, page_size)
        most = max(len(s.pages) for s in sequences)
        self._page_table = _page_table(sequences, most * page_size, page_size)
        self._first_tokens = np.zeros((len(sequences), 1), dtype=np.int64)
        self._first_index = np.zeros(len(sequences), dtype=np.int64)
        self._rows = np.arange(len(sequences))

    def decode_fields(self) -> list[Int64]:
        """Return the fields of ForwardInputs, in its order, for the next decode step."""
        page_size = self._page_size
        private = np.array([s.private_position() for s in self.sequences], dtype=np.int64)
        pages = self._page_table[self._rows, private // page_size]
        write_slots = pages * page_size + private % page_size
        width = int(private.max()) // page_size + 1
        return [
            self.lanes,
            self.lora_slots,
            self._first_index,
            self._first_tokens,  # the relay is read instead
            (self.prefix_lens + private)[:, None],
            private[:, None],
            write_slots[:, None],
            self._page_table[:, :width],
        ]

    def prefill_fields(self) -> list[Int64]:
        """Return the fields of ForwardInputs, in its order, for the prompts of all rows."""
        page_size, sequences = self._page_size, self.sequences
        lengths = np.array([len(s.prompt_ids) for s in sequences], dtype=np.int64)
        starts = np.array([s.prompt_start for s in sequences], dtype=np.int64)
        token_ids = np.zeros((len(sequences), int(lengths.max())), dtype=np.int64)
        for row, sequence in enumerate(sequences):
            token_ids[row, : lengths[row]] = sequence.prompt_ids
        steps = np.arange(token_ids.shape[1])
        private = starts[:, None] + steps
        is_real = steps < lengths[:, None]
        width = -(-int((starts + lengths).max()) // page_size)
        page_table = self._page_table[:, :width]
        pages = np.take_along_axis(page_table, np.minimum(private // page_size, width - 1), axis=1)
        pages = np.where(is_real, pages, RESERVED_PAGE)
        write_slots = pages * page_size + private % page_size
        # Padding tokens stay inside the context: the rotary table ends there.
        last = lengths[:, None] - 1 + starts[:, None]
        positions = self.prefix_lens[:, None] + np.minimum(private, last)
        return [
            self.lanes,
            self.lora_slots,
            lengths - 1,
            token_ids,
            positions,
            private,
            write_slots,
            page_table,
        ]


def _page_table(sequences: list[Sequence], num_positions: int, page_size: int) -> Int64:
    width = -(-num_positions // page_size)
    table = np.full((len(sequences), width), RESERVED_PAGE, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        pages = sequence.pages[:width]
        table[row, : len(pages)] = pages
    return table


def row_groups(sequences: list[Sequence], page_size: int) -> list[RowGroup]:
    """Return runs of neighbouring rows that read the same prefix extent."""
    groups: list[RowGroup] = []
    for row, sequence in enumerate(sequences):
        start = -1 if sequence.prefix is None else sequence.prefix.first_page * page_size
        if groups and groups[-1].prefix_start == start:
            groups[-1] = RowGroup(start, groups[-1].begin, row + 1)
        else:
            groups.append(RowGroup(start, row, row + 1))
    return groups


def sampled_positions(sequences: Seq[Sequence], prefix_len: int) -> list[int]:
    """Return the absolute position of the token each row of a launched step samples."""
    return [(0 if s.prefix is None else prefix_len) + s.private_position() for s in sequences]
