"""Answers computed alone, to compare with and to choose prompts by."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from harness import key_of
from hash_model import expected_tokens


def assert_right(state: object, prompt: tuple[int, ...], frame: int | None, fresh: object) -> None:
    assert key_of(state.tokens) == key_of(expected_tokens(prompt, frame, fresh))


def lasting(make: Callable[[], object], frame: int | None) -> tuple[int, ...]:
    """Return a prompt whose answer goes on for as long as its grammar lets it."""
    for prompt in itertools.product(range(1, 23), repeat=2):
        fresh = make()
        if len(expected_tokens(prompt, frame, fresh)) == fresh.max_new_tokens:
            return prompt
    raise AssertionError("every prompt ends early")
