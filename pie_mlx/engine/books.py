"""The books: what callers and the engine's thread share, and the one lock around it.

Whoever holds the lock may read and change the core. The engine's thread sleeps on a bell, a queue rather
than a condition, because a finalizer must be able to ring it at any moment without taking a lock.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from pie_mlx.engine.core import Core
from pie_mlx.engine.errand import Errand
from pie_mlx.engine.listening import Listeners
from pie_mlx.engine.lock import ShieldedLock
from pie_mlx.engine.stepping import Stepper
from pie_mlx.errors import EngineDead, PieError
from pie_mlx.events import EngineEnded
from pie_mlx.ids import ContextId


class Books:
    """Core, stepper, errands and the engine's state of health; all but :meth:`drop` under the lock."""

    def __init__(self) -> None:
        """Open empty books; the engine's thread enters core and stepper once the model is loaded."""
        self.listeners = Listeners()
        self.errands: deque[Errand[Any]] = deque()
        self.errand: Errand[Any] | None = None
        """The one that the thread is on."""
        self.call_started_s: float | None = None
        """When the device call in flight began (monotonic seconds); None if none is."""
        self.is_stopping = False
        self.death: PieError | None = None
        self._core: Core | None = None
        self._stepper: Stepper | None = None
        self._lock = ShieldedLock()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_idle = False
        self._dropped: deque[ContextId] = deque()

    def enter(self, core: Core, stepper: Stepper) -> None:
        """Note that the model is loaded."""
        self._core, self._stepper = core, stepper

    @property
    def is_alive(self) -> bool:
        """Whether requests can run."""
        return self.death is None and not self.is_stopping

    @property
    def core(self) -> Core:
        """The core; change it only under the lock."""
        assert self._core is not None, "a started engine has a core"
        return self._core

    @property
    def stepper(self) -> Stepper:
        """The stepper; look at it only under the lock."""
        assert self._stepper is not None, "a started engine has a stepper"
        return self._stepper

    @contextlib.contextmanager
    def locked(self) -> Iterator[Core]:
        """Hold the lock; dropped handles are closed first and last, and the thread looks again afterwards."""
        with self._lock:
            core = self.core
            self._close_dropped()
            try:
                yield core
            finally:
                self._close_dropped()
                if self._is_idle:
                    self._is_idle = False
                    self._bell.put(None)

    @contextlib.contextmanager
    def planning(self) -> Iterator[Core]:
        """Hold the lock as the engine's thread does; it may leave by :meth:`sleep`."""
        while not self._bell.empty():
            self._bell.get_nowait()
        with self._lock:
            self._close_dropped()
            yield self.core

    def lie_down(self) -> None:
        """Ask to be woken by whoever changes anything from now on; the lock is held by :meth:`planning`."""
        self._is_idle = True

    def sleep(self) -> None:
        """Wait for the bell, without the lock."""
        self._bell.get()

    def drop(self, context: ContextId) -> None:
        """Close a context whose handle was garbage-collected; safe at any moment, in any thread."""
        # A finalizer can run inside a locked section, so it takes no lock: whoever looks next closes it first.
        self._dropped.append(context)
        self._bell.put(None)

    def _close_dropped(self) -> None:
        """Close contexts whose handles are gone."""
        while self._dropped:
            self.core.close(self._dropped.popleft())

    def dead(self) -> EngineDead:
        """Return the error of a call that comes too late."""
        return EngineDead(self.death.message if self.death is not None else "it was closed")

    def die(self, error: PieError) -> None:
        """Mark the engine dead, ending every request and errand: the device will not be asked again."""
        if self.death is not None:
            return
        self.death = error
        self.core.fail_all(lambda _job: error)
        if self.errand is not None:
            self.errand.fail(error)
        self.fail_errands()
        self.listeners.emit(EngineEnded(error.message))

    def fail_errands(self) -> None:
        """Tell everybody whose errand has not begun that the engine has ended."""
        while self.errands:
            self.errands.popleft().fail(self.dead())
