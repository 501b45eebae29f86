"""What every skill is: a way of asking, and the grammar of the answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from photon_ros.core.errors import InputError, UnsupportedSkillError
from photon_ros.core.prompting import Prompting, PromptTemplate
from photon_ros.core.request import Request
from photon_ros.core.result import EndReason, Reasoning, Result
from photon_ros.engine.interfaces import SkillState
from photon_ros.skills.prompt import Prompt


class TextListener(Protocol):
    """Hears an answer's text as it is committed, on the engine's thread: be quick."""

    def on_token(self, token_id: int) -> None:
        """Take the next token of the answer."""
        ...

    def on_reasoning(self, build: Callable[[], Reasoning]) -> None:
        """Learn that the reasoning before the answer is over; ``build`` turns it into words."""
        ...


class AnswerState(SkillState, Protocol):
    """A grammar that knows what its tokens mean."""

    def build_result(self, request: Request, end_reason: EndReason) -> Result:
        """Return the answer, without timings; called once, after the last token, on any thread."""
        ...


@dataclass(frozen=True, slots=True)
class Skill(ABC):
    """One way of asking.

    Attributes:
        name: as users say it, and as the model's templates are keyed.
        needs_frame: it makes no sense without an image.
    """

    name: str
    needs_frame: bool = True

    def is_known_to(self, prompting: Prompting) -> bool:
        """True when the model was trained for this skill."""
        return self.name in prompting.templates

    @abstractmethod
    def prompt(self, prompting: Prompting, request: Request, *, has_frame: bool) -> Prompt:
        """Return the prompt of a request, after the image when it has one.

        Raises:
            UnsupportedSkillError: the model was not trained for what is asked.
            PromptError: the prompt is empty, too long, or holds words the model does not know.
            InputError: the request asks for something this skill does not have.
        """

    @abstractmethod
    def start(
        self, prompting: Prompting, request: Request, listener: TextListener | None = None
    ) -> AnswerState:
        """Return the grammar of one request; ``listener`` hears text as it is committed."""

    def template(self, prompting: Prompting) -> PromptTemplate:
        """Return the model's template of this skill; raises UnsupportedSkillError without one."""
        template = prompting.templates.get(self.name)
        if template is None:
            raise self.refusal(prompting)
        return template

    def refusal(self, prompting: Prompting) -> UnsupportedSkillError:
        """Return the error that names models which have this skill."""
        peers = ", ".join(prompting.peers.get(self.name, ())) or "none known"
        return UnsupportedSkillError(
            f"{prompting.model_name} has no {self.name} skill; models that do: {peers}"
        )

    def refuse_extras(
        self, request: Request, *, reasoning: bool = False, spatial_refs: bool = False
    ) -> None:
        """Raise InputError when the request has what this skill does not take."""
        if request.reasoning and not reasoning:
            raise InputError(f"{self.name} takes no reasoning; only query does")
        if request.spatial_refs and not spatial_refs:
            raise InputError(f"{self.name} takes no spatial references; query and segment do")
