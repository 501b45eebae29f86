"""LiveConfig: the config in force, and the version of what each camera is asked. No ROS here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from photon_ros.ros.params import NodeConfig


@dataclass(frozen=True, slots=True)
class LiveConfig:
    """Read once per frame: a frame keeps the one that it was admitted with.

    Attributes:
        versions: by camera, how often its skills or prompts have changed; 0 when missing.
    """

    config: NodeConfig
    versions: Mapping[str, int] = field(default_factory=dict)

    def version(self, camera: str) -> int:
        """Return the ``prompt_version`` of a camera's frames."""
        return self.versions.get(camera, 0)

    def changed(self, config: NodeConfig) -> LiveConfig:
        """Return the one that follows, in which only the cameras concerned have a new version."""
        old = self.config
        return LiveConfig(
            config,
            {
                camera: self.version(camera) + (config.questions(camera) != old.questions(camera))
                for camera in config.cameras or ("",)
            },
        )
