"""NodeConfig: every parameter of the node, with its default, bounds and description, in one place.

The ROS parameters, their descriptors, ``config/default.yaml`` and the table in the documentation
derive from the fields below or are compared with them. No ROS here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Final

from photon_ros.core.errors import InputError
from photon_ros.core.request import MAX_CROPS, MAX_OBJECTS, MAX_TOKENS
from photon_ros.engine.config import EngineConfig
from photon_ros.pixels import MAX_PIXELS, DepthPolicy
from photon_ros.ros.camera_params import (
    FRAME_SKILLS,
    CameraConfig,
    Question,
    camera_specs,
    check_distinct,
    checked_questions,
)
from photon_ros.ros.param_spec import ParamSpec, Value, param

_CAMERA_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*(/[A-Za-z][A-Za-z0-9_]*)*")


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """All parameters at one moment, checked; see :func:`specs` for the parameters' meaning.

    Attributes:
        of_cameras: what each of ``cameras`` has for itself; completed with empty lists.

    Raises InputError, naming the parameter and what is allowed.
    """

    autostart: bool = param(
        "autostart",
        True,
        "configure and activate at the start, or exit with code 2",
        read_only=True,
    )
    model_path: str = param(
        "model.path",
        "nano",
        "'nano', a folder with a Moondream checkpoint, or a hub id",
        read_only=True,
    )
    model_revision: str = param(
        "model.revision",
        "",
        "commit, tag or branch of a hub id; empty is the one this release was tested with",
        read_only=True,
    )
    device: str = param("device", "cpu", "'cpu', 'cuda' or 'cuda:N'", read_only=True)
    dtype: str = param(
        "dtype",
        "auto",
        "number format of the weights; auto is float32 on the cpu and bfloat16 on cuda",
        read_only=True,
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    resize: str = param(
        "resize",
        "auto",
        "resampling before the model: exact as its reference does, or fast; auto is fast for nano",
        read_only=True,
        choices=("auto", "exact", "fast"),
    )
    max_streams: int = param(
        "engine.max_streams",
        EngineConfig().max_rows,
        "prompts answered together",
        read_only=True,
        minimum=1,
        maximum=256,
    )
    kv_pages: int = param(
        "engine.kv_pages",
        EngineConfig().num_private_pages,
        "key/value pages for prompts and answers",
        read_only=True,
        minimum=1,
        maximum=1_000_000,
    )
    cuda_graphs: bool = param(
        "engine.cuda_graphs",
        True,
        "on a GPU replay each decode step as one graph; false launches it kernel by kernel",
        read_only=True,
    )
    cpu_threads: int = param(
        "engine.cpu_threads",
        0,
        "threads of an operation on the CPU; 0 takes one for nano, else torch's own number",
        read_only=True,
        minimum=0,
        maximum=256,
    )
    pipelined: bool = param(
        "engine.pipelined",
        True,
        "on a GPU start the next step before the last is recorded; false waits for each step",
        read_only=True,
    )
    cameras: tuple[str, ...] = param(
        "cameras",
        (),
        "camera names: subscribes <camera>/image each; empty subscribes image",
        read_only=True,
    )
    image_transport: str = param(
        "image_transport",
        "raw",
        "subscribe sensor_msgs/Image (raw) or sensor_msgs/CompressedImage (compressed)",
        read_only=True,
        choices=("raw", "compressed"),
    )
    qos_reliability: str = param(
        "qos.reliability",
        "best_effort",
        "reliability asked of the camera's publisher",
        read_only=True,
        choices=("best_effort", "reliable"),
    )
    qos_depth: int = param(
        "qos.depth",
        1,
        "images the middleware keeps for the node",
        read_only=True,
        minimum=1,
        maximum=1000,
    )
    skills: tuple[str, ...] = param(
        "skills", ("detect",), "skills asked of every frame", choices=FRAME_SKILLS
    )
    prompts_point: tuple[str, ...] = param(
        "prompts.point", ("person",), "what to point at, one request each"
    )
    prompts_detect: tuple[str, ...] = param(
        "prompts.detect", ("person",), "what to find boxes of, one request each"
    )
    prompts_segment: tuple[str, ...] = param(
        "prompts.segment", ("person",), "what to outline, one request each"
    )
    max_objects: int = param(
        "max_objects", 50, "objects after which an answer ends", minimum=1, maximum=MAX_OBJECTS
    )
    max_tokens: int = param(
        "max_tokens",
        768,
        "tokens after which an outline or an answer in words ends",
        minimum=1,
        maximum=MAX_TOKENS,
    )
    max_crops: int = param(
        "max_crops",
        -1,
        "local crops of a frame; 0 looks at the whole image only, -1 is the model's own limit",
        minimum=-1,
        maximum=MAX_CROPS,
    )
    rate_limit_hz: float = param(
        "rate_limit_hz",
        0.0,
        "frames taken per second and camera; 0 is no limit",
        minimum=0.0,
        maximum=1000.0,
    )
    max_age_ms: float = param(
        "max_age_ms",
        0.0,
        "age in ms above which a frame is not begun or asked about; 0 is no limit",
        minimum=0.0,
        maximum=3_600_000.0,
    )
    request_timeout_ms: float = param(
        "request_timeout_ms",
        0.0,
        "time in ms after receiving a frame when its answer is given up; 0 is never",
        minimum=0.0,
        maximum=3_600_000.0,
    )
    zero_stamp_policy: str = param(
        "zero_stamp_policy",
        "keep",
        "frames stamped 0: publish so, stamp with the receive time, or drop as bad",
        choices=("keep", "receive_time", "drop"),
    )
    depth_policy: DepthPolicy = param(
        "depth_policy",
        "reject",
        "16UC1 and 32FC1 images: refuse as bad, or show the depth as grey",
        choices=("reject", "normalize"),
    )
    max_pixels: int = param(
        "max_pixels",
        MAX_PIXELS,
        "pixels above which an image is refused as bad",
        minimum=1,
        maximum=1_000_000_000,
    )
    overlay_enable: bool = param(
        "overlay.enable", True, "draw the overlay topics while anybody subscribes them"
    )
    overlay_scale: float = param(
        "overlay.scale",
        1.0,
        "size of the overlay as a share of the image's",
        minimum=0.05,
        maximum=1.0,
    )
    overlay_jpeg_quality: int = param(
        "overlay.jpeg_quality",
        80,
        "JPEG quality of the compressed overlay",
        minimum=1,
        maximum=100,
    )
    diagnostics_period: float = param(
        "diagnostics.period",
        1.0,
        "seconds between two messages on /diagnostics",
        minimum=0.1,
        maximum=60.0,
    )
    warn_p95_ms: float = param(
        "diagnostics.warn_p95_ms",
        0.0,
        "p95 latency in ms that warns; 0 is never",
        minimum=0.0,
        maximum=3_600_000.0,
    )
    error_p95_ms: float = param(
        "diagnostics.error_p95_ms",
        0.0,
        "p95 latency in ms that is an error; 0 is never",
        minimum=0.0,
        maximum=3_600_000.0,
    )
    min_fps: float = param(
        "diagnostics.min_fps",
        0.0,
        "answered frames per second below which it warns; 0 is never",
        minimum=0.0,
        maximum=1000.0,
    )
    max_drop_ratio: float = param(
        "diagnostics.max_drop_ratio",
        1.0,
        "share of received frames dropped above which it warns",
        minimum=0.0,
        maximum=1.0,
    )

    of_cameras: Mapping[str, CameraConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for spec in specs():
            object.__setattr__(self, spec.field_name, spec.parse(getattr(self, spec.field_name)))
        for name in self.cameras:
            if not _CAMERA_NAME.fullmatch(name):
                raise InputError(f"cameras: {name!r} is not a valid relative topic name")
        check_distinct("cameras", self.cameras)
        own = {name: self.of_cameras.get(name, CameraConfig()) for name in self.cameras}
        object.__setattr__(self, "of_cameras", own)
        for camera in self.cameras or ("",):
            self.questions(camera)

    def questions(self, camera: str) -> tuple[Question, ...]:
        """Return what is asked of each frame of a camera; "" is the only one."""
        common = CameraConfig(
            self.skills, self.prompts_point, self.prompts_detect, self.prompts_segment
        )
        return checked_questions(common, self.of_cameras.get(camera), camera)

    def asked(self) -> tuple[tuple[str, str], ...]:
        """Return every (skill, prompt) asked of any camera, each once."""
        questions = [item for camera in self.cameras or ("",) for item in self.questions(camera)]
        return tuple(
            dict.fromkeys((skill, prompt) for skill, prompts in questions for prompt in prompts)
        )

    def changed(self, values: Mapping[str, Any]) -> NodeConfig:
        """Return a checked copy with the named parameters set; unknown names are an InputError."""
        by_name = {spec.name: spec for spec in specs()}
        cameras = by_name["cameras"].parse(values.get("cameras", self.cameras))
        assert isinstance(cameras, tuple)
        owners = {spec.name: (name, spec) for name in cameras for spec in camera_specs(name)}
        common: dict[str, Any] = {}
        own = {name: self.of_cameras.get(name, CameraConfig()) for name in cameras}
        for name, value in values.items():
            if name in by_name:
                common[by_name[name].field_name] = value
            elif name in owners:
                camera, spec = owners[name]
                words: Any = spec.parse(value)
                own[camera] = replace(own[camera], **{spec.field_name: words})
            else:
                known = ", ".join([*by_name, *owners])
                raise InputError(f"there is no parameter {name!r}; known: {known}")
        return replace(self, **common, of_cameras=own)

    def values(self) -> dict[str, Value]:
        """Return every parameter's value by its ROS name."""
        values: dict[str, Value] = {spec.name: getattr(self, spec.field_name) for spec in specs()}
        for camera, own in self.of_cameras.items():
            values.update(own.values(camera))
        return values


@cache
def specs() -> tuple[ParamSpec, ...]:
    """Return every parameter that is there whatever the cameras, in the order of the fields."""
    return tuple(
        ParamSpec(field_name=item.name, **item.metadata)
        for item in fields(NodeConfig)
        if item.metadata
    )


def all_specs(cameras: Sequence[str]) -> tuple[ParamSpec, ...]:
    """Return every parameter of a node with these cameras."""
    return (*specs(), *(spec for name in cameras for spec in camera_specs(name)))
