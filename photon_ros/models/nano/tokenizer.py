"""From plain language to nano's two words: a colour and a class.

Nothing is guessed: a word outside the vocabulary is an error that lists what is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from photon_ros.core.errors import PromptError, UnknownWordError
from photon_ros.models.moondream.tokenizer import FileTokenizer
from photon_ros.models.nano.vocabulary import ANY_CLASS, ANY_COLOUR, CLASSES, COLOURS, WORDS

_FILLERS = frozenset(("a", "an", "the", "all", "every", "each", "some"))
_SYNONYMS = {
    "people": "person",
    "persons": "person",
    "human": "person",
    "humans": "person",
    "pedestrian": "person",
    "pedestrians": "person",
    "thing": ANY_CLASS,
    "things": ANY_CLASS,
    "boxes": "box",
}
# Articles and the like beside a colour and a class; more is no name of anything.
MAX_WORDS = 8


class NanoTokenizer:
    """A ``core.prompting.Tokenizer`` for prompts such as ``"red cone"`` or ``"people"``.

    Every prompt becomes two ids: colour (or ``any``) and class (or ``object``), whatever its
    case, articles, plural or word order.

    Args:
        path: the ``tokenizer.json`` beside the weights.
        model_name: used in error messages.
    """

    def __init__(self, path: Path, model_name: str = "nano") -> None:
        self._words = FileTokenizer(path)
        self._model_name = model_name

    @property
    def num_ids(self) -> int:
        """One more than the largest id."""
        return self._words.num_ids

    def encode(self, text: str) -> list[int]:
        """Return the two ids of a prompt.

        Raises:
            UnknownWordError: a word is not in the vocabulary; the error lists those that are.
            PromptError: the prompt is empty, longer than :data:`MAX_WORDS` words, or names two
                colours or two classes.
        """
        colour, kind = canonical(text, self._model_name)
        return self._words.encode(f"{colour} {kind}")

    def decode(self, ids: Sequence[int]) -> str:
        """Return the words of ``ids``, special tokens and ``any`` left out."""
        words = self._words.decode(ids).split()
        return " ".join(word for word in words if word != ANY_COLOUR)


def canonical(text: str, model_name: str = "nano") -> tuple[str, str]:
    """Return (colour or ``any``, class or ``object``) of a prompt; errors as in ``encode``."""
    spoken = text.lower().split()
    words = [word for word in spoken if word not in _FILLERS]
    known = [_singular(word) for word in words]
    unknown = [word for word, match in zip(words, known, strict=True) if match is None]
    if unknown:
        listed = [word for word in WORDS if word != ANY_COLOUR]
        raise UnknownWordError(dict.fromkeys(unknown), listed, model_name)
    if len(spoken) > MAX_WORDS:
        raise PromptError(
            f"the prompt has {len(spoken)} words: {model_name} takes a colour and a class, such as "
            f"'red cone', in at most {MAX_WORDS} words"
        )
    if not words:
        raise PromptError(f"the prompt is empty: {model_name} wants a class such as 'person'")
    colours = {word for word in known if word in COLOURS}
    kinds = {word for word in known if word in CLASSES}
    for what, found in (("colour", colours), ("class", kinds)):
        if len(found) > 1:
            raise PromptError(
                f"{model_name} takes one {what} at a time, got {' and '.join(sorted(found))}: "
                f"ask twice"
            )
    return min(colours, default=ANY_COLOUR), min(kinds, default=ANY_CLASS)


def _singular(word: str) -> str | None:
    """Return the word of the vocabulary that ``word`` means, None if there is none."""
    if word in _SYNONYMS:
        return _SYNONYMS[word]
    if word in WORDS:
        return word
    if word.endswith("s") and word[:-1] in (*CLASSES, ANY_CLASS):
        return word[:-1]
    return None
