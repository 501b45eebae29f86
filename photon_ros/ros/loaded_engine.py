"""LoadedEngine: a loaded model with what keeps it within its memory and what measures it."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from photon_ros.core.request import Request
from photon_ros.core.result import Result
from photon_ros.photon import Photon
from photon_ros.ros.engine_gauge import EngineGauge, EngineReading
from photon_ros.ros.retried_stream import RetriedStream
from photon_ros.ros.shedder import Shedder


class LoadedEngine:
    """Between configure and cleanup.

    Attributes:
        photon: the engine itself; requests go through ``submit`` and ``stream``.
        device: what it runs on.
    """

    def __init__(self, photon: Photon, device: str) -> None:
        self.photon = photon
        self.device = device
        self._shedder = Shedder(photon.submit)
        self._gauge = EngineGauge(photon, self._shedder, device)

    def check(self, request: Request) -> None:
        """Raise PhotonError when the request is wrong."""
        self.photon.check(request)

    def submit(self, request: Request) -> Future[Result]:
        """Queue a request; every error arrives in the future."""
        return self._shedder.submit(request)

    def stream(self, request: Request) -> RetriedStream:
        """Queue a request for an answer in words; every error arrives while it is read."""
        return RetriedStream(lambda: self.photon.stream(request), self._shedder.enter)

    def reading(self) -> EngineReading:
        """Return how busy it is, and was since the reading before."""
        return self._gauge.read()

    def close(self, timeout_s: float) -> None:
        """Free the model, and return after ``timeout_s`` at the latest.

        Closing waits for the step that runs, which takes seconds with a large model on a CPU.
        """
        closing = threading.Thread(target=self.photon.close, name="photon-close", daemon=True)
        closing.start()
        closing.join(timeout=timeout_s)
