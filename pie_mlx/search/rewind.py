"""Take events back: what a tree was before an event, kept as long as someone wants to step back over it.

A tree is made by applying events, so its past can always be had by applying fewer of them. On a long trace that takes
seconds; a :class:`Moment` holds only what one event changes, so that one step back costs as little as one forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from pie_mlx.search.node import Node, NodeId, parent_id
from pie_mlx.search.trace_events import Accepted, Event, Pruned, Selected
from pie_mlx.search.tree import Tree

_IN_PLACE = ("id", "parent", "depth", "scores", "children")
_SCALARS = tuple(name for name in Node.__struct_fields__ if name not in _IN_PLACE)
_scalars_of = attrgetter(*_SCALARS)
_OF_TREE = ("question", "pool", "paused", "num_steps", "outcome", "_selected", "_accepted")
_LISTS = ("alarms", "notices")


@dataclass(frozen=True, slots=True)
class _Kept:
    """One node as it was."""

    node: Node
    scalars: tuple[object, ...]
    scores: dict[str, object]
    num_children: int


@dataclass(frozen=True, slots=True)
class Moment:
    """What an event was about to change."""

    num_nodes: int
    nodes: tuple[_Kept, ...]
    of_tree: tuple[object, ...]
    lengths: tuple[int, ...]
    keys: tuple[tuple[str, NodeId | None], ...]
    """State keys, and which node had them."""


def remember(tree: Tree, event: Event) -> Moment:
    """Return what ``event`` will change; call it right before :func:`~pie_mlx.search.replay.apply`."""
    touched = {node.id: node for node in _touched(tree, event)}
    kept = tuple(_Kept(node, _scalars_of(node), dict(node.scores), len(node.children)) for node in touched.values())
    names = {node.key for node in touched.values()} | {str(getattr(event, "key", ""))}
    owners = tree._by_key  # noqa: SLF001  the tree's own memory, of which nobody else needs a part
    return Moment(
        len(tree),
        kept,
        tuple(getattr(tree, name) for name in _OF_TREE),
        tuple(len(getattr(tree, name)) for name in _LISTS),
        tuple((name, owners.get(name)) for name in names if name),
    )


def take_back(tree: Tree, moment: Moment) -> list[Node]:
    """Make ``tree`` what it was at ``moment``, the latest not taken back yet; return the nodes that are gone."""
    gone = []
    while len(tree) > moment.num_nodes:
        gone.append(tree.nodes.popitem()[1])
    for kept in moment.nodes:
        node = kept.node
        for name, value in zip(_SCALARS, kept.scalars, strict=True):
            setattr(node, name, value)
        node.scores.clear()
        node.scores.update(kept.scores)  # type: ignore[arg-type]
        del node.children[kept.num_children :]
    for name, value in zip(_OF_TREE, moment.of_tree, strict=True):
        setattr(tree, name, value)
    for name, length in zip(_LISTS, moment.lengths, strict=True):
        del getattr(tree, name)[length:]
    owners = tree._by_key  # noqa: SLF001  as above
    for key, owner in moment.keys:
        if owner is None:
            owners.pop(key, None)
        else:
            owners[key] = owner
    return gone


def _touched(tree: Tree, event: Event) -> Iterator[Node]:
    """Yield every node that an event may change; those above change with the status of what is below them."""
    if isinstance(event, Selected):
        for name in (*tree.selected, *event.nodes):
            yield from _lineage(tree, name)
    elif isinstance(event, Pruned) and event.node in tree:
        yield from tree.walk(event.node)
    elif isinstance(event, Accepted) and tree._accepted is not None:  # noqa: SLF001  as above
        yield from _lineage(tree, tree._accepted)  # noqa: SLF001
    if event.node is not None:
        yield from _lineage(tree, event.node)


def _lineage(tree: Tree, name: NodeId) -> Iterator[Node]:
    """Yield a node, its parent, and the parent's parent, as far as they are there."""
    at: NodeId | None = name
    for _ in range(3):
        if at is None:
            return
        if at in tree:
            yield tree[at]
        at = parent_id(at)
