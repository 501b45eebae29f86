"""Skills: a prompt becomes token ids, and committed tokens become a result.

The grammar between them is a SkillState that the engine asks what may come next.
"""

from __future__ import annotations

from photon_ros.skills.registry import SKILLS, skill_named
from photon_ros.skills.skill import Skill

__all__ = ["SKILLS", "Skill", "skill_named"]
