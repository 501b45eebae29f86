"""The text decoder against transformers' Phi, which has the same blocks: logits, tokens, time.

An independent check of the decoder, of attention over the paged cache and of the loop: logits of
every position of a prompt without an image, then the tokens of a greedy answer, from the same
weights. Then both generate loops are timed, in turns. The engine runs on the CPU, where
launches do not overlap with forwards: what it is compared in is the work that each loop adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from photon_ros.core.errors import InputError
from photon_ros.core.result import EndReason
from photon_ros.engine.config import EngineConfig
from photon_ros.engine.device import CpuDevice
from photon_ros.engine.engine import Engine
from photon_ros.engine.interfaces import Constraint, SampledToken
from photon_ros.engine.sequence import Outcome, Sequence
from photon_ros.models.loading import load_model
from photon_ros.models.moondream.config import TextConfig
from photon_ros.models.moondream.model import MoondreamModel
from photon_ros.models.moondream.text import TextDecoder

if TYPE_CHECKING:
    from transformers import PhiForCausalLM

PROMPT_LEN = 32
NUM_TURNS = 5
BATCH_ROWS = (1, 8)
TOLERANCE = 1e-4
_FREE = Constraint()


@dataclass(frozen=True, slots=True)
class GenerateRow:
    """One loop; ``ms_per_step`` is the median over turns, the prompt's prefill included."""

    loop: str
    batch_rows: int
    ms_per_step: float
    tokens_per_s: float


def measure(
    progress: Callable[[str], None], *, model: str = "nano", num_tokens: int = 64
) -> dict[str, Any]:
    """Compare and time the text decoder of a model.

    Args:
        progress: told what is going on.
        model: as in :class:`photon_ros.photon.Photon`; run in float32 on the CPU.
        num_tokens: tokens of each answer.

    Raises:
        InputError: transformers is not installed, or the answers do not fit the context.
    """
    ours, name = _load(model)
    phi = phi_of(ours.text)
    room = ours.config.text.max_context - PROMPT_LEN
    if not 1 <= num_tokens <= room:
        raise InputError(f"tokens must be between 1 and {room} for {name}, got {num_tokens}")
    with torch.inference_mode():
        progress("logits")
        difference = logits_difference(ours, phi)
        rows: list[GenerateRow] = []
        is_equal = True
        for batch_rows in BATCH_ROWS:
            progress(f"{batch_rows} rows of {num_tokens} tokens")
            has_equal_tokens, timed = _time_batch(ours, phi, batch_rows, num_tokens)
            is_equal = is_equal and has_equal_tokens
            rows += timed
    return {
        "model": name,
        "max logit difference": difference,
        "logits equal within 1e-4": difference <= TOLERANCE,
        "greedy tokens equal": is_equal,
        "generate": [asdict(row) for row in rows],
    }


def _load(model: str) -> tuple[MoondreamModel, str]:
    checkpoint = load_model(model, device="cpu", dtype="float32")
    assert isinstance(checkpoint.model, MoondreamModel)
    return checkpoint.model, checkpoint.name


def phi_of(decoder: TextDecoder) -> PhiForCausalLM:
    """Return transformers' Phi with the weights of a text decoder; they are not copied.

    Raises:
        InputError: transformers is not installed.
    """
    try:
        from transformers import PhiConfig, PhiForCausalLM
        from transformers.models.phi.modeling_phi import PhiRotaryEmbedding
    except ImportError as error:
        raise InputError("this bench needs transformers: pip install transformers") from error
    text = decoder.config
    config = PhiConfig(
        vocab_size=text.vocab_size,
        hidden_size=text.dim,
        intermediate_size=text.ff_dim,
        num_hidden_layers=text.n_layers,
        num_attention_heads=text.n_heads,
        num_key_value_heads=text.num_kv_heads,
        hidden_act="gelu_new",
        max_position_embeddings=text.max_context,
        layer_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": text.rope_theta,
            "partial_rotary_factor": 0.5,
        },
        # Nothing ends an answer early.
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.device("meta"):
        phi = PhiForCausalLM(config)
    phi.load_state_dict(phi_weights(decoder), assign=True)
    phi.model.rotary_emb = PhiRotaryEmbedding(config)  # its tables are not among the weights
    torch.nn.Module.eval(phi)
    return phi


def phi_weights(decoder: TextDecoder) -> dict[str, Tensor]:
    """Return a text decoder's weights by the names of transformers' Phi."""
    names = {
        "wte": "model.embed_tokens.weight",
        "post_ln.weight": "model.final_layernorm.weight",
        "post_ln.bias": "model.final_layernorm.bias",
        "lm_head.weight": "lm_head.weight",
        "lm_head.bias": "lm_head.bias",
    }
    stored = decoder.state_dict()
    weights = {theirs: stored[ours] for ours, theirs in names.items()}
    for layer in range(decoder.config.n_layers):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        for kind in ("weight", "bias"):
            heads = torch.split(stored[f"{ours}attn.qkv.{kind}"], _head_rows(decoder.config))
            for letter, rows in zip("qkv", heads, strict=True):
                weights[f"{theirs}self_attn.{letter}_proj.{kind}"] = rows
            weights[f"{theirs}self_attn.dense.{kind}"] = stored[f"{ours}attn.proj.{kind}"]
            weights[f"{theirs}input_layernorm.{kind}"] = stored[f"{ours}ln.{kind}"]
            for linear in ("fc1", "fc2"):
                weights[f"{theirs}mlp.{linear}.{kind}"] = stored[f"{ours}mlp.{linear}.{kind}"]
    return weights


def _head_rows(config: TextConfig) -> list[int]:
    """Return how many rows of the fused projection are queries, keys and values."""
    heads = (config.n_heads, config.num_kv_heads, config.num_kv_heads)
    return [count * config.head_dim for count in heads]


def logits_difference(ours: MoondreamModel, phi: PhiForCausalLM) -> float:
    """Return the largest difference of the logits of a prompt's positions."""
    ids = _prompts(ours.config.text.vocab_size, 1)
    positions = torch.arange(PROMPT_LEN)[None]
    hidden = ours.decode(ours.embed_tokens(ids), positions, _causal)
    logits: Tensor = phi(input_ids=ids).logits
    return float((ours.vocab_logits(hidden[0]) - logits[0]).abs().max())


def _causal(layer: int, q_BTHE: Tensor, k_BTGE: Tensor, v_BTGE: Tensor) -> Tensor:  # noqa: ARG001
    q, k, v = (x.transpose(1, 2) for x in (q_BTHE, k_BTGE, v_BTGE))
    attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return attended.transpose(1, 2)


def _prompts(vocab_size: int, rows: int) -> Tensor:
    """Return (rows, PROMPT_LEN) int64 ids, the same every time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(vocab_size, (rows, PROMPT_LEN), generator=generator)


@dataclass(slots=True)
class _FixedLength:
    """Greedy text of a fixed length."""

    max_new_tokens: int
    length_reason: EndReason = EndReason.MAX_TOKENS
    later_positions: int = 0
    token_ids: list[int] = field(default_factory=list)

    def next_phase(self) -> None:
        """Return None: there is one phase."""
        return None

    def constraint_ahead(self, num_ahead: int) -> Constraint:  # noqa: ARG002
        """Return that anything may come."""
        return _FREE

    def advance(self, token: SampledToken) -> bool:
        """Keep the token; none ends the answer."""
        self.token_ids.append(token.id)
        return False


def _time_batch(
    ours: MoondreamModel, phi: PhiForCausalLM, rows: int, num_tokens: int
) -> tuple[bool, list[GenerateRow]]:
    """Return whether all loops gave the same tokens, and their times."""
    prompts = _prompts(ours.config.text.vocab_size, rows)
    engines = {
        "photon_ros, pipelined": _engine(ours, rows, num_tokens, pipelined=True),
        "photon_ros, blocking": _engine(ours, rows, num_tokens, pipelined=False),
    }
    loops: dict[str, Callable[[], list[list[int]]]] = {
        "transformers generate": partial(_generate, phi, prompts, num_tokens)
    }
    for name, engine in engines.items():
        loops[name] = partial(_answer, engine, prompts, num_tokens)
    answers = [loop() for loop in loops.values()]  # also the warm-up
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(NUM_TURNS):
        for name, loop in loops.items():
            started_s = time.perf_counter()
            loop()
            times[name].append(time.perf_counter() - started_s)
    timed = [
        GenerateRow(
            loop=name,
            batch_rows=rows,
            ms_per_step=1e3 * median(taken_s) / num_tokens,
            tokens_per_s=rows * num_tokens / median(taken_s),
        )
        for name, taken_s in times.items()
    ]
    return all(answer == answers[0] for answer in answers), timed


def _engine(ours: MoondreamModel, rows: int, num_tokens: int, *, pipelined: bool) -> Engine:
    page_size = 16
    pages_per_row = -(-(PROMPT_LEN + num_tokens) // page_size)
    config = EngineConfig(
        max_rows=rows,
        max_prefixes=1,
        page_size=page_size,
        num_private_pages=rows * pages_per_row,
        pipelined=pipelined,
    )
    return Engine(ours, CpuDevice(), config)


def _answer(engine: Engine, prompts: Tensor, num_tokens: int) -> list[list[int]]:
    states = [_FixedLength(num_tokens) for _ in prompts]
    for prompt, state in zip(prompts.tolist(), states, strict=True):
        engine.submit(Sequence(tuple(prompt), state, _raise_error))
    while engine.has_work:
        engine.tick()
    return [state.token_ids for state in states]


def _raise_error(sequence: Sequence, outcome: Outcome) -> None:  # noqa: ARG001
    if outcome.error is not None:
        raise outcome.error


def _generate(phi: PhiForCausalLM, prompts: Tensor, num_tokens: int) -> list[list[int]]:
    output = phi.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=num_tokens,
        do_sample=False,
        use_cache=True,
    )
    answers: list[list[int]] = output[:, prompts.shape[1] :].tolist()
    return answers
