"""The skills there are, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from photon_ros.core.errors import InputError
from photon_ros.skills.segment import SegmentSkill
from photon_ros.skills.skill import Skill
from photon_ros.skills.spatial import SpatialSkill
from photon_ros.skills.words import CaptionSkill, QuerySkill

SKILLS: Mapping[str, Skill] = MappingProxyType(
    {
        skill.name: skill
        for skill in (
            SpatialSkill("point", has_size=False),
            SpatialSkill("detect", has_size=True),
            SegmentSkill("segment"),
            QuerySkill("query", needs_frame=False),
            CaptionSkill("caption"),
        )
    }
)


def skill_named(name: str) -> Skill:
    """Return a skill by name; raises InputError that lists the skills there are."""
    if name not in SKILLS:
        raise InputError(f"there is no skill {name!r}; the skills are: {', '.join(SKILLS)}")
    return SKILLS[name]
