"""The one place where events of engine, search and chat become messages of the screen.

Threads offer events at any rate. One pump thread, asleep while nothing comes, posts a single :class:`Arrived` and
does not post the next before the screen has taken the batch and ``pace_s`` has passed: at most ten messages a second,
never two in the queue, and what was offered last is always taken. There is no timer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from textual.message import Message

from pie_mlx.chat.reply import Reply
from pie_mlx.engine import Engine
from pie_mlx.engine.listening import Subscription
from pie_mlx.engine.readings import PageReading, Readings
from pie_mlx.errors import PieError
from pie_mlx.events import EngineEnded
from pie_mlx.events import Event as EngineEvent
from pie_mlx.search.trace_events import Event as SearchEvent
from pie_mlx.search.trace_events import Header

PACE_S = 0.1


class Arrived(Message):
    """Something has come; the handler takes it with :meth:`Bridge.take`."""


@dataclass(slots=True)
class Batch:
    """Everything that came since the last batch, in the order of each kind."""

    search: list[SearchEvent] = field(default_factory=list)
    engine: list[EngineEvent] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    """Replies that went on, each once."""
    faults: list[str] = field(default_factory=list)
    """What a source failed with."""
    notes: list[str] = field(default_factory=list)
    """What a source wants to be said."""
    cleared: list[str] = field(default_factory=list)
    """Kinds of alarm that are over."""
    header: Header | None = None
    readings: Readings | None = None
    pages: list[PageReading] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come."""
        events = self.search or self.engine or self.replies or self.faults or self.notes or self.cleared
        return not (events or self.header or self.readings)


class Bridge:
    """Takes events in from any thread, and hands them to the screen in batches."""

    def __init__(self, *, pace_s: float = PACE_S) -> None:
        """Start with nothing; ``pace_s`` is the least time between two batches, in seconds."""
        self.wants_pages = False
        """Whether batches carry the page map; the engine screen asks while it is shown."""
        self._pace_s = pace_s
        self._changed = threading.Condition()
        self._inbox = Batch()
        self._ready: Batch | None = None
        self._is_closed = False
        self._stop = threading.Event()
        self._post: Callable[[Message], object] | None = None
        self._engine: Engine | None = None
        self._subscription: Subscription | None = None

    # --- offering, from any thread ----------------------------------------------------------

    def offer(self, event: SearchEvent) -> None:
        """Take an event of a search; the ``listen`` of a run."""
        self._put(lambda inbox: inbox.search.append(event))

    def offer_many(self, events: list[SearchEvent], header: Header | None = None) -> None:
        """Take many events of a search, and their trace's header where it was just read."""

        def put(inbox: Batch) -> None:
            inbox.search.extend(events)
            inbox.header = header or inbox.header

        self._put(put)

    def offer_reply(self, reply: Reply) -> None:
        """Take the news that a chat's reply went on; its text is read when the batch is shown."""
        self._put(lambda inbox: None if reply in inbox.replies else inbox.replies.append(reply))

    def offer_reading(
        self,
        readings: Readings | None,
        pages: list[PageReading] | None,
        events: list[EngineEvent],
        *,
        cleared: str = "",
    ) -> None:
        """Take the readings of an engine elsewhere with what happened since the last; ``cleared`` ends an alarm."""

        def put(inbox: Batch) -> None:
            inbox.engine.extend(events)
            inbox.readings = readings or inbox.readings
            inbox.pages = pages if pages is not None else inbox.pages
            inbox.cleared += [cleared] if cleared else []

        self._put(put)

    def offer_fault(self, text: str) -> None:
        """Take what a source failed with."""
        self._put(lambda inbox: inbox.faults.append(text))

    def offer_note(self, text: str) -> None:
        """Take a short message for the user."""
        self._put(lambda inbox: inbox.notes.append(text))

    def _put(self, change: Callable[[Batch], object]) -> None:
        """Change the inbox and wake the pump."""
        with self._changed:
            change(self._inbox)
            self._changed.notify_all()

    # --- the screen's side --------------------------------------------------------------------

    def open(self, post: Callable[[Message], object], engine: Engine | None = None) -> None:
        """Begin to post to a screen, listening to ``engine``."""
        self._post, self._engine = post, engine
        threading.Thread(target=self._pump, name="pie-tui-pump", daemon=True).start()
        if engine is not None:
            self._subscription = engine.listen()
            threading.Thread(target=self._listen, args=(self._subscription,), name="pie-tui-ears", daemon=True).start()

    def take(self) -> Batch:
        """Return the batch that was posted, and let the pump go on; an empty one where there is none."""
        with self._changed:
            batch, self._ready = self._ready or Batch(), None
            self._changed.notify_all()
            return batch

    def read(self) -> tuple[Readings | None, list[PageReading] | None]:
        """Return the engine's readings now; the page map only while it is wanted."""
        if self._engine is None:
            return None, None
        return self._engine.readings(), self._engine.page_map() if self.wants_pages else None

    def forget_search(self) -> None:
        """Drop the events of a search that are on their way: another one begins."""
        with self._changed:
            self._inbox.search.clear()
            if self._ready is not None:
                self._ready.search.clear()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way."""
        with self._changed:
            return self._inbox.is_empty and self._ready is None

    @property
    def is_closed(self) -> bool:
        """Whether the screen is gone; sources then end."""
        return self._is_closed

    def close(self) -> None:
        """Stop posting and listening. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._stop.set()
        if self._subscription is not None:
            self._subscription.close()
            # Whoever waits in get() wakes only by an event.
            self._subscription.put(EngineEnded(None))

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait for the close, at most ``timeout_s``; the pause of a source that must look again and again."""
        return self._stop.wait(timeout_s)

    # --- the threads ----------------------------------------------------------------------------

    def _pump(self) -> None:
        """Post once for each batch, until closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or (not self._inbox.is_empty and self._ready is None))
                if self._is_closed:
                    return
                batch, self._inbox = self._inbox, Batch()
                self._ready = batch
            # Read after the events were taken: the last batch shows the state that its events led to.
            if self._engine is not None:
                batch.readings, batch.pages = self.read()
            assert self._post is not None, "the pump starts with the screen"
            self._post(Arrived())
            if self._stop.wait(self._pace_s):
                return

    def _listen(self, subscription: Subscription) -> None:
        """Take the engine's events until closed."""
        while not self._is_closed:
            first = subscription.get()
            events = [first] if first is not None else []
            events += subscription.drain()
            if not self._is_closed and events:
                self._put(lambda inbox, events=events: inbox.engine.extend(events))  # type: ignore[misc]


def describe(error: PieError) -> str:
    """Return an error as one line: what happened, and what helps."""
    return f"{error.message}  (try: {error.hint})" if error.hint else error.message
