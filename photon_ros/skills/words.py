"""Query and caption: skills that answer in words."""

from __future__ import annotations

from dataclasses import dataclass

from photon_ros.core.errors import PromptError, UnsupportedSkillError
from photon_ros.core.prompting import Prompting
from photon_ros.core.request import Request
from photon_ros.skills.prompt import Prompt, build_prompt, require_text
from photon_ros.skills.reasoning import ReasoningState
from photon_ros.skills.skill import AnswerState, Skill, TextListener
from photon_ros.skills.text import TextState


@dataclass(frozen=True, slots=True)
class QuerySkill(Skill):
    """A question, about an image or about nothing but itself."""

    def prompt(self, prompting: Prompting, request: Request, *, has_frame: bool) -> Prompt:
        """Return the question between the template's ids; see :meth:`Skill.prompt`."""
        template = self.template(prompting)
        require_text(request.prompt, self.name)
        suffix = template.suffix
        if request.reasoning:
            suffix = (*template.suffix_once, _thinking_id(prompting))
        question = prompting.tokenizer.encode(template.object_prefix + request.prompt)
        return build_prompt(
            prompting,
            (template.prefix, question, suffix),
            refs=request.spatial_refs,
            has_frame=has_frame,
            num_characters=len(request.prompt),
        )

    def start(
        self, prompting: Prompting, request: Request, listener: TextListener | None = None
    ) -> AnswerState:
        """Return the grammar of the answer, or of a thought and its answer."""
        answer = TextState(prompting, request.max_tokens, listener)
        if not request.reasoning:
            return answer
        return ReasoningState(answer, self.template(prompting).suffix_once)


@dataclass(frozen=True, slots=True)
class CaptionSkill(Skill):
    """A description; the prompt of its request is how long it shall be."""

    def is_known_to(self, prompting: Prompting) -> bool:
        """True when the model was trained for captions of any length."""
        return bool(self.lengths(prompting))

    def lengths(self, prompting: Prompting) -> tuple[str, ...]:
        """Return the lengths that the model was trained for."""
        prefix = f"{self.name}_"
        names = [name for name in prompting.templates if name.startswith(prefix)]
        return tuple(name.removeprefix(prefix) for name in names)

    def prompt(self, prompting: Prompting, request: Request, *, has_frame: bool) -> Prompt:
        """Return the template of the length; see :meth:`Skill.prompt`."""
        self.refuse_extras(request)
        lengths = self.lengths(prompting)
        if not lengths:
            raise self.refusal(prompting)
        if request.prompt not in lengths:
            raise PromptError(
                f"{prompting.model_name} writes captions of length {', '.join(lengths)}; "
                f"got {request.prompt!r}"
            )
        template = prompting.templates[f"{self.name}_{request.prompt}"]
        return build_prompt(prompting, (template.prefix, template.suffix), has_frame=has_frame)

    def start(
        self,
        prompting: Prompting,
        request: Request,
        listener: TextListener | None = None,
    ) -> AnswerState:
        """Return the grammar of the description."""
        return TextState(prompting, request.max_tokens, listener)


def _thinking_id(prompting: Prompting) -> int:
    if prompting.thinking_id is None or prompting.answer_id is None:
        raise UnsupportedSkillError(
            f"{prompting.model_name} does not reason: it has no token to start with"
        )
    return prompting.thinking_id
