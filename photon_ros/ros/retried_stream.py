"""RetriedStream: an answer in words that survives the end of the GPU's memory. No ROS here."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future

from photon_ros.core.errors import EngineFault, PhotonError, RequestCancelled
from photon_ros.core.result import Result
from photon_ros.text_stream import TextStream

Enter = Callable[[Callable[[], Future[Result]]], Future[Result]]
"""Starts something in the engine, again if need be, and returns the future of its last word."""


class RetriedStream:
    """Pieces of text; iterate once. Joined they are the text of the result.

    What a first try has written is not written again by the next.

    Args:
        start: asks the engine; called for each try.
        enter: decides when, and whether once more.
    """

    def __init__(self, start: Callable[[], TextStream], enter: Enter) -> None:
        self._start = start
        # Each try's stream, and None once there will be no more.
        self._tries: queue.SimpleQueue[TextStream | None] = queue.SimpleQueue()
        self.result = enter(self._begin)
        """The whole answer, or the error of the last try."""
        self.result.add_done_callback(lambda _: self._tries.put(None))

    def _begin(self) -> Future[Result]:
        stream = self._start()
        self._tries.put(stream)
        return stream.result

    def close(self) -> None:
        """Cancel what is left; whoever iterates is told by RequestCancelled."""
        self.result.cancel()

    def __iter__(self) -> Iterator[str]:
        written = ""
        try:
            while (stream := self._tries.get()) is not None:
                for text in _growing(stream):
                    if not (text.startswith(written) or written.startswith(text)):
                        raise EngineFault(
                            "the GPU's memory ran out, and asked again the model answers otherwise"
                        )
                    if len(text) > len(written):
                        fresh = text[len(written) :]
                        written = text
                        yield fresh
            self._raise_error()
        finally:
            self.close()

    def _raise_error(self) -> None:
        try:
            self.result.result()
        except CancelledError:
            raise RequestCancelled("the question was cancelled") from None


def _growing(stream: TextStream) -> Iterator[str]:
    """Yield the text so far after each piece; an error ends it, and is known to the result."""
    text = ""
    try:
        for piece in stream:
            text += piece
            yield text
    except PhotonError:
        return
