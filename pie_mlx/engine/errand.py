"""An errand: work that must run on the engine's thread, between two steps, within a limit of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Generic, TypeVar

T = TypeVar("T")


class Errand(Generic[T]):
    """Some work, and the future that its caller waits on; the first answer counts."""

    def __init__(self, work: Callable[[], T], future: Future[T], limit_s: float) -> None:
        """Take the work on; ``future`` gets its answer; without a heartbeat for ``limit_s`` it counts as hung."""
        self._work = work
        self._future = future
        self.limit_s = limit_s

    def run(self) -> None:
        """Do the work; its caller gets the result, or whatever it raised."""
        try:
            result = self._work()
        except Exception as error:  # noqa: BLE001  (the thread's edge: the caller gets it, with its type)
            self.fail(error)
            return
        # Where the engine was given up meanwhile, the caller has its error already.
        with contextlib.suppress(InvalidStateError):
            self._future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Tell the caller that there will be no result, unless it has an answer already."""
        with contextlib.suppress(InvalidStateError):
            self._future.set_exception(error)
