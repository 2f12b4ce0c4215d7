"""Events into a tree, steering included."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pie_mlx.search.errors import TreeError
from pie_mlx.search.trace import (
    Accepted,
    Edited,
    Event,
    Inserted,
    Locked,
    NodeDone,
    NodeStarted,
    Paused,
    Pruned,
    Resumed,
    Scored,
    Stepped,
    TextAdded,
    apply,
    replay,
)
from pie_mlx.search.tree import ROOT, NodeId, NodePages, NodeStatus, Score, Tree

A, B = NodeId("0.0"), NodeId("0.1")


def _two_thoughts() -> Tree:
    """Return a root with two scored thoughts."""
    events: list[Event] = [NodeStarted(node=ROOT), NodeDone(node=ROOT, text="q")]
    for node in (A, B):
        events += [NodeStarted(node=node), NodeDone(node=node, text=f"thought {node}", key=f"k{node}")]
        events.append(Scored(node=node, score=Score(0.5, "labels")))
    return replay(events)


def test_a_run_folds_into_its_tree(run_events: Callable[..., list[Event]]) -> None:
    """Each node of the recorded run ends in the status that its events tell."""
    tree = replay(run_events())
    assert {str(node.id): node.status for node in tree.walk()} == {
        "0": NodeStatus.EXPANDED,
        "0.0": NodeStatus.EXPANDED,
        "0.0.0": NodeStatus.EXPANDED,
        "0.0.0.0": NodeStatus.ACCEPTED,
        "0.1": NodeStatus.PRUNED,
        "0.2": NodeStatus.INVALID,
        "0.3": NodeStatus.DUPLICATE,
    }
    assert tree[NodeId("0.3")].duplicate_of == "0.0"
    assert tree[B].pages == NodePages()
    assert [node.id for node in tree.best_path()] == ["0", "0.0", "0.0.0", "0.0.0.0"]


def test_every_prefix_of_a_run_is_a_tree(run_events: Callable[..., list[Event]]) -> None:
    """Folding event by event equals folding at once: a view may stop anywhere."""
    events, live = run_events(), Tree()
    for at, event in enumerate(events, start=1):
        apply(live, event)
        again = replay(events[:at])
        assert [(n.id, n.status, n.text) for n in live.walk()] == [(n.id, n.status, n.text) for n in again.walk()]


def test_pieces_show_until_the_whole_text_comes() -> None:
    """Deltas grow the thought; the final text replaces them, so they may be left out."""
    tree = replay([NodeStarted(node=ROOT), TextAdded(node=ROOT, text="4 +"), TextAdded(node=ROOT, text=" 8")])
    assert tree.root.text == "4 + 8"
    apply(tree, NodeDone(node=ROOT, text="4 + 8 = 12"))
    assert tree.root.text == "4 + 8 = 12"


def test_an_edit_voids_what_was_said_of_the_old_thought() -> None:
    """Text and key change, scores are gone, and the node is open again."""
    tree = _two_thoughts()
    apply(tree, Pruned(node=A))
    apply(tree, Edited(node=A, text="better", key="new"))
    node = tree[A]
    assert (node.status, node.text, node.key, node.scores) == (NodeStatus.OPEN, "better", "new", {})
    assert tree.find_key("k0.0") is None


def test_a_thought_can_be_added_by_hand() -> None:
    """An inserted node is open under its parent, which is expanded, not left expanding."""
    tree = _two_thoughts()
    apply(tree, Inserted(node=tree.next_child(ROOT), text="by hand"))
    assert tree[NodeId("0.2")].status is NodeStatus.OPEN
    assert tree.root.status is NodeStatus.EXPANDED


def test_locking_brings_a_pruned_node_back() -> None:
    """A lock opens it; letting it go leaves it open."""
    tree = _two_thoughts()
    apply(tree, Pruned(node=A, reason="worse"))
    apply(tree, Locked(node=A))
    assert tree[A].locked
    assert (tree[A].status, tree[A].reason) == (NodeStatus.OPEN, "")
    apply(tree, Locked(node=A, locked=False))
    assert not tree[A].locked
    assert tree[A].status is NodeStatus.OPEN


def test_the_user_may_accept_a_node_after_the_run_did() -> None:
    """The last acceptance is the answer."""
    tree = _two_thoughts()
    apply(tree, Accepted(node=A))
    apply(tree, Accepted(node=B, by="user"))
    best = tree.best()
    assert best is not None
    assert best.id == B
    assert tree[A].status is NodeStatus.DONE


def test_a_failed_node_can_be_tried_again() -> None:
    """A failure keeps its reason until the node starts over."""
    tree = replay([NodeStarted(node=ROOT), NodeDone(node=ROOT, error="starved: 3 pages short", finish="failed")])
    assert tree.root.status is NodeStatus.FAILED
    assert tree.root.reason == "starved: 3 pages short"
    apply(tree, NodeStarted(node=ROOT, seed=9))
    assert (tree.root.status, tree.root.reason, tree.root.seed) == (NodeStatus.WRITING, "", 9)


def test_pause_step_and_resume_are_told() -> None:
    """The clock's state is part of the view."""
    tree = _two_thoughts()
    apply(tree, Paused())
    apply(tree, Stepped())
    assert tree.paused
    assert tree.num_steps == 1
    apply(tree, Resumed())
    assert not tree.paused


def test_an_event_on_an_unknown_node_is_refused() -> None:
    """Nothing is made up for a node that was never started."""
    with pytest.raises(TreeError, match="no such node"):
        apply(Tree(), Scored(node=A, score=Score(1.0, "exact")))
