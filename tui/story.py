"""A run as the tree screen tells it: events folded into a tree, with what the views need beside it.

Live views and replays go through the same :meth:`RunStory.feed` and :meth:`RunStory.seek`, so they show the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pie_mlx.errors import PieError
from pie_mlx.search.node import parent_id
from pie_mlx.search.replay import apply
from pie_mlx.search.trace import Trace
from pie_mlx.search.trace_events import (
    Deduplicated,
    Edited,
    Event,
    Finished,
    Header,
    Inserted,
    NodeDone,
    NodeStarted,
    PagesRead,
    Pruned,
    RunStarted,
    Scored,
    TextAdded,
)
from pie_mlx.search.tree import Node, NodeId, PoolCounts, Tree
from pie_mlx.tui.logbook import LogLine, line_of
from pie_mlx.tui.looks import Range

NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Span:
    """When a node was written, in nanoseconds since the run began; ``done_ns`` is None while it is."""

    started_ns: int
    done_ns: int | None = None


@dataclass(slots=True)
class Change:
    """What a feed or a seek changed: what the views must look at again."""

    added: list[Node] = field(default_factory=list)
    touched: set[NodeId] = field(default_factory=set)
    rebuilt: bool = False
    """Whether the tree is another one: every row is to be made again."""


class RunStory:
    """The events of one run, and the part of them that is shown."""

    def __init__(self) -> None:
        """Start without a run."""
        self.header: Header | None = None
        self.path: Path | None = None
        self.events: list[Event] = []
        self.fault: str | None = None
        """Why the story cannot go on: the trace contradicts itself."""
        self.at_end = True
        """Whether new events are shown as they come."""
        self._reset()

    def _reset(self) -> None:
        """Forget everything that was folded."""
        self.tree = Tree()
        self.position = 0
        """How many events are folded."""
        self.t_ns = 0
        self.start: RunStarted | None = None
        self.range = Range()
        self.levels: list[list[Node]] = []
        """Nodes by depth, in the order of their making."""
        self.spans: dict[NodeId, Span] = {}
        self.pool_history: list[PoolCounts] = []
        self.peak_pages = 0
        self.freed_pages = 0
        self.log: list[LogLine] = []
        self.latest: NodeId | None = None
        """The node that was heard of last."""
        self.fault = None

    @property
    def is_over(self) -> bool:
        """Whether the run's end is known."""
        return bool(self.events) and isinstance(self.events[-1], Finished)

    @property
    def elapsed_s(self) -> float:
        """Seconds from the run's beginning to what is shown."""
        return self.t_ns / NS_PER_S

    @property
    def version(self) -> int:
        """Changes with every event that is folded."""
        return self.position

    def feed(self, events: list[Event]) -> Change:
        """Take new events; fold them unless the past is being looked at."""
        self.events.extend(events)
        change = Change()
        if self.at_end:
            self._fold(len(self.events), change)
        return change

    def seek(self, position: int) -> Change:
        """Show the first ``position`` events; at the last one, new events are shown as they come again."""
        target = max(0, min(position, len(self.events)))
        change = Change()
        if target < self.position:
            self._reset()
            change.rebuilt = True
        self.at_end = target == len(self.events)
        self._fold(target, change)
        return change

    def position_at(self, t_ns: int) -> int:
        """Return how many events had happened at a moment of the run."""
        position = self.position
        while position < len(self.events) and self.events[position].t_ns <= t_ns:
            position += 1
        return position

    def as_trace(self) -> Trace:
        """Return what has come as a trace, for the exports."""
        header = self.header or Header(run="run", model="", revision="", seed=0, task="")
        return Trace(self.path or Path(f"{header.run}.jsonl"), header, tuple(self.events), torn=False, num_bytes=0)

    def _fold(self, target: int, change: Change) -> None:
        """Fold the events up to ``target``."""
        while self.position < target and self.fault is None:
            event = self.events[self.position]
            is_new = event.node is not None and event.node not in self.tree
            try:
                apply(self.tree, event)
            except PieError as error:
                self.fault = f"event {event.seq}: {error.message}"
                return
            self.position += 1
            self.t_ns = event.t_ns
            self._note(event, change)
            if is_new and event.node in self.tree:
                self._enter(self.tree[event.node], change)

    def _enter(self, node: Node, change: Change) -> None:
        """File a new node under its depth."""
        while len(self.levels) <= node.depth:
            self.levels.append([])
        self.levels[node.depth].append(node)
        change.added.append(node)

    def _note(self, event: Event, change: Change) -> None:
        """Remember what the views need of an event."""
        if event.node is not None:
            change.touched.add(event.node)
            above = parent_id(event.node)
            if above is not None:
                change.touched.add(above)
        match event:
            case NodeStarted():
                self.spans[event.node] = Span(event.t_ns)
                self.latest = event.node
            case Inserted() | Edited():
                self.spans[event.node] = Span(event.t_ns, event.t_ns)
                self.latest = event.node
            case NodeDone():
                self.spans.setdefault(event.node, Span(event.t_ns)).done_ns = event.t_ns
                self.latest = event.node
            case Scored():
                self.range.take(event.score.value)
            case PagesRead():
                self.pool_history.append(event.pool)
                self.peak_pages = max(self.peak_pages, event.pool.held)
            case Pruned() | Deduplicated():
                self.freed_pages += event.freed_pages
            case RunStarted():
                self.start = event
            case _:
                pass
        if not isinstance(event, TextAdded | PagesRead):
            self.log.append(line_of(event))
