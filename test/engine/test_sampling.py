"""Two ways to choose a token give one answer, and noise depends on nothing but its place."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hash_model import SPEC, HashModel
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_batch import (
    COORD,
    END,
    EOS,
    OBJECT_OR_END,
    SIZE,
    SPATIAL,
    WH,
    Batch,
    X,
    hash_batch,
    logits_of,
    table_batch,
)
from torch import Tensor

from photon_ros.engine.interfaces import Constraint

# -- spatial batches: pair and mask -----------------------------------------------------------


@pytest.mark.parametrize("mix", list(itertools.combinations_with_replacement(SPATIAL, 3)))
@pytest.mark.parametrize("seed", range(2))
def test_the_pair_path_and_the_mask_path_agree_on_every_spatial_mix(
    mix: tuple[Constraint, ...], seed: int
) -> None:
    fast, slow = hash_batch(3, seed), hash_batch(3, seed)
    quick = fast.run(list(mix))
    full = slow.run(list(mix), may_use_pair=False)
    assert fast.plan.pair == (0, 5)
    assert slow.plan.pair is None
    for a, b, constraint in zip(quick, full, mix, strict=True):
        assert (a.id, a.coord_bin, a.size_bins) == (b.id, b.coord_bin, b.size_bins)
        assert a.prob == pytest.approx(b.prob, abs=1e-6)
        assert a.bin_prob == pytest.approx(b.bin_prob, abs=1e-6)
        assert constraint.permits(a.id)
    for lane, token in enumerate(quick):
        if token.id != EOS:  # what follows the end is never read
            assert torch.equal(fast.relay[lane], slow.relay[lane])
    assert fast.model.num_vocab_rows == 0


@pytest.mark.parametrize("may_use_pair", [True, False])
@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-8, 8), st.floats(-8, 8)), min_size=1, max_size=5))
def test_the_score_is_the_probability_of_an_object_against_the_end(
    may_use_pair: bool, logits: list[tuple[float, float]]
) -> None:
    table = logits_of(*({EOS: end, COORD: coord, 9: 50.0} for end, coord in logits))
    tokens = table_batch(table).run([OBJECT_OR_END] * len(logits), may_use_pair=may_use_pair)
    for (end, coord), token in zip(table[:, [EOS, COORD]].tolist(), tokens, strict=True):
        assert token.id == (COORD if coord > end else EOS)
        low, high = sorted((end, coord))
        assert token.prob == pytest.approx(1 / (1 + math.exp(low - high)), abs=1e-6)


@pytest.mark.parametrize("may_use_pair", [True, False])
def test_a_tie_goes_to_the_lower_id(may_use_pair: bool) -> None:
    batch = table_batch(logits_of({EOS: 2.0, COORD: 2.0}))
    token = batch.run([OBJECT_OR_END], may_use_pair=may_use_pair)[0]
    assert token.id == EOS
    assert token.prob == pytest.approx(0.5)


@pytest.mark.parametrize("may_use_pair", [True, False])
def test_a_forced_token_comes_whatever_the_logits_say_and_is_certain(may_use_pair: bool) -> None:
    batch = table_batch(logits_of({EOS: 99.0}, {COORD: 99.0}, {9: 99.0}))
    tokens = batch.run([X, WH, END], may_use_pair=may_use_pair)
    assert [token.id for token in tokens] == [COORD, SIZE, EOS]
    assert all(token.prob == pytest.approx(1.0) for token in tokens)


def test_a_forced_batch_reads_no_row_of_the_head() -> None:
    class NoHead(HashModel):
        def token_logits(self, hidden_RD: Tensor, ids: tuple[int, ...]) -> Tensor:
            raise AssertionError("two rows of the head were computed")

    batch = Batch(NoHead(), torch.ones(2, SPEC.dim))
    assert [token.id for token in batch.run([X, WH])] == [COORD, SIZE]
    assert batch.model.num_vocab_rows == 0


def test_coordinates_and_sizes_come_from_the_hidden_state_and_are_fed_back() -> None:
    batch = hash_batch(3, seed=4)
    tokens = batch.run([X, WH, X])
    coords = batch.model.coord_logits(batch.hidden)
    sizes = batch.model.size_logits(batch.hidden)
    assert [t.coord_bin for t in tokens] == [int(coords[0].argmax()), -1, int(coords[2].argmax())]
    assert tokens[1].size_bins == tuple(sizes[1].argmax(-1).tolist())
    assert tokens[0].size_bins == tokens[2].size_bins == (-1, -1)
    assert torch.equal(batch.relay[0], batch.model.embed_coords(coords.argmax(-1))[0])
    assert torch.equal(batch.relay[1], batch.model.embed_sizes(sizes.argmax(-1))[1])


def test_bin_probabilities_are_those_of_the_chosen_bins() -> None:
    class SoftBins(HashModel):
        def coord_logits(self, hidden_RD: Tensor) -> Tensor:
            return super().coord_logits(hidden_RD) / 5000

        def size_logits(self, hidden_RD: Tensor) -> Tensor:
            return super().size_logits(hidden_RD) / 5000

    batch = Batch(SoftBins(), hash_batch(3).hidden)
    tokens = batch.run([X, WH, END])
    coord = torch.softmax(batch.model.coord_logits(batch.hidden)[0], -1).max()
    sizes = torch.softmax(batch.model.size_logits(batch.hidden)[1], -1).max(-1).values
    assert tokens[0].bin_prob == pytest.approx(float(coord), abs=1e-6)
    assert tokens[1].bin_prob == pytest.approx(float(sizes.prod()), abs=1e-6)
    assert tokens[2].bin_prob == 1.0


def test_a_spatial_id_is_text_where_the_grammar_says_so() -> None:
    batch = table_batch(logits_of({COORD: 9.0}, {SIZE: 9.0}, {COORD: 9.0}))
    tokens = batch.run([Constraint(), Constraint(), Constraint(spatial=True)])
    assert [token.id for token in tokens] == [COORD, SIZE, COORD]
    assert [token.coord_bin for token in tokens[:2]] == [-1, -1]
    assert tokens[1].size_bins == (-1, -1)
    assert tokens[2].coord_bin >= 0
    text = batch.model.embed_tokens(torch.tensor([COORD, SIZE]))
    assert torch.equal(batch.relay[:2], text)
    assert not torch.equal(batch.relay[2], text[0])


@pytest.mark.parametrize("others", [[], [OBJECT_OR_END], [X, WH], [Constraint()]])
def test_a_forced_text_id_is_fed_as_text_even_in_a_spatial_grammar(
    others: list[Constraint],
) -> None:
    batch = hash_batch(1 + len(others), seed=2)
    tokens = batch.run([Constraint(allowed=(9,), spatial=True), *others])
    assert tokens[0].id == 9
    assert (tokens[0].coord_bin, tokens[0].size_bins) == (-1, (-1, -1))
    assert torch.equal(batch.relay[0], batch.model.embed_tokens(torch.tensor(9)))


def test_rows_write_the_relay_at_their_own_lanes() -> None:
    batch = Batch(HashModel(), hash_batch(3).hidden, lanes=[4, 0, 2])
    tokens = batch.run([X, Constraint(), X])
    for row, lane in ((0, 4), (2, 2)):
        wanted = batch.model.embed_coords(torch.tensor([tokens[row].coord_bin]))[0]
        assert torch.equal(batch.relay[lane], wanted)
    assert torch.equal(batch.relay[0], batch.model.embed_tokens(torch.tensor(tokens[1].id)))
    assert (batch.relay[[1, 3]] == -1).all()


# -- masks ------------------------------------------------------------------------------------


constraints = st.one_of(
    st.just(Constraint()),
    st.sets(st.integers(0, 23), min_size=1, max_size=6).map(
        lambda ids: Constraint(forbidden=tuple(sorted(ids)))
    ),
    st.sets(st.integers(0, 23), min_size=1, max_size=6).map(
        lambda ids: Constraint(allowed=tuple(sorted(ids)))
    ),
    st.sampled_from(SPATIAL),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(constraints, min_size=1, max_size=5), st.integers(0, 99))
def test_the_most_likely_permitted_id_is_taken(mix: list[Constraint], seed: int) -> None:
    batch = hash_batch(len(mix), seed)
    tokens = batch.run(mix)
    logits = HashModel().vocab_logits(batch.hidden)
    for row, (constraint, token) in enumerate(zip(mix, tokens, strict=True)):
        ids = [i for i in range(SPEC.vocab_size) if constraint.permits(i)]
        assert token.id == max(ids, key=lambda i: (float(logits[row, i]), -i))
        among = torch.softmax(logits[row, ids].double(), -1)
        assert token.prob == pytest.approx(float(among[ids.index(token.id)]), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(constraints, min_size=1, max_size=4), min_size=2, max_size=6))
def test_a_slot_used_again_keeps_nothing_of_the_masks_before(mixes: list) -> None:
    batch = hash_batch(4, seed=3)
    for mix in mixes:
        batch.run(mix)
        if batch.plan.pair is None:
            for row, constraint in enumerate(mix):
                wanted = [not constraint.permits(i) for i in range(SPEC.vocab_size)]
                assert batch.slot.mask.device[row].tolist() == wanted
