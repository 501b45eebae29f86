"""Run a command that ends when its parent does.

    python -m photon_ros.replay.tied PARENT_PID COMMAND [ARGUMENT ...]

A parent that is killed outright cannot end its children. On Linux the kernel then sends them
SIGTERM; elsewhere the command just runs. The setting survives the exec that follows.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent and become the command."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it ended before the line above
            raise SystemExit(1)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
