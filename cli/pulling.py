"""Progress of a pull on stderr: a bar for a person, a line a phase for a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pie_mlx.cli.clean import one_line
from pie_mlx.cli.figures import format_bytes

if TYPE_CHECKING:
    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.models.progress import PullProgress

_LINE_EVERY_S = 5.0


@contextmanager
def showing_progress(stderr: Stderr) -> Iterator[Callable[[PullProgress], None]]:
    """Yield what a pull reports to."""
    if not stderr.console.is_terminal:
        yield _LineProgress(stderr)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr.console, transient=True) as bars:
        task = bars.add_task("", total=None)

        def show(progress: PullProgress) -> None:
            bars.update(
                task,
                description=f"{one_line(progress.name)} {progress.phase}",
                completed=progress.done_bytes,
                total=progress.total_bytes,
            )

        yield show


class _LineProgress:
    """One line when a phase begins, and now and then in a long one."""

    def __init__(self, stderr: Stderr) -> None:
        self._stderr = stderr
        self._phase = ""
        self._said_s = 0.0

    def __call__(self, progress: PullProgress) -> None:
        """Say where the pull is."""
        now = time.monotonic()
        if progress.phase == self._phase and now - self._said_s < _LINE_EVERY_S:
            return
        self._phase, self._said_s = progress.phase, now
        done, total = format_bytes(progress.done_bytes), format_bytes(progress.total_bytes)
        amount = f" {done} of {total}" if progress.phase == "downloading" else ""
        self._stderr.line(f"{progress.name}: {progress.phase}{amount}")
