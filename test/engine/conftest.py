"""Lets the tests of this folder import its fakes by name."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def opened() -> Iterator[Any]:
    """Open workers that are closed after the test; see asking.py."""
    from asking import open_workers

    with open_workers() as open_worker:
        yield open_worker
