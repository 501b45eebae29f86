"""Ticks of a real, small Moondream read nothing from the device and keep nothing they allocate.

Two devices watch. Under :class:`DeviceRules` every operation of a tick is seen, and those that
read a value on the host, or whose output size depends on values, are refused. On
:class:`ValuelessDevice` device tensors have no values at all, so that any way of reading them
fails, and so does mixing tensors of the two sides; only the copy stream may cross over.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from grammars import OnePhase, ParityGrammar, TextGrammar
from hash_model import crops_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from photon_ros.core.errors import EngineFault
from photon_ros.core.result import EndReason
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice, Event
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import Constraint, FrameCrops, SampledToken
from photon_ros.engine.lora import LoraAdapter
from photon_ros.engine.sequence import Outcome, PrefixSource, SamplingParams, Sequence
from photon_ros.models.moondream.config import MoondreamConfig
from photon_ros.models.moondream.model import MoondreamModel

SIZES: dict[str, Any] = {
    "text": {
        "dim": 32, "ff_dim": 48, "n_layers": 2, "vocab_size": 60, "max_context": 96, "n_heads": 4,
        "n_kv_heads": 2,
    },
    "vision": {
        "enc_dim": 24, "enc_patch_size": 4, "enc_n_layers": 2, "enc_ff_dim": 40, "enc_n_heads": 3,
        "proj_out_dim": 32, "proj_inner_dim": 20, "crop_size": 20, "max_crops": 4,
        "overlap_margin": 1,
    },
    "region": {
        "dim": 32, "coord_feat_dim": 12, "coord_out_dim": 16, "size_feat_dim": 10,
        "size_out_dim": 22, "inner_dim": 28,
    },
    "tokenizer": {
        "bos_id": 2, "eos_id": 0, "coord_id": 5, "size_id": 6,
        "templates": {"detect": {"prefix": [1, 8], "suffix": [3]}},
    },
}  # fmt: skip
SLOTS: dict[str, Any] = {
    "max_rows": 4, "max_prefixes": 4, "page_size": 4, "num_private_pages": 80,
    "num_lora_slots": 2, "max_lora_rank": 3,
}  # fmt: skip
HOST_READS = {"item", "_local_scalar_dense", "is_nonzero", "equal", "allclose"}
VALUE_SIZED = {
    "nonzero", "nonzero_numpy", "argwhere", "masked_select", "unique_dim", "_unique", "_unique2",
    "unique_consecutive",
}  # fmt: skip


class Steady(OnePhase):
    """A grammar whose answers have a set length, so that every round does the same work.

    What follows an end token is only defined where ``ends`` lets it end the answer.
    """

    length_reason = EndReason.MAX_TOKENS
    ends = False

    def __init__(self, num_tokens: int, constraint: Callable[[int], Constraint | None]) -> None:
        self.max_new_tokens = num_tokens
        self._constraint = constraint
        self.tokens: list[SampledToken] = []

    def constraint_ahead(self, num_ahead: int) -> Constraint | None:
        if num_ahead > 0 and self._constraint(-1) is None:
            return None
        return self._constraint(len(self.tokens) + num_ahead)

    def advance(self, token: SampledToken) -> bool:
        self.tokens.append(token)
        return self.ends and token.id == 0


def detect() -> Steady:
    states = [Constraint((0, 5), spatial=True), Constraint((5,), spatial=True),
              Constraint((6,), spatial=True)]  # fmt: skip
    return Steady(9, lambda place: states[place % 3])


def text() -> Steady:
    return Steady(7, lambda place: Constraint(forbidden=(0, 3)))


def held() -> Steady:
    return Steady(5, lambda place: None if place < 0 else Constraint(allowed=(7, 8 + place)))


def small_model(device: str = "cpu") -> MoondreamModel:
    torch.manual_seed(3)
    model = MoondreamModel(MoondreamConfig.from_dict(SIZES)).to(device)
    model.reset_tables(torch.device(device))
    return model.freeze()


def picture(number: int, num_crops: int) -> PrefixSource:
    pixels = np.random.default_rng(number).integers(0, 255, (num_crops, 20, 20, 3))
    tiling = {1: (1, 1), 3: (1, 2), 5: (2, 2)}[num_crops]
    return PrefixSource(number, FrameCrops(pixels.astype(np.uint8), tiling))


def adapter(model: MoondreamModel, seed: int) -> LoraAdapter:
    """Return factors for every linear that adapters may change, in the first layer."""
    random = torch.Generator().manual_seed(seed)
    factors = {
        (0, linear.name): (
            torch.randn((3, linear.num_inputs), generator=random),
            torch.randn((linear.num_outputs, 3), generator=random),
        )
        for linear in model.spec.adapted_linears
    }
    return LoraAdapter(f"adapter {seed}", 3, factors)


class CapturingCpu(CpuDevice):
    """Decodes in steps of fixed shape; a replay does again what was captured."""

    can_capture = True


class Run:
    """An engine over the real model, and the outcomes it gave."""

    def __init__(self, model: MoondreamModel, device: Any, **modes: bool) -> None:
        self.engine = Engine(model, device, EngineConfig(**SLOTS, **modes))
        self.adapters = [adapter(model, seed) for seed in (1, 2)]
        self.outcomes: list[Outcome] = []
        self.num_frames = 0

    def submit(
        self,
        state: Any,
        source: PrefixSource | None,
        prompt: tuple[int, ...] = (1, 9, 3),
        temperature: float = 0.0,
        adapter_number: int | None = None,
        values: tuple[tuple[int, tuple[float, ...]], ...] = (),
    ) -> None:
        sequence = Sequence(
            prompt,
            state,
            lambda _, outcome: self.outcomes.append(outcome),
            source=source,
            prompt_values=values,
            adapter=None if adapter_number is None else self.adapters[adapter_number],
            sampling=SamplingParams(temperature, 0.9, 1),
        )
        self.engine.submit(sequence)

    def submit_round(self) -> None:
        """One of everything; the frames are new, so that they are encoded in every round."""
        self.num_frames += 3
        one, three = picture(self.num_frames, 3), picture(self.num_frames + 1, 1)
        self.submit(detect(), one)
        self.submit(detect(), one, prompt=(1, 9, 9, 9, 3))
        self.submit(text(), three, temperature=1.0)
        self.submit(text(), None, prompt=(2, 4))
        self.submit(detect(), three)
        self.submit(held(), one)
        self.submit(text(), picture(self.num_frames + 2, 1), adapter_number=0)
        values = ((1, (0.25,)), (2, (0.5, 0.75)))
        self.submit(detect(), None, (1, 5, 6, 3), adapter_number=1, values=values)

    def finish(self) -> None:
        while self.engine.has_work:
            self.engine.tick()
        errors = [outcome.error for outcome in self.outcomes if outcome.error is not None]
        assert not errors, errors


class DeviceRules(TorchDispatchMode):
    """Refuses what would stall a GPU, and counts what each operation allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.num_allocations: Counter[str] = Counter()
        self.num_bytes = 0
        self.storages: list[weakref.ref[Any]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        assert name not in HOST_READS, f"{name} reads a device value on the host"
        assert name not in VALUE_SIZED, f"{name} has a size that depends on values"
        if name in ("index", "index_put", "index_put_"):
            for index in args[1]:
                is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
                assert not is_mask, f"{name} by a mask has a size that depends on values"
        result = func(*args, **(kwargs or {}))
        known = {t.untyped_storage()._cdata for t in _tensors((args, kwargs or {}))}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in known and storage.nbytes():
                self.num_allocations[name] += 1
                self.num_bytes += storage.nbytes()
                self.storages.append(weakref.ref(storage))
        return result


def _tensors(tree: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def watched_round(run: Run) -> DeviceRules:
    run.submit_round()
    with DeviceRules() as rules:
        run.finish()
    return rules


DEVICES = [CpuDevice, CapturingCpu]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("hold", [True, False])
def test_no_tick_reads_a_value_or_has_a_size_that_depends_on_one(
    pipelined: bool, hold: bool, device: type[CpuDevice]
) -> None:
    run = Run(small_model(), device(), pipelined=pipelined, hold_constrained=hold)
    for _ in range(3):  # with captures: eager, captured, replayed
        watched_round(run)
    assert len(run.outcomes) == 24
    assert (run.engine.graphs.num_replays > 0) == device.can_capture


@pytest.mark.parametrize("device", DEVICES)
def test_after_warm_up_every_round_allocates_the_same(device: type[CpuDevice]) -> None:
    run = Run(small_model(), device())
    watched_round(run)
    rounds = [watched_round(run) for _ in range(3)]
    assert rounds[0].num_allocations
    assert rounds[0].num_allocations == rounds[1].num_allocations == rounds[2].num_allocations
    assert rounds[0].num_bytes == rounds[1].num_bytes == rounds[2].num_bytes


@pytest.mark.parametrize("device", DEVICES)
def test_after_warm_up_nothing_that_a_tick_allocates_outlives_its_round(
    device: type[CpuDevice],
) -> None:
    run = Run(small_model(), device())
    for _ in range(2):
        watched_round(run)
    before = live_bytes()
    for _ in range(3):
        watched_round(run)
    assert live_bytes() == before


def live_bytes() -> int:
    gc.collect()
    storages = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for t in gc.get_objects()
        if type(t) in (Tensor, torch.nn.Parameter)
    }
    return sum(storages.values())


@pytest.mark.parametrize(
    "break_rule",
    [
        lambda x: int(x.sum()),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: torch.nonzero(x),
        lambda x: x.masked_select(x > 0),
        lambda x: x.unique(),
        lambda x: x.index_put_((x > 0,), torch.tensor(1.0)),
    ],
)
def test_the_rules_refuse_what_stalls_a_gpu(break_rule: Callable[[Tensor], object]) -> None:
    for mode in (torch.inference_mode, torch.no_grad):  # composite operations differ
        with mode(), DeviceRules(), pytest.raises(AssertionError, match=r"host|values"):
            break_rule(torch.ones(3))


# -- a device without values ------------------------------------------------------------------


class _CountedEvent:
    def __init__(self, device: ValuelessDevice) -> None:
        self._device = device

    def synchronize(self) -> None:
        self._device.num_host_waits += 1


class _CrossOver(TorchDispatchMode):
    """Lets a copy from device to host through; what arrives is made up."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            return args[0].fill_(7)
        return func(*args, **(kwargs or {}))


class _ValuelessStream:
    def __init__(self, device: ValuelessDevice, *, may_cross: bool) -> None:
        self._device, self._may_cross = device, may_cross

    def submit(self, op: Callable[[], None], name: str) -> None:
        if self._may_cross:
            with _CrossOver():
                op()
        else:
            op()

    def record(self) -> Event:
        return _CountedEvent(self._device)

    def wait(self, event: Event) -> None:
        assert isinstance(event, _CountedEvent)


class ValuelessDevice:
    """Device tensors have shapes and types, and nothing to read."""

    def __init__(self, can_capture: bool = False) -> None:
        self.can_capture = can_capture
        self.torch_device = torch.device("meta")
        self.compute = _ValuelessStream(self, may_cross=False)
        self.copy = _ValuelessStream(self, may_cross=True)
        self.num_host_waits = 0

    def capture(self, op: Callable[[], None]) -> Callable[[], None]:
        return op

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def device_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("can_capture", [True, False])
def test_the_whole_engine_runs_on_a_device_whose_values_cannot_be_read(
    pipelined: bool, hold: bool, can_capture: bool
) -> None:
    device = ValuelessDevice(can_capture)
    run = Run(small_model("meta"), device, pipelined=pipelined, hold_constrained=hold)
    run.submit_round()
    run.submit_round()
    run.finish()
    stats = run.engine.stats
    assert len(run.outcomes) == 16
    assert stats.num_prefixes == 6
    assert device.num_host_waits == stats.num_prefill_steps + stats.num_decode_steps


@pytest.mark.parametrize(
    "read",
    [
        lambda t: t.sum().item(),
        lambda t: t.tolist(),
        lambda t: t.cpu(),
        lambda t: t.numpy(),
        lambda t: t[t > 0],
        lambda t: torch.zeros(t.shape).copy_(t),
        lambda t: t + torch.zeros(t.shape),
    ],
)
def test_a_read_of_the_device_or_a_mix_of_sides_is_a_fault_there(
    read: Callable[[Tensor], object],
) -> None:
    class Reading(MoondreamModel):
        def vocab_logits(self, hidden_RD: Tensor) -> Tensor:
            read(hidden_RD)
            return super().vocab_logits(hidden_RD)

    model = small_model("meta")
    model.__class__ = Reading
    run = Run(model, ValuelessDevice())
    run.submit(text(), None)
    while run.engine.has_work:
        run.engine.tick()
    assert isinstance(run.outcomes[0].error, EngineFault)


# -- and its tokens ---------------------------------------------------------------------------


def spread_model() -> MoondreamModel:
    """Random weights, made large enough that decisions have margins."""
    model = small_model()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.5)
    return model.freeze()


def tokens_of(
    pipelined: bool, hold: bool, device: type[CpuDevice] = CpuDevice
) -> list[list[tuple[int, int, tuple[int, int]]]]:
    run = Run(spread_model(), device(), pipelined=pipelined, hold_constrained=hold)
    states: list[Any] = []
    for number in range(18):
        state = [detect, text, held][number % 3]()
        state.ends = True
        adapted = number % 6 if number % 6 < 2 else None  # a frame's key names its adapter
        frame = number % 3 + (0 if adapted is None else 10 * adapted + 10)
        source = None if number % 4 == 3 else picture(frame, (1, 3, 5)[number % 3])
        run.submit(
            state,
            source,
            prompt=(1, number + 8, 3),
            temperature=number % 2 * 0.8,
            adapter_number=adapted,
        )
        states.append(state)
        if number % 2:
            run.engine.tick()
    run.finish()
    return [[(t.id, t.coord_bin, t.size_bins) for t in state.tokens] for state in states]


def test_the_real_model_gives_the_same_tokens_in_every_mode() -> None:
    wanted = tokens_of(pipelined=False, hold=False)
    assert len({token for tokens in wanted for token in tokens}) > 20, "too plain to tell"
    for pipelined, hold in ((True, False), (True, True), (False, True)):
        assert tokens_of(pipelined, hold) == wanted
    assert tokens_of(True, False, CapturingCpu) == wanted


def test_grammars_of_the_other_suites_run_on_it_too() -> None:
    run = Run(spread_model(), CpuDevice())
    for state in (TextGrammar(6), ParityGrammar(6)):
        run.submit(state, picture(1, 5))
    run.finish()
    assert len(run.outcomes) == 2


def test_crops_of_the_wrong_size_are_refused_before_they_are_queued() -> None:
    run = Run(small_model(), CpuDevice())
    with pytest.raises(Exception, match="crops of shape"):
        run.submit(detect(), PrefixSource(0, crops_of(0)))
    assert not run.engine.has_work
