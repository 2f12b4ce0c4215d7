"""From events to a tree: the one place where an event changes one.

The live view, ``show``, ``replay`` and ``resume`` all call :func:`apply`; so does the run itself, which is why a
replayed tree equals the live one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pie_mlx.search.trace_events import (
    Accepted,
    AlarmRaised,
    Deduplicated,
    Edited,
    Event,
    Finished,
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
    Verdict,
)
from pie_mlx.search.tree import NodePages, NodeStatus, Outcome, Tree


def replay(events: Iterable[Event]) -> Tree:
    """Fold events into a new tree.

    Raises:
        TreeError: an event contradicts those before it.
    """
    tree = Tree()
    for event in events:
        apply(tree, event)
    return tree


def apply(tree: Tree, event: Event) -> None:
    """Change ``tree`` as ``event`` tells.

    Raises:
        TreeError: the event contradicts the tree.
    """
    APPLY[type(event)](tree, event)


def _run_started(tree: Tree, event: RunStarted) -> None:
    tree.question = event.question


def _node_started(tree: Tree, event: NodeStarted) -> None:
    """Add the node; one that was being written, or failed, starts over (a resumed or repeated attempt)."""
    if event.node not in tree:
        tree.add(event.node, seed=event.seed)
        return
    node = tree[event.node]
    if node.status is not NodeStatus.WRITING:
        tree.turn(node, NodeStatus.WRITING)
    node.text, node.reasoning, node.reason, node.finish, node.seed = "", "", "", "", event.seed


def _text_added(tree: Tree, event: TextAdded) -> None:
    tree[event.node].text += event.text


def _node_done(tree: Tree, event: NodeDone) -> None:
    node = tree[event.node]
    if event.error is not None:
        status = NodeStatus.FAILED
    elif event.verdict is not Verdict.OK:
        status = NodeStatus.INVALID
    else:
        status = NodeStatus.DONE if event.terminal else NodeStatus.OPEN
    tree.turn(node, status)
    node.text, node.reasoning, node.finish = event.text, event.reasoning, event.finish
    node.reason = event.reason if event.error is None else event.error
    node.tokens, node.pages = event.tokens, event.pages
    if event.key or node.key:
        tree.set_key(node.id, event.key)


def _scored(tree: Tree, event: Scored) -> None:
    tree[event.node].set_score(event.score)


def _pruned(tree: Tree, event: Pruned) -> None:
    tree.prune(event.node, event.reason)


def _deduplicated(tree: Tree, event: Deduplicated) -> None:
    node, other = tree[event.node], tree[event.duplicate_of]
    tree.turn(node, NodeStatus.DUPLICATE)
    node.duplicate_of, node.pages, node.selected = other.id, NodePages(), False


def _selected(tree: Tree, event: Selected) -> None:
    tree.select(event.nodes)


def _pages_read(tree: Tree, event: PagesRead) -> None:
    tree.pool = event.pool


def _alarm_raised(tree: Tree, event: AlarmRaised) -> None:
    tree.alarms.append(f"{event.kind}: {event.message}")


def _paused(tree: Tree, _event: Paused) -> None:
    tree.paused = True


def _resumed(tree: Tree, _event: Resumed) -> None:
    tree.paused = False


def _stepped(tree: Tree, _event: Stepped) -> None:
    tree.num_steps += 1


def _edited(tree: Tree, event: Edited) -> None:
    """Rewrite the thought; whatever was said of the old one is void."""
    node = tree[event.node]
    if node.status is not NodeStatus.OPEN:
        tree.turn(node, NodeStatus.OPEN)
    node.text, node.reasoning, node.finish, node.reason = event.text, "", "user", ""
    node.duplicate_of = None
    node.scores.clear()
    tree.set_key(node.id, event.key)


def _inserted(tree: Tree, event: Inserted) -> None:
    node = tree.add(event.node, status=NodeStatus.OPEN)
    node.text, node.finish = event.text, "user"
    tree.set_key(node.id, event.key)


def _locked(tree: Tree, event: Locked) -> None:
    """Lock the node or let it go; a pruned or duplicate node that is locked is open again."""
    node = tree[event.node]
    if event.locked and node.status in (NodeStatus.PRUNED, NodeStatus.DUPLICATE):
        tree.turn(node, NodeStatus.OPEN)
        node.reason, node.duplicate_of = "", None
    node.locked = event.locked


def _accepted(tree: Tree, event: Accepted) -> None:
    tree.accept(event.node)


def _finished(tree: Tree, event: Finished) -> None:
    tree.outcome = Outcome(event.reason.value, event.answer, event.solved, event.node, event.error)
    tree.paused = False


def _noticed(tree: Tree, event: Noticed) -> None:
    tree.notices.append(event.text)


APPLY: Mapping[type[Event], Callable[[Tree, Any], None]] = {
    RunStarted: _run_started,
    NodeStarted: _node_started,
    TextAdded: _text_added,
    NodeDone: _node_done,
    Scored: _scored,
    Pruned: _pruned,
    Deduplicated: _deduplicated,
    Selected: _selected,
    PagesRead: _pages_read,
    AlarmRaised: _alarm_raised,
    Paused: _paused,
    Resumed: _resumed,
    Stepped: _stepped,
    Edited: _edited,
    Inserted: _inserted,
    Locked: _locked,
    Accepted: _accepted,
    Finished: _finished,
    Noticed: _noticed,
}
"""What an event of a kind does to a tree; for whoever folds very many, :func:`apply` is a call more."""
