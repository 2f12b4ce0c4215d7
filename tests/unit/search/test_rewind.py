"""Every kind of event can be taken back: the tree is then what it was before."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pie_mlx.search.node import NodeId, Score, TokenCounts
from pie_mlx.search.replay import apply
from pie_mlx.search.rewind import remember, take_back
from pie_mlx.search.trace import (
    Accepted,
    AlarmRaised,
    Deduplicated,
    Edited,
    Event,
    Finished,
    FinishReason,
    Inserted,
    Locked,
    NodeDone,
    NodeStarted,
    Noticed,
    PagesRead,
    Paused,
    Pruned,
    Resumed,
    RunStarted,
    Scored,
    Selected,
    Stepped,
    TextAdded,
)
from pie_mlx.search.trace_events import EVENTS
from pie_mlx.search.tree import PoolCounts, Tree


def n(name: str) -> NodeId:
    """Return a node's id."""
    return NodeId(name)


def done(name: str, key: str = "", *, terminal: bool = False, error: str | None = None) -> list[Event]:
    """Return the events of a thought, written bit by bit."""
    return [
        NodeStarted(node=n(name), seed=5),
        TextAdded(node=n(name), text="a "),
        TextAdded(node=n(name), text="b"),
        NodeDone(node=n(name), text="a b.", key=key, tokens=TokenCounts(9, 8, 2), terminal=terminal, error=error),
    ]


RUN: list[Event] = [
    RunStarted(question="Why?", strategy="beam", scorer="labels"),
    *done("0"),
    *done("0.0", "x"),
    *done("0.1", "x"),
    *done("0.2", error="starved"),
    PagesRead(pool=PoolCounts(9, 1, 0, 0)),
    Scored(node=n("0.0"), score=Score(0.4, "labels")),
    Scored(node=n("0.0"), score=Score(0.5, "labels")),
    Deduplicated(node=n("0.1"), duplicate_of=n("0.0")),
    Selected(nodes=(n("0.0"),)),
    Paused(),
    Stepped(),
    Locked(node=n("0.1"), locked=True),
    Edited(node=n("0.0"), text="by hand", key="y"),
    Inserted(node=n("0.0.0"), text="also by hand", key="x"),
    Resumed(),
    NodeStarted(node=n("0.2"), seed=6),
    *done("0.0.1", "z", terminal=True),
    *done("0.1.0", "w", terminal=True),
    Pruned(node=n("0.1"), freed_pages=2, reason="outside the beam"),
    Locked(node=n("0.1"), locked=False),
    AlarmRaised(kind="starved", message="3 pages short"),
    Noticed(text="fewer branches"),
    Selected(nodes=(n("0.0.1"), n("0.0.0"))),
    Accepted(node=n("0.0.1"), by="run"),
    Finished(reason=FinishReason.ANSWER, answer="a b.", node=n("0.0.1")),
]


def state(tree: Tree) -> dict[str, object]:
    """Return everything a tree holds."""
    held = {name: copy.deepcopy(getattr(tree, name)) for name in Tree.__slots__}
    return {**held, "nodes": [copy.deepcopy(structs.asdict(node)) for node in tree.nodes.values()]}


def test_the_run_has_every_kind_of_event() -> None:
    """So that none is forgotten when another kind is added."""
    assert {type(event) for event in RUN} == set(EVENTS)


@given(st.integers(0, len(RUN)), st.integers(1, len(RUN)))
def test_what_is_taken_back_never_was(start: int, steps: int) -> None:
    """After any number of events taken back, the tree equals the one before them, and goes on as it did."""
    tree, moments, before = Tree(), [], []
    for event in RUN[:start]:
        apply(tree, event)
    for _ in range(2):
        for event in RUN[start : start + steps]:
            before.append(state(tree))
            moments.append(remember(tree, event))
            apply(tree, event)
        while moments:
            take_back(tree, moments.pop())
            assert state(tree) == before.pop()


def test_the_nodes_that_are_gone_are_named() -> None:
    """Those that an event had brought, the latest first."""
    tree = Tree()
    moments = []
    for event in RUN[:9]:
        moments.append(remember(tree, event))
        apply(tree, event)
    gone = [node.id for moment in reversed(moments) for node in take_back(tree, moment)]
    assert gone == ["0.0", "0"]
