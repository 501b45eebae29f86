"""A progress bar on stderr, only where somebody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress_bar(description: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs; yields what to call after each step.

    Written to stderr, so that stdout stays a result; silent when stderr is not a terminal. The
    bar is gone when the block ends, also by an error, which then has the terminal to itself.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}" + ("" if total is None else f"/{total}")),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(description, total=total)

        def advance() -> None:
            bar.advance(task)

        yield advance
