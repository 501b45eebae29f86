"""photon-ros: the command line, one module per subcommand.

Exit code 0: done. 1: it ran, and some cases or frames failed. 2: it could not run, and one line
on stderr says why. 130: interrupted.

Modules here import only the standard library and photon_ros.core at the top; everything heavy
is imported by the subcommand that needs it, so that help and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from photon_ros.cli import ask, bag, evaluate, golden
from photon_ros.core.errors import PhotonError

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("photon-ros").strip()
        where = f"{command}: " if command else ""
        _complain(f"{where}{message} (see {self.prog} --help)")
        raise SystemExit(EXIT_UNUSABLE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except PhotonError as error:
        _complain(str(error))
        return EXIT_UNUSABLE
    except BrokenPipeError:
        # The reader of stdout went away (| head); the interpreter must not try to flush to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except KeyboardInterrupt:
        _complain("interrupted")
        return EXIT_INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="photon-ros",
        description="Ask pictures and recordings in plain language, without ROS.",
    )
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    ask.add_parsers(commands)
    evaluate.add_parser(commands)
    bag.add_parser(commands)
    golden.add_parser(commands)
    return parser


def _complain(message: str) -> None:
    """Write one line to stderr, whatever the message holds."""
    print(f"photon-ros: error: {' '.join(message.split())}", file=sys.stderr)
