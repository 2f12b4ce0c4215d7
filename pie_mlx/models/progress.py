"""Progress of a pull, and a watcher that measures it by the bytes on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Phase: TypeAlias = Literal["waiting", "checking", "downloading", "verifying", "converting", "done"]


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Where a pull is."""

    name: str
    phase: Phase
    done_bytes: int = 0
    total_bytes: int | None = None
    """None where the source does not say."""


Report: TypeAlias = Callable[[PullProgress], None]


def bytes_below(folder: Path) -> int:
    """Return the bytes of all files below ``folder``; a file that vanishes meanwhile counts as nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += 0 if path.is_symlink() or path.is_dir() else path.stat().st_size
        except FileNotFoundError:
            continue
    return total


@contextmanager
def watching(name: str, folder: Path, total_bytes: int | None, report: Report) -> Iterator[None]:
    """Report the bytes that arrive below ``folder``, four times a second and once at the end.

    Measured on disk, so it is right for any downloader, also for one that resumes. ``report`` is
    called from a thread of its own.
    """
    ended = threading.Event()

    def tell() -> None:
        # A file that is being moved is seen twice for a moment.
        arrived = bytes_below(folder)
        report(PullProgress(name, "downloading", min(arrived, total_bytes or arrived), total_bytes))

    def watch() -> None:
        while not ended.wait(0.25):
            tell()

    tell()
    watcher = threading.Thread(target=watch, name="pull-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        tell()
