"""What pytest finds in one copy of the engine: which test failed first, and how."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
import pytest

# An assertion that only reports a crash, which says nothing about tokens, pages or order.
_CRASH = re.compile(
    r"\b(ImportError|ModuleNotFoundError|SyntaxError|NameError|UnboundLocalError"
    r"|AttributeError|TypeError)\b|a fault that nobody planted"
)
MAX_CRASHES = 10  # after so many the mutant is taken to do nothing else


@dataclass(frozen=True)
class Failure:
    """A test that failed.

    Attributes:
        is_objection: by an assertion about what the engine did, not by a crash.
        text: its name and message on one line.
    """

    is_objection: bool
    text: str


@dataclass
class Recorder:
    """A pytest plugin that keeps the failures."""

    failures: list[Failure] = field(default_factory=list)
    num_tests: int = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note how a test failed."""
        report = yield
        if report.failed and call.excinfo is not None:
            self.failures.append(_failure(item, call.excinfo.value))
            if self.objection is not None or len(self.failures) == MAX_CRASHES:
                item.session.shouldstop = "enough was seen"
        return report

    @property
    def objection(self) -> Failure | None:
        """The first assertion about what the engine did."""
        return next((failure for failure in self.failures if failure.is_objection), None)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Note how many tests there were, and that they tested this copy."""
        import photon_ros

        self.num_tests = session.testscollected
        package = Path(str(photon_ros.__file__)).resolve()
        assert package.is_relative_to(Path.cwd().resolve()), f"{package} was tested instead"


def settle_hypothesis() -> None:
    """Draw the same examples in every run, and spend no time on shrinking them."""
    hypothesis.settings.register_profile(
        "mutants",
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("mutants")


def _failure(item: pytest.Item, error: BaseException) -> Failure:
    leaves = list(_leaves(error))
    text = " ".join(str(leaves[0]).split())
    is_assertion = all(isinstance(leaf, AssertionError) for leaf in leaves)
    is_missing_refusal = isinstance(error, pytest.fail.Exception) and "DID NOT RAISE" in text
    is_objection = (is_assertion or is_missing_refusal) and not _CRASH.search(text)
    kind = "" if is_objection else f" crashed with {type(leaves[0]).__name__}"
    return Failure(is_objection, f"{item.nodeid.split('/')[-1]}{kind}: {text}")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    parts = getattr(error, "exceptions", None)
    if parts is None:
        yield error
        return
    for part in parts:
        yield from _leaves(part)
