"""EngineConfig: the sizes an engine is built with, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from photon_ros.core.errors import InputError
from photon_ros.core.request import check_number, check_whole

MAX_STALL_WARNING_S = 1e6


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and modes of one engine.

    Attributes:
        max_rows: sequences that decode together; each also owns one lane of the relay.
        max_prefixes: encoded frames kept at once.
        page_size: positions per KV page.
        num_private_pages: KV pages for prompts and answers, beside the frame prefixes.
        max_prefixes_per_step: new frames one prefill step may encode. It bounds how long a
            prefill delays the commits behind it.
        pipelined: False is the same loop at depth one, the oracle and the baseline.
        hold_constrained: sample every constrained row only after the commit before it, as a
            grammar that cannot look ahead must. Slower; the tokens are the same.
        num_lora_slots: adapters that can be in use at once; 0 reserves no memory for any.
        max_lora_rank: largest rank of an adapter.
        stall_warning_s: seconds of waiting for one step after which the log names it.
    """

    max_rows: int = 16
    max_prefixes: int = 8
    page_size: int = 16
    num_private_pages: int = 256
    max_prefixes_per_step: int = 2
    pipelined: bool = True
    hold_constrained: bool = False
    stall_warning_s: float = 10.0
    num_lora_slots: int = 0
    max_lora_rank: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type == "int":
                check_whole(name, value)
                least = 0 if name == "num_lora_slots" else 1
                if value < least:
                    raise InputError(f"{name} must be >= {least}, got {value}")
            elif field.type == "bool" and not isinstance(value, bool):
                raise InputError(f"{name} must be True or False, got {value!r}")
        check_number("stall_warning_s", self.stall_warning_s)
        if not 0 < self.stall_warning_s <= MAX_STALL_WARNING_S:  # neither is NaN
            raise InputError(
                f"stall_warning_s must be > 0 and at most {MAX_STALL_WARNING_S:g}, "
                f"got {self.stall_warning_s}"
            )

    @property
    def max_inflight_steps(self) -> int:
        """Steps launched and not yet committed: one when blocking, two when pipelined."""
        return 2 if self.pipelined else 1
