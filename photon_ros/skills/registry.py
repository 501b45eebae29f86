"""The skills there are, by name, and how each turns a request into a sequence's parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from photon_ros.core.errors import InputError, PromptError, UnsupportedSkillError
from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.skills.spatial import SpatialState


@dataclass(frozen=True, slots=True)
class Skill:
    """One way of asking.

    Attributes:
        name: as users say it, and as the model's templates are keyed.
        has_size: objects carry a width and a height.
    """

    name: str
    has_size: bool

    def prompt_ids(self, prompting: Prompting, prompt: str) -> tuple[int, ...]:
        """Return the ids after the image prefix.

        Raises:
            UnsupportedSkillError: the model has no template for this skill.
            PromptError: the prompt is empty, too long, or holds words the model does not know.
        """
        template = prompting.templates.get(self.name)
        if template is None:
            known = ", ".join(sorted(prompting.templates)) or "none"
            raise UnsupportedSkillError(
                f"{prompting.model_name} has no {self.name} skill; it has: {known}"
            )
        text = prompt.strip()
        if not text:
            raise PromptError(f"the prompt of {self.name} is empty; say what to look for")
        body = prompting.tokenizer.encode(template.object_prefix + text)
        ids = (*template.prefix, *body, *template.suffix)
        room = prompting.max_context - prompting.prefix_len
        if len(ids) > room:
            raise PromptError(
                f"the prompt of {len(prompt)} characters makes {len(ids)} tokens; beside the "
                f"image the context of {prompting.model_name} holds {room}"
            )
        return ids

    def start(self, prompting: Prompting, request: Request) -> SpatialState:
        """Return the grammar of one request."""
        return SpatialState(
            prompting,
            label=request.prompt.strip(),
            has_size=self.has_size,
            max_objects=request.max_objects,
        )


SKILLS: Mapping[str, Skill] = MappingProxyType(
    {skill.name: skill for skill in (Skill("point", False), Skill("detect", True))}
)


def skill_named(name: str) -> Skill:
    """Return a skill by name; raises InputError that lists the skills there are."""
    if name not in SKILLS:
        raise InputError(f"there is no skill {name!r}; the skills are: {', '.join(SKILLS)}")
    return SKILLS[name]
