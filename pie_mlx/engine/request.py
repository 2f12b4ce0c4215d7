"""A request as its owner holds it: iterate it for pieces, or wait for its result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import Empty

from pie_mlx.engine.completion import Completion, Piece
from pie_mlx.engine.job import Job
from pie_mlx.errors import PieError
from pie_mlx.ids import RequestId


class Request:
    """A wish for tokens on a context. It ends with a :class:`Completion` or a typed error, exactly once."""

    def __init__(self, job: Job, cancel: Callable[[], None], owner: object = None) -> None:
        """Wrap a job; only :class:`~pie_mlx.engine.Context` does this. ``owner`` is kept alive until the end."""
        self._job = job
        self._cancel = cancel
        # A context that is dropped closes: one that only its request knows must not before the request ends.
        self._owner: object = owner
        self._completion: Completion | None = None
        self._error: PieError | None = None

    @property
    def id(self) -> RequestId:
        """The request's id."""
        return self._job.id

    @property
    def phase(self) -> str:
        """Where it is in its life: waiting, prefilling, decoding, preempted, restoring, finished, failed, cancelled."""
        return self._job.phase.value

    @property
    def partial(self) -> Completion:
        """What there is so far; after an error or a cancellation, what there was."""
        return self._completion or self._job.completion()

    def cancel(self) -> None:
        """End the request now; its pages beyond what its context shows are free at once. Idempotent."""
        self._cancel()

    def __iter__(self) -> Iterator[Piece]:
        """Yield pieces as they come.

        Raises:
            PieError: the typed error that ended the request, after the pieces before it.
        """
        while (piece := self._next(None)) is not None:
            yield piece

    def poll(self, timeout_s: float | None = None) -> Piece | None:
        """Return the next piece, waiting up to ``timeout_s``; None is the end.

        Raises:
            TimeoutError: no piece came in time; the request goes on.
            PieError: the typed error that ended the request.
        """
        return self._next(timeout_s)

    def result(self, timeout_s: float | None = None) -> Completion:
        """Wait for the end and return the completion.

        Raises:
            TimeoutError: a piece took longer than ``timeout_s``; the request goes on.
            PieError: the typed error that ended the request.
        """
        while self._next(timeout_s) is not None:
            pass
        assert self._completion is not None, "a request that did not fail has a completion"
        return self._completion

    def _next(self, timeout_s: float | None) -> Piece | None:
        """Take one delivery from the engine."""
        if self._error is not None:
            raise self._error
        if self._completion is not None:
            return None
        try:
            delivery = self._job.deliveries.get(timeout=timeout_s)
        except Empty:
            raise TimeoutError(f"request {self.id}: no token in {timeout_s} s") from None
        if isinstance(delivery, Piece):
            return delivery
        # Others may wait for the end too.
        self._job.deliveries.put(delivery)
        self._owner = None
        if isinstance(delivery, PieError):
            self._error = delivery
            raise delivery
        self._completion = delivery
        return None
