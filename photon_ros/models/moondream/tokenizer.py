"""Tokenizer read from a checkpoint's own ``tokenizer.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from photon_ros.core.errors import ModelError, PromptError


class FileTokenizer:
    """A ``core.prompting.Tokenizer``: text never becomes a special token."""

    def __init__(self, path: Path) -> None:
        """Read ``path``; raises ModelError when it is missing or not a tokenizer."""
        if not path.is_file():
            raise ModelError(f"no tokenizer: looked for {path}")
        try:
            # The library raises bare Exception for anything that it cannot parse.
            self._tokenizer = Tokenizer.from_str(_with_marked_specials(path))
        except Exception as error:
            raise ModelError(f"{path} is not a readable tokenizer: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True

    @property
    def num_ids(self) -> int:
        """One more than the largest id."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def id_of(self, token: str) -> int | None:
        """Return the id of one token as written in the file, None when it has none."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``, nothing added.

        Raises:
            PromptError: the text holds half characters (lone surrogates), as an argument that
                is not UTF-8 does once Python has read it.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError("the prompt is not valid text (UTF-8)") from error
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, special tokens skipped."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


def _with_marked_specials(path: Path) -> str:
    """Return the file's JSON, every added token of the form <|...|> flagged as special.

    Files exist that leave the flag out, and then a prompt could spell such a token.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    for token in data.get("added_tokens") or ():
        if token["content"].startswith("<|") and token["content"].endswith("|>"):
            token["special"] = True
    return json.dumps(data, ensure_ascii=False)
