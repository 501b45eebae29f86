"""When the text of an answer that is still being written can be shown.

A token may be half a word, or half a character, so its text is not final. Text is released up
to the last blank; all of it at the end of a line, and after a character of a script that is
written without blanks.
"""

from __future__ import annotations

from collections.abc import Iterable

from photon_ros.core.prompting import Tokenizer

# Unified ideographs with extensions A to F, and the compatibility ideographs.
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)


class TextRelease:
    """Turns the tokens of one answer into pieces of text that never change again.

    Only the tokens since the last end of a line are decoded again, as the text of a token
    depends on those before it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._line_ids: list[int] = []
        self._num_released = 0

    def add(self, token_id: int) -> str:
        """Take a token; return the text that it makes final, often ""."""
        self._line_ids.append(token_id)
        text = self._tokenizer.decode(self._line_ids)
        if text.endswith("\n"):
            piece = text[self._num_released :]
            self._line_ids.clear()
            self._num_released = 0
            return piece
        if text and _is_ideograph(text[-1]):
            end = len(text)
        else:
            end = text.rfind(" ", self._num_released) + 1
        piece = text[self._num_released : end]
        self._num_released = max(self._num_released, end)
        return piece

    def flush(self) -> str:
        """Return the rest, once there are no more tokens."""
        text = self._tokenizer.decode(self._line_ids)
        piece = text[self._num_released :]
        self._num_released = len(text)
        return piece


def released_text(tokenizer: Tokenizer, token_ids: Iterable[int]) -> str:
    """Return the whole text of an answer: the pieces of its release, joined."""
    release = TextRelease(tokenizer)
    pieces = [release.add(token_id) for token_id in token_ids]
    return "".join((*pieces, release.flush()))


def _is_ideograph(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)
