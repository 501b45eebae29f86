"""Errors and prompts as one line of bearable length."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from photon_ros.core.errors import UnknownWordError

MAX_ECHO: Final = 80
"""Characters of what the user wrote that are written back."""


def shortened(text: str) -> str:
    """Return ``text``, cut to MAX_ECHO characters, the last three dots, where it is longer."""
    return text if len(text) <= MAX_ECHO else f"{text[: MAX_ECHO - 3]}..."


def counted(number: int, noun: str) -> str:
    """Return "1 frame", "2 frames"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def error_message(error: Exception, prompts: Iterable[str] = ()) -> str:
    """Return what an error says, with every long prompt in it shortened.

    An OSError is put as its file and reason, without the number.
    """
    if isinstance(error, OSError):
        reason = error.strerror or str(error) or type(error).__name__
        return reason if error.filename is None else f"{shortened(str(error.filename))}: {reason}"
    message = str(error)
    echoes = [text for prompt in prompts for text in (prompt, repr(prompt)[1:-1])]
    if isinstance(error, UnknownWordError):
        echoes.append(", ".join(map(repr, error.words)))
    for echo in echoes:
        if len(echo) > MAX_ECHO:
            message = message.replace(echo, shortened(echo))
    return message


def complain(message: str) -> None:
    """Write one line to stderr, whatever the message holds."""
    print(f"photon-ros: error: {' '.join(message.split())}", file=sys.stderr)
