"""The GPU checks without a GPU: what they look at on any device, and that they can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from photon_ros.engine.attention import CapturedRowsAttend
from photon_ros.engine.graphs import Graphs
from photon_ros.engine.page_pool import PagePool
from scripts import gpu_check


def test_all_checks_that_need_no_gpu_pass_on_the_cpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = tmp_path / "figures.json"
    assert gpu_check.main(["--device", "cpu", "--json", str(figures)]) == 0
    assert "3 passed, 0 failed" in capsys.readouterr().out.splitlines()[-1]
    checks = json.loads(figures.read_text())["checks"]
    assert [check["name"] for check in checks] == ["equality", "graphs", "leaks"]


def test_without_a_gpu_the_default_says_so_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is there")
    assert gpu_check.main([]) == 2
    assert capsys.readouterr().err == "gpu-check: this torch sees no CUDA GPU\n"


def test_a_captured_step_with_wrong_attention_fails_equality(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attend = CapturedRowsAttend.__call__
    monkeypatch.setattr(
        CapturedRowsAttend, "__call__", lambda self, *args: attend(self, *args) * 1.5
    )
    check = gpu_check.check_equality("cpu")
    assert not check.has_passed
    assert "graphs=True pipelined=True" in check.detail
    assert "graphs=False" not in check.detail


def test_a_replay_that_remembers_its_capture_fails_the_graph_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_nothing(self: Graphs, key: object, op: object) -> None:
        if key in self._warm:
            self.num_replays += 1
            return
        self._warm.add(key)
        op()

    monkeypatch.setattr(Graphs, "run", run_nothing)
    assert not gpu_check.check_graphs("cpu").has_passed


def test_pages_that_are_not_given_back_fail_the_leak_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give = PagePool.give_pages
    forgotten: list[int] = []

    def forget_one_page(self: PagePool, pages: list[int]) -> None:
        if not forgotten:
            forgotten.append(pages[0])
            pages = pages[1:]
        give(self, pages)

    monkeypatch.setattr(PagePool, "give_pages", forget_one_page)
    check = gpu_check.check_leaks("cpu")
    assert not check.has_passed
    assert "1 pages kept" in check.detail
