"""Listeners: one bounded queue each, so that nobody waits for anybody, and who never looks costs little."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from pie_mlx.engine.lock import ShieldedLock
from pie_mlx.events import Event, EventsDropped, StepDone

MAX_EVENTS = 10_000
"""Events kept for a listener that does not look; above it, the oldest give way, steps first."""


class Subscription:
    """A listener's own queue of events, from the moment it subscribed until it closes.

    At most :data:`MAX_EVENTS` are kept. What was dropped is counted, and told as :class:`EventsDropped` before
    the events that are left; the newest are never dropped.
    """

    def __init__(self, unsubscribe: Callable[[Subscription], None]) -> None:
        """Make an empty queue; only :class:`Listeners` does this."""
        self._events: deque[Event] = deque()
        self._num_dropped_steps = self._num_dropped_others = 0
        # Never blocks for long, and an interrupt cannot leave it taken: the engine itself puts events in.
        self._lock = ShieldedLock()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._unsubscribe = unsubscribe

    def __enter__(self) -> Self:
        """Return the subscription itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        self.close()

    def put(self, event: Event) -> None:
        """Take an event in."""
        with self._lock:
            if len(self._events) >= MAX_EVENTS:
                self._make_room()
            self._events.append(event)
        if self._bell.empty():
            self._bell.put(None)

    def get(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event, or None if none came within ``timeout_s``; one thread listens."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (event := self._take()) is None:
            try:
                self._bell.get(timeout=None if end_s is None else max(0.0, end_s - time.monotonic()))
            except Empty:
                return self._take()
        return event

    def drain(self) -> list[Event]:
        """Return all events that are here now, without waiting."""
        with self._lock:
            dropped = self._tell_dropped()
            events = [*([dropped] if dropped is not None else []), *self._events]
            self._events.clear()
        return events

    def _take(self) -> Event | None:
        """Return the oldest thing to tell, None if there is nothing."""
        with self._lock:
            dropped = self._tell_dropped()
            if dropped is not None:
                return dropped
            return self._events.popleft() if self._events else None

    def _tell_dropped(self) -> EventsDropped | None:
        """Return what has been dropped since the last call, None if nothing; the lock is held."""
        steps, others = self._num_dropped_steps, self._num_dropped_others
        self._num_dropped_steps = self._num_dropped_others = 0
        return EventsDropped(steps, others) if steps or others else None

    def _make_room(self) -> None:
        """Drop the older half: its steps, and if that is not enough, all of it; the lock is held.

        A step's event tells the state after it, so that the newest stands for all. In halves, it costs O(1) an event.
        """
        old = [self._events.popleft() for _ in range(MAX_EVENTS // 2)]
        kept = [event for event in old if not isinstance(event, StepDone)]
        self._num_dropped_steps += len(old) - len(kept)
        if len(kept) > MAX_EVENTS // 4:
            self._num_dropped_others += len(kept)
            kept = []
        self._events.extendleft(reversed(kept))

    def close(self) -> None:
        """Stop listening; idempotent."""
        self._unsubscribe(self)


class Listeners:
    """Everybody who listens to one engine."""

    def __init__(self) -> None:
        """Start with nobody."""
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()

    @property
    def is_heard(self) -> bool:
        """Whether anybody listens; costly events are only made then."""
        return bool(self._subscriptions)

    def subscribe(self) -> Subscription:
        """Return a new listener's queue."""
        subscription = Subscription(self._remove)
        with self._lock:
            self._subscriptions = (*self._subscriptions, subscription)
        return subscription

    def _remove(self, subscription: Subscription) -> None:
        """Forget a listener."""
        with self._lock:
            self._subscriptions = tuple(other for other in self._subscriptions if other is not subscription)

    def emit(self, event: Event) -> None:
        """Put an event into every queue; never blocks."""
        for subscription in self._subscriptions:
            subscription.put(event)
