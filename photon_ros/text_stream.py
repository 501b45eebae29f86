"""TextStream: an answer's text while it is being written.

The engine's thread only appends what it committed; turning tokens into text happens where the
text is read.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future

from photon_ros.core.errors import InputError, RequestCancelled
from photon_ros.core.prompting import Tokenizer
from photon_ros.core.result import Reasoning, Result
from photon_ros.skills.release import TextRelease

_Event = int | Callable[[], Reasoning] | Future[Result]
"""A token, the end of the reasoning, or the end of everything."""


class StreamInbox:
    """What the engine committed and nobody has read yet; a ``TextListener``.

    One reader at a time. A reader that finds nothing leaves a future, so that a thread and a
    coroutine can wait alike.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[_Event] = deque()
        self._waiting: Future[None] | None = None

    def on_token(self, token_id: int) -> None:
        """Take the next token of the answer."""
        self._put(token_id)

    def on_reasoning(self, build: Callable[[], Reasoning]) -> None:
        """Take the end of the reasoning."""
        self._put(build)

    def on_end(self, future: Future[Result]) -> None:
        """Take the end of the answer, whatever it is."""
        self._put(future)

    def _put(self, event: _Event) -> None:
        with self._lock:
            self._events.append(event)
            waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.set_running_or_notify_cancel():
            waiting.set_result(None)

    def take(self) -> _Event | None:
        """Return the oldest event, None when there is none."""
        with self._lock:
            return self._events.popleft() if self._events else None

    def arrival(self) -> Future[None]:
        """Return a future that is done as soon as there is an event."""
        arrived: Future[None] = Future()
        with self._lock:
            if not self._events:
                self._waiting = arrived
                return arrived
        arrived.set_result(None)
        return arrived


class TextStream(Iterator[str], AsyncIterator[str]):
    """Pieces of an answer's text, in a ``for`` or an ``async for``.

    Joined they are the ``text`` of the result, which is there once the iteration has ended.
    Closing the stream, or dropping it, cancels what is left of the request.
    """

    def __init__(
        self,
        inbox: StreamInbox,
        future: Future[Result],
        tokenizer: Tokenizer,
        *,
        has_reasoning: bool = False,
    ) -> None:
        self._has_reasoning = has_reasoning
        self._inbox = inbox
        self._future = future
        self._release = TextRelease(tokenizer)
        self._reasoning: Reasoning | None = None
        self._is_over = False
        future.add_done_callback(inbox.on_end)

    @property
    def result(self) -> Future[Result]:
        """The whole answer, once it is over."""
        return self._future

    def __iter__(self) -> TextStream:
        return self

    def __aiter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        """Return the next piece; raises what went wrong, if anything did."""
        while not self._is_over:
            piece = self._take()
            if piece is None:
                self._inbox.arrival().result()
            elif piece:
                return piece
        raise StopIteration

    async def __anext__(self) -> str:
        """Return the next piece; raises what went wrong, if anything did."""
        while not self._is_over:
            piece = self._take()
            if piece is None:
                await asyncio.wrap_future(self._inbox.arrival())
            elif piece:
                return piece
        raise StopAsyncIteration

    def reasoning(self) -> Reasoning:
        """Wait until the reasoning is over, and return it.

        Raises what went wrong, if anything did before that, and InputError where no reasoning was
        asked for.
        """
        while (reasoning := self._reasoning_so_far()) is None:
            if self._take() is None:
                self._inbox.arrival().result()
        return reasoning

    async def areasoning(self) -> Reasoning:
        """Wait like :meth:`reasoning`, without holding up the event loop."""
        while (reasoning := self._reasoning_so_far()) is None:
            if self._take() is None:
                await asyncio.wrap_future(self._inbox.arrival())
        return reasoning

    def close(self) -> None:
        """Cancel what is left of the request; nothing happens when it is over."""
        self._is_over = True
        self._future.cancel()

    def __del__(self) -> None:
        self._future.cancel()

    def _take(self) -> str | None:
        """Handle one event; return the text it makes final, None when there is no event."""
        event = self._inbox.take()
        if event is None:
            return None
        if isinstance(event, int):
            return self._release.add(event)
        if isinstance(event, Future):
            return self._end(event)
        self._reasoning = event()
        return ""

    def _reasoning_so_far(self) -> Reasoning | None:
        """Return the reasoning, None while it can still come."""
        if not self._has_reasoning:
            raise InputError("the request was asked without reasoning, so it has none")
        if self._reasoning is None and self._is_over:  # read to its end, or closed
            self._end(self._future)
        return self._reasoning

    def _end(self, future: Future[Result]) -> str:
        self._is_over = True
        if future.cancelled():
            raise RequestCancelled("the request was cancelled while its answer was read")
        result = future.result()
        if self._reasoning is None:  # the context ended before the reasoning did
            self._reasoning = result.reasoning or Reasoning("")
        return self._release.flush()
