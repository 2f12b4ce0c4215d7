"""Listeners: one queue each, so that nobody waits for anybody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self

from pie_mlx.events import Event


class Subscription:
    """A listener's own queue of events, from the moment it subscribed until it closes."""

    def __init__(self, unsubscribe: Callable[[Subscription], None]) -> None:
        """Make an empty queue; only :class:`Listeners` does this."""
        self._events: SimpleQueue[Event] = SimpleQueue()
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
        self._events.put(event)

    def get(self, timeout_s: float | None = None) -> Event | None:
        """Return the next event, or None if none came within ``timeout_s``."""
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def drain(self) -> list[Event]:
        """Return all events that are here now, without waiting."""
        events: list[Event] = []
        while True:
            try:
                events.append(self._events.get_nowait())
            except Empty:
                return events

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
