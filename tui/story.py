"""A run as the tree screen tells it: events folded into a tree, with what the views need beside it.

Live views and replays go through the same :meth:`RunStory.feed` and :meth:`RunStory.seek`, so they show the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from pie_mlx.errors import PieError
from pie_mlx.search.replay import APPLY, apply
from pie_mlx.search.rewind import Moment, remember, take_back
from pie_mlx.search.trace import Trace
from pie_mlx.search.trace_events import (
    EVENTS,
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
from pie_mlx.tui.bulk import collector_paused
from pie_mlx.tui.looks import DULL, Range

NS_PER_S = 1_000_000_000
_MANY = 5_000
"""Events at once from which pausing the collector pays."""
_STEPS_BACK = 500
"""Events that can be taken back one by one; further back, the story is folded from its beginning."""


class Span(Struct, gc=False):
    """When a node was written, in nanoseconds since the run began; ``done_ns`` is None while it is."""

    started_ns: int
    done_ns: int | None = None


@dataclass(slots=True)
class Change:
    """What a feed or a seek changed: what the views must look at again."""

    added: list[Node] = field(default_factory=list)
    removed: list[Node] = field(default_factory=list)
    """Nodes that were taken back, the latest first."""
    num_events: int = 0
    rebuilt: bool = False
    """Whether the tree is another one: every row is to be made again."""


@dataclass(frozen=True, slots=True)
class _Before:
    """What stood before an event: in the tree, and in what the views need beside it."""

    moment: Moment
    t_ns: int
    start: RunStarted | None
    latest: NodeId | None
    span: Span | None
    low_high: tuple[float, float]
    pages: tuple[int, int]
    lengths: tuple[int, int]


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
        self.log: list[Event] = []
        """What the log tells, one line an event."""
        self.latest: NodeId | None = None
        """The node that was heard of last."""
        self.fault = None
        self._standing: dict[int, tuple[int, Node | None]] = {}
        """By depth what :meth:`standing` has counted, until an event changes it."""
        self._before: deque[_Before] = deque(maxlen=_STEPS_BACK)
        """The latest events' moments, the last one's last."""
        self._best_at = -1
        self._best: list[Node] = []

    def begin(self, header: Header) -> None:
        """Forget the run, and wait for the first event of another."""
        self.header, self.path = header, None
        self.events = []
        self.at_end = True
        self._reset()

    @property
    def is_over(self) -> bool:
        """Whether the run's end is known."""
        return bool(self.events) and isinstance(self.events[-1], Finished)

    @property
    def elapsed_s(self) -> float:
        """Seconds from the run's beginning to what is shown."""
        return self.t_ns / NS_PER_S

    def best_path(self) -> list[Node]:
        """Return the tree's best path; worked out once for each position."""
        if self._best_at != self.position:
            self._best_at, self._best = self.position, self.tree.best_path()
        return self._best

    def standing(self, depth: int) -> tuple[int, Node | None]:
        """Return how many nodes of a level were not given up, and the one with the highest value."""
        if depth not in self._standing:
            nodes = self.levels[depth]
            alive = sum(1 for node in nodes if node.status not in DULL)
            valued = ((value, node) for node in nodes if (value := node.value) is not None)
            best = max(valued, key=lambda pair: pair[0], default=(0.0, None))[1]
            self._standing[depth] = alive, best
        return self._standing[depth]

    def _is_alive(self, event: Event) -> bool:
        """Whether an event's node is there and not given up."""
        node = self.tree.nodes.get(event.node) if event.node is not None else None
        return node is not None and node.status not in DULL

    def _follow(self, event: Event, *, was_alive: bool) -> None:
        """Keep what was counted true over an event that was folded or taken back."""
        if event.node is None or not self._standing:
            return
        depth = event.node.count(".")
        if isinstance(event, Pruned):
            for each in range(depth, max(self._standing) + 1):
                self._standing.pop(each, None)
        elif depth in self._standing:
            alive, best = self._standing[depth]
            if best is not None and best.id == event.node:
                del self._standing[depth]
                return
            node = self.tree.nodes.get(event.node)
            value = node.value if node is not None else None
            if value is not None and (best is None or best.value is None or value > best.value):
                best = node
            self._standing[depth] = alive + self._is_alive(event) - was_alive, best

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
        if self.position - len(self._before) <= target < self.position and self.fault is None:
            while self.position > target:
                self._take_back(change)
        elif target < self.position:
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
        """Fold the events up to ``target``; none once the story has a fault."""
        if self.fault is not None:
            return
        before = self.position
        if target - before > _STEPS_BACK:
            with collector_paused() if target - before > _MANY else nullcontext():
                self._fold_many(target - _STEPS_BACK, change)
        if self.fault is None:
            self._fold_each(target, change)
        change.num_events += self.position - before

    def _fold_many(self, target: int, change: Change) -> None:
        """Fold events that nobody takes back one by one; stop at one that contradicts those before it."""
        tree = self.tree
        # Counting the levels once more costs less than following so many events.
        self._standing.clear()
        self._before.clear()
        num_nodes = len(tree)
        for event in self.events[self.position : target]:
            try:
                APPLY[type(event)](tree, event)
            except PieError as error:
                self.fault = f"event {event.seq}: {error.message}"
                return
            num_nodes = self._take_in(event, num_nodes, change)

    def _fold_each(self, target: int, change: Change) -> None:
        """Fold events that can be taken back one by one; stop at one that contradicts those before it."""
        num_nodes = len(self.tree)
        while self.position < target:
            event = self.events[self.position]
            was_alive = bool(self._standing) and self._is_alive(event)
            try:
                self._before.append(self._now(event))
                apply(self.tree, event)
            except PieError as error:
                self.fault = f"event {event.seq}: {error.message}"
                return
            if self._standing:
                self._follow(event, was_alive=was_alive)
            num_nodes = self._take_in(event, num_nodes, change)

    def _take_in(self, event: Event, num_nodes: int, change: Change) -> int:
        """Remember what the views need of an event just folded; ``num_nodes`` were there; return how many are now."""
        self.position += 1
        self.t_ns = event.t_ns
        note, is_logged = _NOTES[type(event)]
        if note is not None:
            note(self, event)
        if is_logged:
            self.log.append(event)
        nodes = self.tree.nodes
        if len(nodes) > num_nodes and event.node is not None:
            self._enter(nodes[event.node], change)
        return len(nodes)

    def _now(self, event: Event) -> _Before:
        """Return what ``event`` is about to change."""
        span = self.spans.get(event.node) if event.node is not None else None
        return _Before(
            remember(self.tree, event),
            self.t_ns,
            self.start,
            self.latest,
            None if span is None else structs.replace(span),
            (self.range.low, self.range.high),
            (self.peak_pages, self.freed_pages),
            (len(self.pool_history), len(self.log)),
        )

    def _take_back(self, change: Change) -> None:
        """Unfold the latest event."""
        self.position -= 1
        event, before = self.events[self.position], self._before.pop()
        was_alive = self._is_alive(event)
        for node in take_back(self.tree, before.moment):
            self.levels[node.depth].pop()
            if not self.levels[node.depth]:
                self.levels.pop()
            change.removed.append(node)
        if event.node is not None:
            if before.span is None:
                self.spans.pop(event.node, None)
            else:
                self.spans[event.node] = before.span
        self._follow(event, was_alive=was_alive)
        self.t_ns, self.start, self.latest = before.t_ns, before.start, before.latest
        self.range.low, self.range.high = before.low_high
        self.peak_pages, self.freed_pages = before.pages
        del self.pool_history[before.lengths[0] :]
        del self.log[before.lengths[1] :]
        change.num_events += 1

    def _enter(self, node: Node, change: Change) -> None:
        """File a new node under its depth."""
        while len(self.levels) <= node.depth:
            self.levels.append([])
        self.levels[node.depth].append(node)
        change.added.append(node)


def _note_start(story: RunStory, event: NodeStarted) -> None:
    story.spans[event.node] = Span(event.t_ns)
    story.latest = event.node


def _note_hand(story: RunStory, event: Inserted | Edited) -> None:
    story.spans[event.node] = Span(event.t_ns, event.t_ns)
    story.latest = event.node


def _note_done(story: RunStory, event: NodeDone) -> None:
    span = story.spans.get(event.node)
    if span is None:
        span = story.spans[event.node] = Span(event.t_ns)
    span.done_ns = event.t_ns
    story.latest = event.node


def _note_score(story: RunStory, event: Scored) -> None:
    story.range.take(event.score.value)


def _note_pages(story: RunStory, event: PagesRead) -> None:
    story.pool_history.append(event.pool)
    story.peak_pages = max(story.peak_pages, event.pool.held)


def _note_finish(story: RunStory, event: Finished) -> None:
    if event.peak is not None:
        story.peak_pages = max(story.peak_pages, event.peak.held)


def _note_pruned(story: RunStory, event: Pruned) -> None:
    _note_freed(story, event)
    span = story.spans.get(event.node)
    if span is not None and span.done_ns is None:
        span.done_ns = event.t_ns


def _note_freed(story: RunStory, event: Pruned | Deduplicated) -> None:
    story.freed_pages += event.freed_pages


def _note_run(story: RunStory, event: RunStarted) -> None:
    story.start = event


_Note = Callable[[RunStory, Any], None]
_TAKERS: dict[type[Event], _Note] = {
    NodeStarted: _note_start,
    Inserted: _note_hand,
    Edited: _note_hand,
    NodeDone: _note_done,
    Scored: _note_score,
    PagesRead: _note_pages,
    Finished: _note_finish,
    Pruned: _note_pruned,
    Deduplicated: _note_freed,
    RunStarted: _note_run,
}
_NOTES: dict[type[Event], tuple[_Note | None, bool]] = {
    kind: (_TAKERS.get(kind), kind not in (TextAdded, PagesRead)) for kind in EVENTS
}
"""What the views remember of an event of a kind, and whether the log tells it."""
