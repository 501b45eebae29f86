"""Two ways to choose a token give one answer, and noise depends on nothing but its place."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from grammars import TextGrammar
from hash_model import SPEC, HashModel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from photon_ros.engine import sampling
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.decode_slot import DecodeSlot
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.engine.sequence import SamplingParams, Sequence

EOS, COORD, SIZE = SPEC.eos_id, SPEC.coord_id, SPEC.size_id
OBJECT_OR_END = Constraint(allowed=(0, 5), spatial=True)
X = Constraint(allowed=(5,), spatial=True)
WH = Constraint(allowed=(6,), spatial=True)
END = Constraint(allowed=(0,), spatial=True)
SPATIAL = [OBJECT_OR_END, X, WH, END]


class TableModel(HashModel):
    """Gives chosen logits: row r's hidden state is r."""

    def __init__(self, logits_RV: Tensor) -> None:
        super().__init__()
        self.table = logits_RV

    def vocab_logits(self, hidden_RD: Tensor) -> Tensor:
        return self.table[hidden_RD[:, 0].long()]

    def token_logits(self, hidden_RD: Tensor, ids: tuple[int, ...]) -> Tensor:
        return self.vocab_logits(hidden_RD)[:, list(ids)]


@dataclass
class Batch:
    """A slot with hidden states, and the relay that sampling writes to."""

    model: HashModel
    hidden: Tensor
    lanes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        rows = len(self.hidden)
        self.lanes = self.lanes or list(range(rows))
        self.slot = DecodeSlot(0, CpuDevice(), SPEC, EngineConfig(max_rows=rows))
        self.slot.hidden[:rows] = self.hidden
        self.relay = torch.full((max(self.lanes) + 1, SPEC.dim), -1.0)

    def run(
        self,
        constraints: list[Constraint],
        params: list[SamplingParams] | None = None,
        positions: list[int] | None = None,
        *,
        may_use_pair: bool = True,
    ) -> list[SampledToken]:
        rows = len(constraints)
        params = params or [SamplingParams()] * rows
        sequences = [Sequence((1,), TextGrammar(), lambda *_: None, sampling=p) for p in params]
        plan = sampling.plan_sampling(constraints, sequences, SPEC)
        if not may_use_pair:
            plan = type(plan)(
                **{
                    **{name: getattr(plan, name) for name in plan.__slots__},
                    "pair": None,
                    "any_text": True,
                }
            )
        self.plan = plan
        sampling.stage_sampling(self.slot, plan, constraints, sequences, positions or [0] * rows)
        sampling.copy_sampling_inputs(self.slot, plan)
        sampling.sample(self.model, self.slot, plan, self.relay, torch.tensor(self.lanes[:rows]))
        self.slot.copy_landed(rows)
        return self.slot.landed_tokens(rows)


def hash_batch(rows: int, seed: int = 0) -> Batch:
    random = torch.Generator().manual_seed(seed)
    return Batch(HashModel(), torch.randint(0, 4000, (rows, SPEC.dim), generator=random).float())


def table_batch(logits_RV: Tensor) -> Batch:
    hidden = torch.arange(len(logits_RV)).float()[:, None].expand(-1, SPEC.dim)
    return Batch(TableModel(logits_RV), hidden)


def logits_of(*rows: dict[int, float]) -> Tensor:
    table = torch.zeros(len(rows), SPEC.vocab_size)
    for number, row in enumerate(rows):
        for token, value in row.items():
            table[number, token] = value
    return table


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
                assert batch.slot.mask[row].tolist() == wanted


# -- randomness -------------------------------------------------------------------------------


def slow_top_p(logits: list[float], top_p: float) -> list[bool]:
    """Say which ids stay, one at a time, most likely first; the lower id first in a tie."""
    exact = torch.softmax(torch.tensor(logits, dtype=torch.float64), -1).tolist()
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    keep, mass = [False] * len(logits), 0.0
    for i in order:
        keep[i] = mass <= top_p
        mass += exact[i]
    return keep


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-24, 24).map(lambda n: n / 4), min_size=1, max_size=12),
    st.floats(0.015625, 1.0, width=32),
)
def test_top_p_keeps_what_a_slow_reference_keeps(logits: list[float], top_p: float) -> None:
    kept = sampling.keep_top_p(torch.tensor([logits]), torch.tensor([[top_p]]))[0]
    wanted = slow_top_p(logits, top_p)
    exact = torch.softmax(torch.tensor(logits, dtype=torch.float64), -1)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    mass = 0.0
    for i in order:
        if abs(mass - top_p) > 1e-5:  # at the edge rounding decides
            assert bool(torch.isfinite(kept[i])) == wanted[i]
        mass += float(exact[i])
    assert torch.isfinite(kept[order[0]])
    same = torch.isfinite(kept)
    assert torch.equal(kept[same], torch.tensor(logits)[same])


def test_the_most_likely_id_stays_however_small_top_p_is() -> None:
    kept = sampling.keep_top_p(torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[1e-9]]))
    assert torch.isfinite(kept).tolist() == [[False, True, False]]


def test_every_row_has_its_own_top_p() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 3)
    kept = torch.isfinite(sampling.keep_top_p(logits, torch.tensor([[0.1], [0.7], [1.0]])))
    assert kept.sum(-1).tolist() == [1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 5000)), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_noise_depends_on_seed_position_and_id_alone(
    places: list[tuple[int, int]], random: object
) -> None:
    def noise(chosen: list[tuple[int, int]]) -> Tensor:
        seeds = torch.tensor([[seed] for seed, _ in chosen])
        positions = torch.tensor([[position] for _, position in chosen])
        return sampling.gumbel_noise(seeds, positions, 40)

    together = noise(places)
    assert torch.isfinite(together).all()
    order = list(range(len(places)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert torch.equal(noise([places[i] for i in order]), together[order])
    for row, place in enumerate(places):
        assert torch.equal(noise([place])[0], together[row])


def test_noise_differs_between_neighbouring_seeds_positions_and_ids() -> None:
    seeds = torch.arange(40).repeat_interleave(40)[:, None]
    positions = torch.arange(40).repeat(40)[:, None]
    noise = sampling.gumbel_noise(seeds, positions, 30)
    assert noise.unique().numel() > 0.997 * noise.numel()  # 24 bits: few collide by chance
    flat = noise.view(40, 40, 30).double()
    flat = (flat - flat.mean()) / flat.std()
    for dim in range(3):
        a = flat.narrow(dim, 0, flat.shape[dim] - 1)
        b = flat.narrow(dim, 1, flat.shape[dim] - 1)
        assert abs(float((a * b).mean())) < 0.02


def test_noise_is_gumbel_distributed() -> None:
    seeds = torch.arange(20)[:, None]
    noise = sampling.gumbel_noise(seeds, seeds * 0 + 3, 20_000)
    values = np.sort(noise.double().numpy().ravel())
    wanted = np.exp(-np.exp(-values))
    ranks = (np.arange(len(values)) + 0.5) / len(values)
    assert np.abs(ranks - wanted).max() < 1.63 / math.sqrt(len(values))  # 1 % of a K-S test


LOGITS = {0: 1.5, 3: 1.0, 7: 0.0, 8: -0.5, 11: 2.0, 20: 0.5}
IDS = tuple(sorted(LOGITS))


def draw(num_rows: int, temperature: float, top_p: float, seed: int) -> Counter[int]:
    counts: Counter[int] = Counter()
    batch = table_batch(logits_of(*[LOGITS] * 200))
    params = [SamplingParams(temperature, top_p, seed)] * 200
    for start in range(0, num_rows, 200):
        tokens = batch.run([Constraint(allowed=IDS)] * 200, params, list(range(start, start + 200)))
        counts.update(token.id for token in tokens)
    return counts


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_frequencies_match_the_softmax_by_chi_square(temperature: float, top_p: float) -> None:
    scaled = torch.tensor([LOGITS[i] / temperature for i in IDS], dtype=torch.float64)
    keep = torch.tensor(slow_top_p(scaled.tolist(), top_p))
    probs = torch.softmax(scaled.masked_fill(~keep, -math.inf), -1)
    num_draws = 8000
    counts = draw(num_draws, temperature, top_p, seed=12)
    assert set(counts) <= {i for i, kept in zip(IDS, keep.tolist(), strict=True) if kept}
    statistic = sum(
        (counts[i] - num_draws * p) ** 2 / (num_draws * p)
        for i, p in zip(IDS, probs.tolist(), strict=True)
        if p > 0
    )
    # 99.9 % quantiles of chi-square with 1 to 5 degrees of freedom.
    bound = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47, 5: 20.52}[int(keep.sum()) - 1]
    assert statistic < bound


def test_different_seeds_give_different_answers_and_equal_ones_the_same() -> None:
    assert draw(200, 1.0, 1.0, seed=1) == draw(200, 1.0, 1.0, seed=1)
    assert draw(200, 1.0, 1.0, seed=1) != draw(200, 1.0, 1.0, seed=2)


def test_a_greedy_row_stays_greedy_beside_random_ones() -> None:
    batch = table_batch(logits_of(*[LOGITS] * 4))
    params = [SamplingParams(), SamplingParams(5.0, 1.0, 1), SamplingParams(), SamplingParams(2.0)]
    for position in range(40):
        tokens = batch.run([Constraint(allowed=IDS)] * 4, params, [position] * 4)
        assert tokens[0].id == tokens[2].id == 11


def test_a_masked_id_is_never_drawn() -> None:
    batch = table_batch(logits_of({3: 30.0, 4: 0.1}))
    for position in range(50):
        token = batch.run([Constraint(forbidden=(3,))], [SamplingParams(3.0, 1.0, 5)], [position])[
            0
        ]
        assert token.id != 3


def test_an_object_or_its_end_is_drawn_by_temperature_too() -> None:
    batch = table_batch(logits_of({EOS: 0.0, COORD: 0.0}))
    seen = {
        batch.run([OBJECT_OR_END], [SamplingParams(1.0, 1.0, 3)], [position])[0].id
        for position in range(40)
    }
    assert seen == {EOS, COORD}


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -1, -(2**63)])
def test_any_integer_is_a_seed(seed: int) -> None:
    batch = table_batch(logits_of(LOGITS))
    token = batch.run([Constraint(allowed=IDS)], [SamplingParams(1.0, 1.0, seed)], [3])[0]
    assert token.id in IDS
