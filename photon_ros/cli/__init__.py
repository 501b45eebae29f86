"""photon-ros: the command line, one module per subcommand.

Exit code 0: done. 1: it ran, and some cases or frames failed (answered in part, too late or with
an error, or not decodable), or nobody reads what it prints. 2: it could not run, and one line on
stderr says why. 129, 130, 143: hung up, interrupted, terminated.

Modules here import only the standard library and photon_ros.core at the top; everything heavy
is imported by the subcommand that needs it, so that help and mistakes answer at once.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from photon_ros import __version__
from photon_ros.cli import ask, bag, bench, evaluate, golden
from photon_ros.cli.wording import complain, error_message, shortened
from photon_ros.core.errors import PhotonError

EXIT_FAILED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("photon-ros").strip()
        where = f"{command}: " if command else ""
        words = " ".join(shortened(word) for word in message.split())
        complain(f"{where}{words} (see {self.prog} --help)")
        raise SystemExit(EXIT_UNUSABLE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _make_streams_usable()
    parser = _parser()
    parsed = parser.parse_args(arguments)
    _clean_up_when_terminated()
    try:
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except PhotonError as error:
        complain(error_message(error, _given(parsed)))
        return EXIT_UNUSABLE
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "photon_ros":
            raise
        complain(f"the Python package {error.name!r} is not installed; this command needs it")
        return EXIT_UNUSABLE
    except BrokenPipeError:
        # The reader of stdout went away (| head); the interpreter must not try to flush to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:  # such as a file name that the file system finds too long
        complain(error_message(error))
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        complain("interrupted")
        return EXIT_INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="photon-ros",
        description="Ask pictures and recordings in plain language, without ROS.",
    )
    parser.add_argument("--version", action="version", version=f"photon-ros {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", required=True, metavar="COMMAND"
    )
    ask.add_parsers(commands)
    evaluate.add_parser(commands)
    bag.add_parser(commands)
    golden.add_parser(commands)
    bench.add_parser(commands)
    return parser


def _given(parsed: argparse.Namespace) -> list[str]:
    """Return every text among the arguments, which an error may name."""
    values = [value if isinstance(value, list) else [value] for value in vars(parsed).values()]
    return [text for value in values for text in value if isinstance(text, str)]


def _make_streams_usable() -> None:
    """Let whatever is printed be printed: to a closed stream, and in any encoding."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us (>&-)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _clean_up_when_terminated() -> None:
    """Let SIGTERM and SIGHUP unwind like an exception, so that children and half files go, too."""

    def unwind(number: int, frame: object) -> NoReturn:  # noqa: ARG001
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, unwind)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
            signal.signal(signal.SIGHUP, unwind)
