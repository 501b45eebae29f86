"""What a sequence must be like to be queued: everything a step takes on trust is checked here."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from photon_ros.core.errors import CapacityError, InputError
from photon_ros.core.request import check_deadline, check_sampling
from photon_ros.engine.decode_slot import MAX_PROMPT_VALUES
from photon_ros.engine.interfaces import Constraint, ModelSpec
from photon_ros.engine.lora import LoraBank
from photon_ros.engine.sequence import Sequence, SequenceStatus


def check_submission(sequence: Sequence, spec: ModelSpec, bank: LoraBank) -> None:
    """Refuse a sequence that would fail, or fail its neighbours, once it is in a step.

    Raises:
        InputError: it was submitted or cancelled before; the prompt is empty, holds ids outside
            the vocabulary, or gives values that are misplaced or not finite; or it cannot be
            sampled so, or has no time for a deadline.
        CapacityError: crops, values or adapter do not fit the engine's buffers.
    """
    if sequence.status is not SequenceStatus.NEW:
        raise InputError("the sequence was submitted or cancelled before; make a new one")
    check_ids(sequence.prompt_ids, spec.vocab_size)
    _check_values(sequence)
    sampling = sequence.sampling
    check_sampling(sampling.temperature, sampling.top_p, sampling.seed)
    check_deadline(sequence.deadline_s)
    if sequence.source is not None:
        side = spec.crop_size_px
        shape = sequence.source.crops.pixels.shape
        limit = spec.max_crops + 1
        if not 1 <= shape[0] <= limit or shape[1:] != (side, side, 3):
            raise CapacityError(
                f"crops of shape {shape}; the engine takes 1 to {limit} of {(side, side, 3)}"
            )
    if sequence.adapter is not None:
        bank.check(sequence.adapter)


def check_ids(prompt_ids: Seq[int], vocab_size: int) -> None:
    """Raise InputError for a prompt, or the start of a phase, that cannot be embedded."""
    if not prompt_ids:
        raise InputError("the prompt has no tokens; at least 1 is needed")
    _check_vocabulary("the prompt", prompt_ids, vocab_size)


def check_constraint(constraint: Constraint, vocab_size: int) -> None:
    """Raise InputError for a constraint that no token of the vocabulary can satisfy as it is."""
    allowed, fold_to = constraint.allowed, constraint.fold_to
    named = (*(allowed or ()), *constraint.forbidden, *(() if fold_to is None else (fold_to,)))
    _check_vocabulary("a constraint", named, vocab_size)
    if allowed == () or (allowed is None and len(set(constraint.forbidden)) == vocab_size):
        raise InputError("a constraint allows no token; at least 1 must be left")


def _check_vocabulary(what: str, ids: Seq[int], vocab_size: int) -> None:
    outside = [token_id for token_id in ids if not 0 <= token_id < vocab_size]
    if outside:
        raise InputError(
            f"{what} holds token id {outside[0]}; the vocabulary is 0 to {vocab_size - 1}"
        )


def _check_values(sequence: Sequence) -> None:
    values = sequence.prompt_values
    if len(values) > MAX_PROMPT_VALUES:
        raise CapacityError(
            f"the prompt gives {len(values)} coordinates and sizes; at most {MAX_PROMPT_VALUES} fit"
        )
    length = len(sequence.prompt_ids)
    if len({index for index, _ in values}) < len(values):
        raise InputError("the prompt gives two values for one token")
    for index, value in values:
        if not 0 <= index < length:
            raise InputError(f"a value for token {index}; the prompt has tokens 0 to {length - 1}")
        if len(value) not in (1, 2) or not all(0 <= number <= 1 for number in value):
            raise InputError(
                f"value {value} for token {index}: must be one coordinate or two sizes in [0, 1]"
            )
