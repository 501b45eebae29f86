"""What a step's forward reads, computed on the host from the sequences' launched clocks.

Plain numpy: a step's metadata is built in a few arrays and moved in one copy, because many
tiny tensor operations cost more than the forward hides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from photon_ros.engine.attention import RowGroup
from photon_ros.engine.page_pool import RESERVED_PAGE
from photon_ros.engine.scheduler import StepPlan
from photon_ros.engine.sequence import Sequence

Int64 = NDArray[np.int64]


def stage_fields(plan: StepPlan, page_size: int, prefix_len: int) -> list[Int64]:
    """Return the fields of ForwardInputs, in its order, for a step about to be launched."""
    sequences = plan.sequences
    lanes = np.array([sequence.lane for sequence in sequences], dtype=np.int64)
    if plan.kind == "decode":
        lengths = np.ones(len(sequences), dtype=np.int64)
        starts = np.array([s.private_position() for s in sequences], dtype=np.int64)
        token_ids = np.zeros((len(sequences), 1), dtype=np.int64)  # the relay is read instead
    else:
        lengths = np.array([len(s.prompt_ids) for s in sequences], dtype=np.int64)
        starts = np.array([s.prompt_start for s in sequences], dtype=np.int64)
        token_ids = np.zeros((len(sequences), int(lengths.max())), dtype=np.int64)
        for row, sequence in enumerate(sequences):
            token_ids[row, : lengths[row]] = sequence.prompt_ids
    steps = np.arange(token_ids.shape[1])
    private = starts[:, None] + steps
    is_real = steps < lengths[:, None]
    page_table = _page_table(sequences, int((starts + lengths).max()), page_size)
    page_index = np.minimum(private // page_size, page_table.shape[1] - 1)
    pages = np.take_along_axis(page_table, page_index, axis=1)
    pages = np.where(is_real, pages, RESERVED_PAGE)
    write_slots = pages * page_size + private % page_size
    prefix_lens = np.array([0 if s.prefix is None else prefix_len for s in sequences])
    # Padding tokens stay inside the context: the rotary table ends there.
    last = lengths[:, None] - 1 + starts[:, None]
    positions = prefix_lens[:, None] + np.minimum(private, last)
    return [lanes, lengths - 1, token_ids, positions, private, write_slots, page_table]


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


def sampled_positions(plan: StepPlan, prefix_len: int) -> list[int]:
    """Return the absolute position of the token each row of a launched step samples."""
    return [(0 if s.prefix is None else prefix_len) + s.private_position() for s in plan.sequences]
