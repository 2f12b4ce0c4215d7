"""The books: what callers and the engine's thread share, and the one lock around it.

Whoever holds the lock may read and change the core. The engine's thread sleeps on a bell, a queue rather
than a condition, because a handle that is garbage-collected must ring it at any moment without a lock.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from pie_mlx.engine.core import Core
from pie_mlx.engine.errand import Errand
from pie_mlx.engine.listening import Listeners
from pie_mlx.engine.lock import ShieldedLock
from pie_mlx.engine.stepping import Stepper
from pie_mlx.errors import EngineDead, PieError
from pie_mlx.events import EngineEnded
from pie_mlx.ids import ContextId

if TYPE_CHECKING:
    from pie_mlx.engine.context import Context


class _Handle(weakref.ref["Context"]):
    """Tells when a context's handle was garbage-collected, and which context that was."""

    __slots__ = ("context",)
    context: ContextId


@dataclass(slots=True)
class DeviceCall:
    """A step or an errand that is out; times in monotonic seconds."""

    started_s: float
    limit_s: float
    """Without a sign of life for so long it counts as hung."""
    alive_s: float = 0.0
    """When it last gave a sign of life."""

    def __post_init__(self) -> None:
        """Count its start as a sign of life."""
        self.alive_s = self.started_s


class Books:
    """Core, stepper, errands and the engine's state of health; change them only under the lock."""

    def __init__(self) -> None:
        """Open empty books; the engine's thread enters core and stepper once the model is loaded."""
        self.listeners = Listeners()
        self.errands: deque[Errand[Any]] = deque()
        self.errand: Errand[Any] | None = None
        """The one that the thread is on."""
        self.call: DeviceCall | None = None
        """The device call in flight; None if none is."""
        self.busy_s = 0.0
        """Seconds that calls took which have returned."""
        self.is_stopping = False
        self.death: PieError | None = None
        self._core: Core | None = None
        self._stepper: Stepper | None = None
        self._lock = ShieldedLock()
        self._bell: SimpleQueue[_Handle | None] = SimpleQueue()
        self._is_idle = False

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
                # Who closes dropped handles may have taken the thread's wake-up call with them: always ring anew.
                if self._is_idle:
                    self._bell.put(None)

    @contextlib.contextmanager
    def planning(self) -> Iterator[Core]:
        """Hold the lock as the engine's thread does; it may leave by :meth:`sleep`."""
        with self._lock:
            self._is_idle = False
            self._close_dropped()
            yield self.core

    def begin_call(self, limit_s: float) -> None:
        """Note that the device works from now on; the lock is held."""
        self.call = DeviceCall(time.monotonic(), limit_s)

    def end_call(self) -> None:
        """Note that the device call has returned; the lock is held."""
        assert self.call is not None, "what ends has begun"
        self.busy_s += time.monotonic() - self.call.started_s
        self.call = self.errand = None

    def lie_down(self) -> None:
        """Ask to be woken by whoever changes anything from now on; the lock is held by :meth:`planning`."""
        self._is_idle = True

    def sleep(self) -> None:
        """Wait for the bell, without the lock."""
        self._bell.put(self._bell.get())

    def watch(self, context: Context) -> None:
        """Close a context when its handle is garbage-collected, in any thread, even within a locked section."""
        # The bell itself is the callback: it takes no lock, and no interrupt can come between its instructions.
        handle = _Handle(context, self._bell.put)
        handle.context = context.id
        self.core.get(context.id).handle = handle

    def _close_dropped(self) -> None:
        """Close contexts whose handles are gone: whoever looks next does it first."""
        while True:
            try:
                handle = self._bell.get_nowait()
            except Empty:
                return
            if handle is not None:
                self.core.close(handle.context)

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
