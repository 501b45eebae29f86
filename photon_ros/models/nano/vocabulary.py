"""The words nano knows, and their token ids.

Ids 0 to 20 are special, as in the Moondream family; the words follow. A prompt is always two
words: a colour (or ``any``) and a class (or ``object``).
"""

from __future__ import annotations

END = "<|endoftext|>"
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
CLASSES = (
    "circle",
    "square",
    "triangle",
    "star",
    "ball",
    "box",
    "cone",
    "bottle",
    "person",
    "door",
    "barrel",
)
ANY_COLOUR = "any"
ANY_CLASS = "object"

BOS_ID = 0
EOS_ID = 0
SEPARATOR_ID = 3
COORD_ID = 5
SIZE_ID = 6
SKILL_IDS = {"point": 10, "detect": 11, "segment": 12}
FIRST_WORD_ID = 21
# Room for later words, so that weights can be carried over to a larger vocabulary.
VOCAB_SIZE = 48

WORDS = (ANY_COLOUR, *COLOURS, ANY_CLASS, *CLASSES)


def special_tokens() -> dict[str, int]:
    """Return every special token with its id, 0 to 20."""
    named = {
        END: EOS_ID,
        "<separator>": SEPARATOR_ID,
        "<coord>": COORD_ID,
        "<size>": SIZE_ID,
        **{f"<{skill}>": token_id for skill, token_id in SKILL_IDS.items()},
    }
    taken = set(named.values())
    reserved = {f"<reserved_{i}>": i for i in range(FIRST_WORD_ID) if i not in taken}
    return dict(sorted((named | reserved).items(), key=lambda item: item[1]))


def word_ids() -> dict[str, int]:
    """Return every word with its id."""
    return {word: FIRST_WORD_ID + i for i, word in enumerate(WORDS)}
