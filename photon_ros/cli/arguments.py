"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which model to load, and where."""
    parser.add_argument(
        "--model",
        default="nano",
        metavar="DIR",
        help="folder of a checkpoint, its id on the Hugging Face hub, or nano, the embedded one "
        "(default: nano)",
    )
    add_device_arguments(parser)


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the model runs and in what precision."""
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="precision (default: float32 on the CPU, bfloat16 on a GPU)",
    )


def add_budget_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how much an answer may cost."""
    parser.add_argument(
        "--max-objects",
        type=int,
        default=50,
        metavar="N",
        help="end an answer after N objects (default: 50)",
    )
    add_crops_argument(parser)


def add_crops_argument(parser: argparse.ArgumentParser) -> None:
    """Add how closely a picture is looked at."""
    parser.add_argument(
        "--max-crops",
        type=int,
        metavar="N",
        help="look at no more than N local crops of an image; 0 looks at the whole image only "
        "(default: the model's own limit)",
    )


def add_depth_argument(parser: argparse.ArgumentParser) -> None:
    """Add what becomes of depth images."""
    parser.add_argument(
        "--depth-policy",
        choices=("reject", "normalize"),
        default="reject",
        help="depth images: refuse as bad, or show the depth as grey (default: reject)",
    )


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how an answer in words is chosen, and how long it may be."""
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=768,
        metavar="N",
        help="end an answer after N tokens (default: 768)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0 takes the most likely token, above it samples (default: 0)",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="sample from the likeliest tokens of this mass (default: 1)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="makes sampling repeatable (default: 0)"
    )
    add_crops_argument(parser)
