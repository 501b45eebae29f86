from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def shared() -> Path:
    """The folder with recordings and reference outputs; skips where there is none."""
    name = os.environ.get("PHOTON_SHARED")
    if not name:
        pytest.skip("PHOTON_SHARED does not name a folder with recordings")
    return Path(name)
