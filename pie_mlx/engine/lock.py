"""A lock around the bookkeeping that Ctrl-C cannot tear.

Python runs a signal's handler in the main thread between any two instructions. A ``KeyboardInterrupt`` in
the middle of a fork would leave half a fork, and one right behind an acquire would leave the lock taken for
ever. In the main thread, SIGINT is therefore noted while the lock is held and handled when it is released,
microseconds later.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

_SignalFunction = Callable[[int, FrameType | None], object]


class ShieldedLock:
    """A lock for ``with``; not reentrant."""

    def __init__(self) -> None:
        """Make a free lock."""
        self._lock = threading.Lock()
        # Only the main thread uses these, and only while it enters, holds or leaves.
        self._deferred: _SignalFunction | None = None
        self._was_interrupted = False

    def __enter__(self) -> None:
        """Take the lock; in the main thread, put SIGINT off first."""
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                signal.signal(signal.SIGINT, self._note)
                self._deferred = handler
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock; in the main thread, handle a SIGINT that came meanwhile."""
        self._lock.release()
        if threading.current_thread() is not threading.main_thread():
            return
        handler, self._deferred = self._deferred, None
        if handler is None:
            return
        signal.signal(signal.SIGINT, handler)
        if self._was_interrupted:
            self._was_interrupted = False
            handler(signal.SIGINT, None)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        """Remember that the user pressed Ctrl-C."""
        self._was_interrupted = True
