"""The services ~/enable, ~/reset_stats and ~/flush."""

from __future__ import annotations

from typing import Protocol

from rclpy.node import Node
from std_srvs.srv import SetBool, Trigger

from photon_ros.core.errors import PhotonError


class Controlled(Protocol):
    """What the services change; each raises PhotonError with the reason when it cannot be."""

    def set_enabled(self, is_enabled: bool) -> str:
        """Open or close the input; return what was done."""
        ...

    def reset_stats(self) -> str:
        """Begin every account anew; return what was done."""
        ...

    def flush(self, reason: str) -> str:
        """Drop what waits and give up what is being answered; return what was done."""
        ...


def create_services(node: Node, controlled: Controlled) -> None:
    """Create the services on ``node``."""

    def on_enable(request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        try:
            response.message = controlled.set_enabled(bool(request.data))
            response.success = True
        except PhotonError as error:
            response.message = str(error)
        return response

    def on_reset(_request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.message, response.success = controlled.reset_stats(), True
        return response

    def on_flush(_request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        try:
            response.message = controlled.flush("flushed on request")
            response.success = True
        except PhotonError as error:
            response.message = str(error)
        return response

    node.create_service(SetBool, "~/enable", on_enable)
    node.create_service(Trigger, "~/reset_stats", on_reset)
    node.create_service(Trigger, "~/flush", on_flush)
