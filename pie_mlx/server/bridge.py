"""The bridge from the engine's threads to the event loop: one thread for all streams, and nobody waits for anybody.

The thread listens to the engine. After every step it takes what each followed request has delivered and puts it into
the inbox of its reader. Inboxes are bounded by what a request may generate; a reader that is slow finds more in one
look, and delays neither the engine nor other readers.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from pie_mlx.engine import Completion, Engine, Piece, Request
from pie_mlx.errors import PieError
from pie_mlx.events import EngineEnded, Event, RequestEnded, StepDone
from pie_mlx.ids import RequestId

_IDLE_LOOK_S = 0.5
T = TypeVar("T")

Delivery = Piece | Completion | PieError


class Inbox(Generic[T]):
    """Items from any thread for one reader on the event loop."""

    def __init__(self) -> None:
        """Make an empty inbox for the running loop."""
        self._loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._arrived = asyncio.Event()
        self._is_waking = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item; safe in any thread, never blocks."""
        with self._lock:
            self._items.append(item)
            if self._is_waking:
                return
            self._is_waking = True
        # A loop that is closed has no reader any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def take(self) -> list[T]:
        """Wait for at least one item; return all that are here."""
        await self._arrived.wait()
        with self._lock:
            self._arrived.clear()
            self._is_waking = False
            items = list(self._items)
            self._items.clear()
        return items


Sink = Callable[[Delivery], None]


class Pump:
    """Carries deliveries to their sinks and shows the engine's events to observers, on a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        """Listen to ``engine``; :meth:`start` begins."""
        self._engine = engine
        self._subscription = engine.listen()
        self._followed: dict[RequestId, tuple[Request, Sink]] = {}
        self._observers: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._main, name="pie-http-pump", daemon=True)
        self.moved_s = time.monotonic()
        """When the engine last told of progress (monotonic seconds)."""

    def observe(self, observer: Callable[[Event], None]) -> None:
        """Show every event to ``observer``, on the pump's thread; before :meth:`start` only."""
        self._observers.append(observer)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread."""
        self._stopping.set()
        self._subscription.close()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether deliveries are carried."""
        return self._thread.is_alive()

    def follow(self, request: Request, sink: Sink) -> None:
        """Carry what ``request`` delivers to ``sink``, from its first delivery to its completion or error."""
        with self._lock:
            self._followed[request.id] = (request, sink)
            # What came before has no event to come.
            self._carry(request, sink)

    def forget(self, request: Request) -> None:
        """Carry nothing more of a request."""
        with self._lock:
            self._followed.pop(request.id, None)

    def _main(self) -> None:
        """Look after every event, and now and then."""
        while not self._stopping.is_set():
            first = self._subscription.get(_IDLE_LOOK_S)
            events = [] if first is None else [first, *self._subscription.drain()]
            for event in events:
                self._show(event)
            if any(isinstance(event, RequestEnded | EngineEnded) for event in events):
                # The end is told under the engine's lock, a moment before it is delivered.
                with self._engine.locked():
                    pass
            with self._lock:
                for request, sink in list(self._followed.values()):
                    self._carry(request, sink)

    def _show(self, event: Event) -> None:
        """Note progress, and pass the event on."""
        if isinstance(event, StepDone | RequestEnded):
            self.moved_s = time.monotonic()
        for observer in self._observers:
            observer(event)

    def _carry(self, request: Request, sink: Sink) -> None:
        """Take all that a request has delivered; the lock is held."""
        try:
            while (piece := request.poll(0.0)) is not None:
                sink(piece)
        except TimeoutError:
            return
        except PieError as error:
            sink(error)
        else:
            sink(request.partial)
        del self._followed[request.id]
