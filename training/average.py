"""Average the weights of runs that started from the same ones.

``python -m training.average FOLDER FOLDER ... --out FOLDER``

Weights before and after more training lie in one basin of the loss, and the middle between them
often does better than either, most of all on pictures unlike those of the last run (Wortsman et
al. 2022, "Robust fine-tuning of zero-shot models").
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from photon_ros.core.errors import InputError
from training.architecture import CONFIG
from training.export import export
from training.network import Network
from training.state import read_weights


def averaged(weights: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the mean of each tensor over several models of one size, at least one."""
    return {key: torch.stack([each[key] for each in weights]).mean(0) for key in weights[0]}


def main(argv: list[str] | None = None) -> int:
    """Average and export; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.average",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("weights", type=Path, nargs="+", help="folders of exported weights")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args(argv)
    network = Network(CONFIG)
    try:
        network.start_from(averaged([read_weights(path) for path in arguments.weights]))
    except InputError as error:
        print(f"average: {error}", file=sys.stderr)
        return 2
    with torch.no_grad():
        digest = export(network, arguments.out)
    print(f"exported to {arguments.out}, sha256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
