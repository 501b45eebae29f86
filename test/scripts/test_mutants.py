"""The mutation run: its edges are where the engine is, and only an objection counts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.mutants.edge import Change, Edge, EdgeError, load_edges
from scripts.mutants.verdict import Failure, Recorder, _failure

ROOT = Path(__file__).resolve().parents[2]
EDGES = load_edges()
PROMISED = (
    "the copy does not wait for the sampling",
    "the copy waits for an event recorded before the spatial decode",
    "a slot is freed before its landed tokens are read",
    "a sequence is released at its stop token while a step names it",
    "held rows are sampled before the commit they wait for",
    "held rows are masked by the state before the commit",
    "a commit drops one reference too many",
    "padding is written to the first frame",
    "a sibling encodes its frame again",
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "photon_ros" / "engine", tmp_path / "photon_ros" / "engine")
    return tmp_path


@pytest.mark.parametrize("edge", EDGES, ids=[edge.name for edge in EDGES])
def test_every_edge_applies_and_has_tests_to_be_noticed_by(edge: Edge, copy: Path) -> None:
    assert edge.changes
    for change in edge.changes:
        before = (copy / "photon_ros" / "engine" / change.file).read_text()
        change.apply(copy)
        assert (copy / "photon_ros" / "engine" / change.file).read_text() != before
    assert edge.tests
    for name in edge.tests:
        assert (ROOT / "test" / "engine" / name).is_file()


def test_there_are_enough_edges_and_the_promised_ones_among_them() -> None:
    names = {edge.name for edge in EDGES}
    assert len(names) >= 20
    assert names >= set(PROMISED)


@pytest.mark.parametrize(
    ("old", "message"),
    [("        no such line\n", "found 0 times"), ("    @property\n", "must be once")],
)
def test_a_change_that_does_not_fit_is_an_error(copy: Path, old: str, message: str) -> None:
    with pytest.raises(EdgeError, match=message):
        Change("pipeline.py", old, "").apply(copy)


@pytest.mark.parametrize(
    ("text", "message"),
    [("=== a\n=== a\n", "used twice"), ("=== a\nwhat is this\n", "is no part of an edge")],
)
def test_a_list_that_means_nothing_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "edges.diff"
    path.write_text(text)
    with pytest.raises(EdgeError, match=message):
        load_edges(path)


class _Item:
    nodeid = "test/engine/test_a.py::test_b"


def _did_not_raise() -> BaseException:
    try:
        with pytest.raises(ValueError, match="never"):
            pass
    except BaseException as error:
        return error
    raise AssertionError("pytest.raises let it pass")


@pytest.mark.parametrize(
    ("error", "is_objection"),
    [
        (AssertionError("assert [1, 2] == [1, 3]"), True),
        (_did_not_raise(), True),
        (AssertionError("a fault that nobody planted: its step failed: IndexError: 9"), False),
        (AssertionError("['its grammar failed: AttributeError: no x']"), False),
        (AttributeError("no x"), False),
        (ImportError("no module"), False),
        (IndexError("out of range"), False),
        (SystemExit(1), False),
    ],
)
def test_only_an_assertion_about_what_the_engine_did_is_an_objection(
    error: BaseException, is_objection: bool
) -> None:
    assert _failure(_Item(), error).is_objection is is_objection


def test_an_objection_behind_a_crash_still_counts() -> None:
    recorder = Recorder([Failure(False, "crashed"), Failure(True, "objected")])
    assert recorder.objection == Failure(True, "objected")
    assert Recorder([Failure(False, "crashed")]).objection is None


TRIALS = """
import json
from scripts.mutants.edge import Change, Edge
from scripts.mutants.trial import Trial, run_trials

LINE = '            raise PipelineError(f"launch of a {step}: the slot is in flight")\\n'
news = {
    "removed": "            pass\\n",
    "harmless": LINE + "            # as before\\n",
    "crashing": "            no_such_name\\n",
    "gone": None,
}
trials = [Trial("no change", ["test_pipeline.py"])]
for name, new in news.items():
    change = Change("pipeline.py", LINE if new is not None else "        gone\\n", new or "")
    trials.append(Trial(name, ["test_pipeline.py"], Edge(name, ["test_pipeline.py"], [change])))
print(json.dumps({v.name: [v.is_good, v.why] for v in run_trials(trials, 1)}))
"""


def test_a_mutant_counts_when_a_test_objects_and_not_when_it_survives_or_crashes() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", TRIALS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    verdicts = json.loads(ran.stdout.splitlines()[-1])
    assert {name: is_good for name, (is_good, _) in verdicts.items()} == {
        "no change": True,
        "removed": True,
        "harmless": False,
        "crashing": False,
        "gone": False,
    }
    assert "DID NOT RAISE" in verdicts["removed"][1]
    assert "survived" in verdicts["harmless"][1]
    assert "NameError" in verdicts["crashing"][1]
    assert "does not apply" in verdicts["gone"][1]
