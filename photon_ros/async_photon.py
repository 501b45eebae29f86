"""AsyncPhoton: the calls of Photon for code that runs in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from photon_ros.core.frame import Frame
from photon_ros.core.request import Request
from photon_ros.core.result import Result
from photon_ros.photon import Photon
from photon_ros.pictures import Picture, frame_of
from photon_ros.questions import (
    Answer,
    Objects,
    Question,
    SpatialOptions,
    TextOptions,
    reasoning_dict,
    spatial_question,
    text_question,
)
from photon_ros.text_stream import TextStream

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncPhoton:
    """A Photon whose answers are awaited; arguments and answers are those of Photon.

    async with AsyncPhoton(Photon("nano")) as photon:
        await photon.detect(image, "person")

    Cancelling the awaiting task cancels the request. Leaving the context closes the Photon.
    """

    def __init__(self, photon: Photon) -> None:
        self._photon = photon

    async def submit(self, request: Request) -> Result:
        """Answer a request; see :meth:`Photon.submit`."""
        return await asyncio.wrap_future(self._photon.submit(request))

    def stream(self, request: Request) -> TextStream:
        """Queue a request, to be read in an ``async for``; see :meth:`Photon.stream`."""
        return self._photon.stream(request)

    async def point(
        self, image: Picture, prompt: str, **options: Unpack[SpatialOptions]
    ) -> Objects:
        """See :meth:`Photon.point`."""
        frame = await _read(image)
        return await self._ask(spatial_question("point", frame, prompt, **options))

    async def detect(
        self, image: Picture, prompt: str, **options: Unpack[SpatialOptions]
    ) -> Objects:
        """See :meth:`Photon.detect`."""
        frame = await _read(image)
        return await self._ask(spatial_question("detect", frame, prompt, **options))

    async def segment(
        self,
        image: Picture,
        prompt: str,
        *,
        spatial_refs: Sequence[Sequence[float]] = (),
        **options: Unpack[TextOptions],
    ) -> dict[str, Any]:
        """See :meth:`Photon.segment`."""
        frame = await _read(image)
        return await self._ask(
            text_question("segment", frame, prompt, spatial_refs=spatial_refs, **options)
        )

    async def query(
        self,
        image: Picture | None,
        question: str,
        *,
        stream: bool = False,
        reasoning: bool = False,
        spatial_refs: Sequence[Sequence[float]] = (),
        **options: Unpack[TextOptions],
    ) -> dict[str, Any]:
        """See :meth:`Photon.query`; a streamed answer is read in an ``async for``."""
        frame = None if image is None else await _read(image)
        asked = text_question(
            "query", frame, question, reasoning=reasoning, spatial_refs=spatial_refs, **options
        )
        if not stream:
            return await self._ask(asked)
        answer = self.stream(asked.request)
        if not reasoning:
            return {"answer": answer}
        return {"reasoning": reasoning_dict(await answer.areasoning()), "answer": answer}

    async def caption(
        self,
        image: Picture,
        length: str = "normal",
        *,
        stream: bool = False,
        **options: Unpack[TextOptions],
    ) -> dict[str, Any]:
        """See :meth:`Photon.caption`; a streamed text is read in an ``async for``."""
        asked = text_question("caption", await _read(image), length, **options)
        return {"caption": self.stream(asked.request)} if stream else await self._ask(asked)

    async def encode_image(self, image: Picture, *, max_crops: int | None = None) -> Frame:
        """See :meth:`Photon.encode_image`."""
        frame = await _read(image)
        await asyncio.wrap_future(self._photon.submit_encoding(frame, max_crops=max_crops))
        return frame

    async def close(self) -> None:
        """Stop; see :meth:`Photon.close`."""
        await asyncio.to_thread(self._photon.close)

    async def __aenter__(self) -> AsyncPhoton:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _ask(self, question: Question[Answer]) -> Answer:
        return question.shape(await self.submit(question.request))


async def _read(picture: Picture) -> Frame:
    """Return the picture's Frame; decoding a file takes longer than a loop should wait."""
    return picture if isinstance(picture, Frame) else await asyncio.to_thread(frame_of, picture)
