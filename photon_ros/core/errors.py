"""Everything photon_ros raises on purpose.

PhotonError
├── InputError            the caller gave something that cannot be used (exit code 2)
│   ├── ImageError        an image that is empty, unreadable, too large, of the wrong type
│   ├── PromptError       an empty or too long prompt
│   │   └── UnknownWordError   a word the model does not know; lists the known ones
│   ├── ModelError        a model folder or checkpoint that cannot be loaded
│   │   └── UnsupportedSkillError   the model was not trained for this skill
│   └── BagError          a recording or a truth file that cannot be read
├── CapacityError         the request can never fit: says what it needs and what there is
├── RequestCancelled      the request was cancelled by its owner
├── DeadlineExceeded      shed: it could not be answered in time
├── EngineStopped         submitted to, or pending in, an engine that was closed
└── EngineFault           a step failed on the device; carries the cause
"""

from __future__ import annotations

from collections.abc import Iterable


class PhotonError(Exception):
    """Base of all errors raised by photon_ros."""


class InputError(PhotonError, ValueError):
    """The caller gave something that cannot be used."""


class ImageError(InputError):
    """An image that is empty, unreadable, too large or of the wrong type."""


class PromptError(InputError):
    """A prompt that is empty or too long."""


class UnknownWordError(PromptError):
    """A prompt holds words outside the model's vocabulary."""

    def __init__(self, words: Iterable[str], known: Iterable[str], model: str) -> None:
        self.words = tuple(words)
        self.known = tuple(known)
        quoted = ", ".join(repr(word) for word in self.words)
        super().__init__(f"{model} does not know {quoted}; it knows: {', '.join(self.known)}")


class ModelError(InputError):
    """A model folder or checkpoint that cannot be loaded."""


class UnsupportedSkillError(ModelError):
    """The loaded model was not trained for the skill."""


class BagError(InputError):
    """A recording or a truth file that cannot be read."""


class CapacityError(PhotonError):
    """The request can never fit; the message says what it needs and what there is."""


class RequestCancelled(PhotonError):
    """The request was cancelled by its owner."""


class DeadlineExceeded(PhotonError):
    """The request was shed because it could not be answered in time.

    ``has_started`` tells whether device time had been spent on it by then.
    """

    def __init__(self, message: str, *, has_started: bool = False) -> None:
        self.has_started = has_started
        super().__init__(message)


class EngineStopped(PhotonError):
    """The engine was closed before the request was answered."""


class EngineFault(PhotonError):
    """A step failed on the device or in a grammar; ``__cause__`` holds the original error."""
