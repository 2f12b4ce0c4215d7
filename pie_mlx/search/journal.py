"""The journal of a run: the one way in which anything happens in it.

:meth:`Journal.tell` stamps an event, writes it, folds it into the tree and shows it to the listener, in this
order. A run that goes on with a trace does all its work again from the start, but takes what the trace
holds from there: as long as recorded events are left, telling one *consumes* it instead of writing it. The
strategies are deterministic, so the told and the recorded events are the same; if they are not, the trace
belongs to something else, and that is an error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pie_mlx.search.errors import TraceError
from pie_mlx.search.node import NodeId
from pie_mlx.search.trace import Stamper, Trace, TraceWriter, apply
from pie_mlx.search.trace_events import (
    AlarmRaised,
    Event,
    NodeDone,
    Noticed,
    PagesRead,
    Paused,
    Resumed,
    Scored,
    Stepped,
    TextAdded,
)
from pie_mlx.search.tree import Tree

Listen = Callable[[Event], None]

_CIRCUMSTANCES = (AlarmRaised, PagesRead, Paused, Resumed, Stepped, TextAdded)
"""Events that depend on the machine and the moment, never on the seed alone."""


def is_circumstance(event: Event) -> bool:
    """Whether an event says how the run went, not what it did: replay neither expects nor repeats it.

    A notice about a node is a wish of the user; one about the run is a circumstance.
    """
    return isinstance(event, _CIRCUMSTANCES) or (isinstance(event, Noticed) and event.node is None)


class Journal:
    """Stamps, writes, folds and shows events; consumes those of a trace that is gone on with."""

    def __init__(self, writer: TraceWriter | None, listen: Listen | None, recorded: Trace | None = None) -> None:
        """Write to ``writer`` and show to ``listen``, after the events of ``recorded``."""
        self.tree = Tree()
        self.lock = threading.RLock()
        """Held while the tree changes: hold it to read the tree from another thread."""
        self._writer = writer
        self._listen = listen
        self._recorded = deque(() if recorded is None else recorded.events)
        self._path = "" if recorded is None else str(recorded.path)
        self._done = {e.node: e for e in self._recorded if isinstance(e, NodeDone)}
        self._scores: dict[NodeId, deque[Scored]] = {}
        for event in self._recorded:
            if isinstance(event, Scored):
                self._scores.setdefault(event.node, deque()).append(event)
        last = self._recorded[-1] if self._recorded else None
        self._stamper = Stamper() if last is None else Stamper(last.seq, last.t_ns)

    def record(self, writer: TraceWriter) -> None:
        """Write to ``writer`` from here on."""
        self._writer = writer

    def tell(self, event: Event) -> Event:
        """Let an event happen; return it as it is in the trace.

        Raises:
            TraceError: the trace cannot be written, or holds another event in this place.
        """
        with self.lock:
            if self.is_replaying:
                if is_circumstance(event):
                    return event
                event = self._consume(event)
            elif self._writer is not None:
                # Pieces are for who looks on: the whole text comes with the node's end, and a trace stays small.
                is_piece = isinstance(event, TextAdded)
                event = self._writer.stamp_aside(event) if is_piece else self._writer.write(event)
            else:
                event = self._stamper.stamp(event)
            self._enter(event)
            return event

    def _enter(self, event: Event) -> None:
        """Fold an event into the tree and show it."""
        apply(self.tree, event)
        if self._listen is not None:
            self._listen(event)

    def _consume(self, told: Event) -> Event:
        """Take the recorded event in whose place ``told`` stands."""
        recorded = self._recorded.popleft()
        if type(recorded) is not type(told) or recorded.node != told.node:
            reason = (
                f"event {recorded.seq} is {recorded.event} of {recorded.node}, where this run tells {told.event} of "
                f"{told.node}: the trace was made by another task, model or version"
            )
            # Not a word more goes into a trace that is not this run's.
            self._recorded.clear()
            self._writer = None
            raise TraceError(self._path, recorded.seq + 1, reason)
        if isinstance(recorded, Scored):
            self._scores[recorded.node].popleft()
        return recorded

    # --- what a trace still holds ----------------------------------------------------------

    @property
    def is_replaying(self) -> bool:
        """Whether recorded events are left; circumstances in front of them are shown and dropped."""
        with self.lock:
            while self._recorded and is_circumstance(self._recorded[0]):
                event = self._recorded.popleft()
                if not isinstance(event, Paused | Resumed | Stepped | TextAdded):
                    self._enter(event)
            return bool(self._recorded)

    def upcoming(self) -> Event | None:
        """Return the next recorded event, None where there is none."""
        return self._recorded[0] if self.is_replaying else None

    def known_thought(self, node: NodeId) -> NodeDone | None:
        """Return how a node's thought ended in the trace; each is given once."""
        return self._done.pop(node, None) if self._recorded else None

    def known_score(self, node: NodeId) -> Scored | None:
        """Return a node's next score in the trace."""
        left = self._scores.get(node)
        return left[0] if left else None
