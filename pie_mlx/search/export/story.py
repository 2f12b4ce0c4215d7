"""What every export tells: the tree, the best path, the page curve, when each node was written, the measures."""

from __future__ import annotations

from dataclasses import dataclass

from pie_mlx.search.metrics import RunMetrics, measure
from pie_mlx.search.node import ROOT, Node, NodeId, NodeStatus, rank_key
from pie_mlx.search.trace import Trace
from pie_mlx.search.trace_events import Header, NodeDone, NodeStarted, PagesRead, Pruned, RunStarted, Scored
from pie_mlx.search.tree import PoolCounts, Tree

GLYPHS: dict[NodeStatus, str] = {
    NodeStatus.WRITING: "…",
    NodeStatus.OPEN: "○",
    NodeStatus.EXPANDING: "◐",
    NodeStatus.EXPANDED: "●",
    NodeStatus.DONE: "◆",
    NodeStatus.ACCEPTED: "★",
    NodeStatus.PRUNED: "✂",
    NodeStatus.DUPLICATE: "≡",
    NodeStatus.INVALID: "✗",
    NodeStatus.FAILED: "!",
}
"""One sign a status, so that no meaning hangs on colour alone."""


@dataclass(frozen=True, slots=True)
class Span:
    """When something was done for a node, in nanoseconds since the start."""

    node: NodeId
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The pool at one moment."""

    t_ns: int
    pool: PoolCounts


@dataclass(frozen=True, slots=True)
class Story:
    """A trace, read once for all exports."""

    header: Header
    start: RunStarted | None
    tree: Tree
    best_path: tuple[Node, ...]
    """Root first; empty where nothing has a value."""
    readings: tuple[Reading, ...]
    prunes: tuple[Pruned, ...]
    spans: tuple[Span, ...]
    """Of writing, in the order of their ends."""
    score_tokens: dict[NodeId, int]
    """Prompt tokens that were computed to score a node."""
    metrics: RunMetrics
    torn: bool

    @property
    def best_ids(self) -> frozenset[NodeId]:
        """Ids on the best path."""
        return frozenset(node.id for node in self.best_path)

    @property
    def question(self) -> str:
        """The question."""
        return self.tree.question


def tell(trace: Trace) -> Story:
    """Read what the exports need from a trace.

    Raises:
        TraceError: the events contradict each other.
    """
    tree = trace.tree()
    started: dict[NodeId, int] = {}
    spans: list[Span] = []
    score_tokens: dict[NodeId, int] = {}
    for event in trace.events:
        if isinstance(event, NodeStarted):
            started[event.node] = event.t_ns
        elif isinstance(event, NodeDone):
            spans.append(Span(event.node, started.get(event.node, event.t_ns), event.t_ns))
        elif isinstance(event, Scored):
            computed = event.tokens.prompt - event.tokens.cached + event.tokens.completion
            score_tokens[event.node] = score_tokens.get(event.node, 0) + computed
    return Story(
        header=trace.header,
        start=next((event for event in trace.events if isinstance(event, RunStarted)), None),
        tree=tree,
        best_path=tuple(tree.best_path()),
        readings=tuple(Reading(event.t_ns, event.pool) for event in trace.events if isinstance(event, PagesRead)),
        prunes=tuple(event for event in trace.events if isinstance(event, Pruned)),
        spans=tuple(spans),
        score_tokens=score_tokens,
        metrics=measure(trace.events),
        torn=trace.torn,
    )


def one_line(text: str, limit: int) -> str:
    """Return a text on one line, control characters shown as ``·``, cut at ``limit`` characters."""
    flat = " ".join(text.split())
    flat = "".join(char if char.isprintable() else "·" for char in flat)
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def value_text(node: Node) -> str:
    """Write a node's value: ``?`` where a scorer gave none, empty where none was asked."""
    if node.score is None:
        return ""
    return "?" if node.value is None else f"{node.value:.2f}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The nodes that a drawing has room for, and how many children of each are left out."""

    nodes: tuple[Node, ...]
    """Parents first, siblings in order."""
    hidden: dict[NodeId, int]
    """Parent to the number of its children, with all below them, that are not drawn."""

    @property
    def ids(self) -> frozenset[NodeId]:
        """Ids of the drawn nodes."""
        return frozenset(node.id for node in self.nodes)


def excerpt(story: Story, limit: int) -> Excerpt:
    """Choose at most ``limit`` nodes: the best path first, then level by level, best value first."""
    tree, chosen = story.tree, {node.id for node in story.best_path[:limit]}
    level = [tree.root] if len(tree) else []
    while level and len(chosen) < limit:
        for node in sorted(level, key=rank_key):
            if len(chosen) < limit:
                chosen.add(node.id)
        level = [tree[child] for node in level if node.id in chosen for child in node.children]
    drawn = tuple(node for node in tree.walk() if node.id in chosen)
    hidden = {node.id: sum(_weight(story, child) for child in node.children if child not in chosen) for node in drawn}
    return Excerpt(drawn, {node: count for node, count in hidden.items() if count})


def _weight(story: Story, node: NodeId) -> int:
    """Count a node and all below it."""
    return sum(1 for _ in story.tree.walk(node))


def label_of(story: Story, node: Node) -> str:
    """Return a node's text; at the root, the question where there is one."""
    return story.question or node.text if node.id == ROOT else node.text
