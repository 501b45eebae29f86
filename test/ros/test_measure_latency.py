"""The tool that measures the node from outside gives figures that fit what it sent."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("photon_ros.msg", reason="the messages are not built: make build")

pytestmark = pytest.mark.ros

TOOL = Path(__file__).with_name("measure_latency.py")


def test_a_short_measurement_accounts_for_what_was_published() -> None:
    length = ("--size", "160x120", "--hz", "20", "--seconds", "3")
    done = subprocess.run(
        [sys.executable, TOOL, *length, "--ros-args", "-p", "max_crops:=0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = re.search(
        r"published (\d+), received (\d+) .*completed (\d+), failed (\d+), overwritten (\d+)",
        done.stdout,
    )
    assert counts is not None, done.stdout
    published, received, completed, failed, overwritten = map(int, counts.groups())
    assert published == 60
    assert 20 <= received <= published  # best effort, and a busy machine
    assert completed + failed + overwritten == received
    assert completed > 3
    figures = re.search(r"p50 (\d+), p95 (\d+), p99 (\d+), max (\d+) ms", done.stdout)
    assert figures is not None
    ordered = [int(figure) for figure in figures.groups()]
    assert 0 < ordered[0] < 2000
    assert ordered == sorted(ordered)
    assert "the node ended after" in done.stdout
    assert "code 0" in done.stdout


def test_a_node_that_cannot_start_ends_the_measurement_with_its_code() -> None:
    done = subprocess.run(
        [sys.executable, TOOL, "--ros-args", "-p", "max_crops:=99"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "max_crops must be from -1 to 64, got 99" in done.stderr
