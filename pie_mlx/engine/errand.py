"""An errand: work that must run on the engine's thread, between two steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Errand(Generic[T]):
    """Some work, and the future that its caller waits on."""

    def __init__(self, work: Callable[[], T], future: Future[T]) -> None:
        self._work = work
        self.future = future

    def run(self) -> None:
        """Do the work; its caller gets the result, or whatever it raised."""
        try:
            self.future.set_result(self._work())
        except Exception as error:  # noqa: BLE001  (the thread's edge: the caller gets it, with its type)
            self.future.set_exception(error)
