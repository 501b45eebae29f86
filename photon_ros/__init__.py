"""Ask pictures and robots' cameras in plain language.

    from photon_ros import Photon

The names below are fetched when they are first asked for: importing the package, or one of its
rooms without a model, loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from photon_ros.async_photon import AsyncPhoton
    from photon_ros.core.errors import PhotonError
    from photon_ros.core.frame import Frame
    from photon_ros.core.request import Request
    from photon_ros.core.result import Detection, Result
    from photon_ros.engine.config import EngineConfig
    from photon_ros.photon import Photon

__all__ = [
    "AsyncPhoton",
    "Detection",
    "EngineConfig",
    "Frame",
    "Photon",
    "PhotonError",
    "Request",
    "Result",
]
__version__ = "0.1.0"
# The messages that colcon generates lie in a folder of their own.
__path__ = extend_path(__path__, __name__)

_HOMES = {
    "AsyncPhoton": "async_photon",
    "Detection": "core.result",
    "EngineConfig": "engine.config",
    "Frame": "core.frame",
    "Photon": "photon",
    "PhotonError": "core.errors",
    "Request": "core.request",
    "Result": "core.result",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
