"""CameraConfig: what one camera of several is asked, where that differs. No ROS here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Final

from photon_ros.core.errors import InputError
from photon_ros.ros.param_spec import ParamSpec, param

FRAME_SKILLS: Final = ("point", "detect", "segment")

Question = tuple[str, tuple[str, ...]]
"""A skill of :data:`FRAME_SKILLS`, and the prompts it is asked with."""


@dataclass(frozen=True, slots=True)
class CameraConfig:
    """One camera's own skills and prompts; an empty list takes the one of all cameras."""

    skills: tuple[str, ...] = param(
        "skills",
        (),
        "skills asked of this camera's frames; empty takes skills",
        choices=FRAME_SKILLS,
    )
    prompts_point: tuple[str, ...] = param(
        "prompts.point", (), "what to point at with this camera; empty takes prompts.point"
    )
    prompts_detect: tuple[str, ...] = param(
        "prompts.detect", (), "what to find with this camera; empty takes prompts.detect"
    )
    prompts_segment: tuple[str, ...] = param(
        "prompts.segment", (), "what to outline with this camera; empty takes prompts.segment"
    )

    def prompts(self, skill: str) -> tuple[str, ...]:
        """Return the prompts of a skill of :data:`FRAME_SKILLS`."""
        by_skill = {
            "point": self.prompts_point,
            "detect": self.prompts_detect,
            "segment": self.prompts_segment,
        }
        return by_skill[skill]

    def values(self, camera: str) -> dict[str, tuple[str, ...]]:
        """Return every parameter's value by its ROS name."""
        return {spec.name: getattr(self, spec.field_name) for spec in camera_specs(camera)}


@cache
def camera_specs(camera: str) -> tuple[ParamSpec, ...]:
    """Return the parameters that the camera named has for itself."""
    return tuple(
        ParamSpec(
            field_name=item.name,
            **{**item.metadata, "name": f"camera.{camera}.{item.metadata['name']}"},
        )
        for item in fields(CameraConfig)
    )


def checked_questions(
    common: CameraConfig, own: CameraConfig | None, camera: str
) -> tuple[Question, ...]:
    """Return what a camera is asked.

    Args:
        common: the lists of all cameras.
        own: those of this one; None when it has none.

    Raises:
        InputError: no skill, no prompt for one, an empty prompt, or something twice; names the
            parameter.
    """
    prefix = f"camera.{camera}."
    name, skills = "skills", common.skills
    if own is not None and own.skills:
        name, skills = f"{prefix}skills", own.skills
    check_distinct(name, skills)
    if not skills:
        raise InputError(f"{name} is empty; give at least one of {', '.join(FRAME_SKILLS)}")
    questions = []
    for skill in skills:
        prompts_name, prompts = f"prompts.{skill}", common.prompts(skill)
        if own is not None and own.prompts(skill):
            prompts_name, prompts = f"{prefix}{prompts_name}", own.prompts(skill)
        if not prompts:
            also = "" if own is None else f", {prefix}{prompts_name} too"
            raise InputError(f"{prompts_name} is empty{also}, and {name} has {skill}")
        if any(not prompt.strip() for prompt in prompts):
            raise InputError(f"{prompts_name} has an empty prompt")
        check_distinct(prompts_name, prompts)
        questions.append((skill, prompts))
    return tuple(questions)


def check_distinct(name: str, words: tuple[str, ...]) -> None:
    """Raise InputError, naming the parameter, when a word is there twice."""
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise InputError(f"{name} has {twice[0]!r} more than once")
