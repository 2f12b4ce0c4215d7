"""The visible rows of a tree: a flat list, changed in place where nodes come, fold or unfold.

The widget draws only the rows on the screen; guides are worked out for a row when it is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from pie_mlx.errors import UsageError
from pie_mlx.search.tree import ROOT, Node, NodeId, NodeStatus, Tree

_MANY = 64
"""More new nodes than this at once: making all rows again is cheaper than putting each in its place."""

Match = Callable[[Node], bool]


class Rows:
    """The rows of one tree."""

    def __init__(self) -> None:
        """Start empty."""
        self.tree = Tree()
        self.nodes: list[Node] = []
        self.folded: set[NodeId] = set()
        self.match: Match | None = None
        self._shown: set[NodeId] = set()
        """With a filter: what matches, and the way to it."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.nodes)

    def rebuild(self, tree: Tree) -> None:
        """Make all rows again."""
        self.tree = tree
        if self.match is not None:
            self._shown = self._matching(self.match)
        self.nodes = list(self._visible(ROOT)) if ROOT in tree else []

    def add(self, added: Iterable[Node]) -> None:
        """Put new nodes in their places."""
        new = list(added)
        if self.match is not None or len(new) > _MANY or not self.nodes:
            self.rebuild(self.tree)
            return
        for node in new:
            self._insert(node)

    def remove(self, removed: Iterable[Node]) -> None:
        """Drop nodes that are no longer in the tree, the latest first."""
        gone = list(removed)
        if self.match is not None or len(gone) > _MANY:
            self.rebuild(self.tree)
            return
        for node in gone:
            self.folded.discard(node.id)
            # Identity is compared first, so this is one pass in C; what is folded away has no row.
            if node in self.nodes:
                self.nodes.remove(node)

    def _insert(self, node: Node) -> None:
        """Put one node behind what its parent already shows, unless it is folded away."""
        parent = None if node.parent is None else self.index(node.parent)
        if parent is None or node.parent in self.folded:
            return
        self.nodes.insert(self._end(parent), node)

    def _end(self, index: int) -> int:
        """Return the index behind the last row below a row."""
        depth = self.nodes[index].depth
        at = index + 1
        if self.nodes[index].parent is None:
            return len(self.nodes)
        while at < len(self.nodes) and self.nodes[at].depth > depth:
            at += 1
        return at

    def index(self, node: NodeId) -> int | None:
        """Return a node's row, None where it has none."""
        found = self.tree.nodes.get(node)
        if found is None:
            return None
        try:
            # Identity is compared first, so this is one pass in C.
            return self.nodes.index(found)
        except ValueError:
            return None

    def nearest(self, node: NodeId) -> int:
        """Return the row of a node or of its nearest visible ancestor."""
        at: NodeId | None = node
        while at is not None:
            index = self.index(at)
            if index is not None:
                return index
            at = self.tree.nodes[at].parent if at in self.tree else None
        return 0

    # --- folding ------------------------------------------------------------------------------

    def fold(self, index: int) -> bool:
        """Hide what is below a row; whether there was anything."""
        node = self.nodes[index]
        end = self._end(index)
        if node.id in self.folded or end == index + 1:
            return False
        self.folded.add(node.id)
        del self.nodes[index + 1 : end]
        return True

    def unfold(self, index: int) -> bool:
        """Show what is below a folded row; whether it was folded."""
        node = self.nodes[index]
        if node.id not in self.folded:
            return False
        self.folded.discard(node.id)
        self.nodes[index + 1 : index + 1] = list(self._visible(node.id))[1:]
        return True

    def reveal(self, node: NodeId) -> int:
        """Unfold the way to a node; return its row."""
        above = self.tree[node].parent
        is_changed = False
        while above is not None:
            if above in self.folded:
                self.folded.discard(above)
                is_changed = True
            above = self.tree[above].parent
        if is_changed:
            self.rebuild(self.tree)
        return self.nearest(node)

    def _visible(self, start: NodeId) -> Iterator[Node]:
        """Yield a node and what is shown below it, parents first."""
        nodes, folded, shown = self.tree.nodes, self.folded, self._shown if self.match is not None else None
        stack = [start] if shown is None or start in shown else []
        while stack:
            node = nodes[stack.pop()]
            yield node
            if node.children and node.id not in folded:
                children = node.children if shown is None else [child for child in node.children if child in shown]
                stack.extend(reversed(children))

    # --- filtering and finding ------------------------------------------------------------------

    def set_filter(self, match: Match | None) -> int:
        """Show only what matches, and the way to it; return how many match."""
        self.match = match
        self.rebuild(self.tree)
        return 0 if match is None else sum(1 for node in self.nodes if match(node))

    def _matching(self, match: Match) -> set[NodeId]:
        """Return the ids of what matches, and of all nodes above."""
        shown: set[NodeId] = set()
        for node in self.tree.nodes.values():
            if not match(node):
                continue
            at: NodeId | None = node.id
            while at is not None and at not in shown:
                shown.add(at)
                at = self.tree.nodes[at].parent
        return shown

    def guide(self, node: Node) -> list[bool]:
        """Return for each level above a node whether another branch follows there, outermost first; own level last."""
        follows: list[bool] = []
        at = node
        while at.parent is not None:
            parent = self.tree.nodes[at.parent]
            follows.append(self._last_child(parent) != at.id)
            at = parent
        return follows[::-1]

    def _last_child(self, parent: Node) -> NodeId | None:
        """Return the last child that is shown."""
        if self.match is None:
            return parent.children[-1]
        return next((child for child in reversed(parent.children) if child in self._shown), None)


_TERM = re.compile(r"(score|depth|tokens|status|is)\s*(>=|<=|>|<|=|:)\s*(\S+)")


def parse_filter(text: str) -> Match | None:
    """Return what a filter asks: words (all must occur), ``status:open``, ``score>0.5``, ``depth=2``, ``is:locked``.

    Raises:
        UsageError: a term has no meaning.
    """
    terms: list[Match] = []
    rest = text
    for found in list(_TERM.finditer(text)):
        terms.append(_term(*found.groups()))
        rest = rest.replace(found.group(0), " ", 1)
    words = [word.casefold() for word in rest.split()]
    if words:
        terms.append(lambda node: all(word in node.text.casefold() or word == node.id for word in words))
    if not terms:
        return None
    return lambda node: all(term(node) for term in terms)


def _term(key: str, sign: str, value: str) -> Match:
    """Return the meaning of one term."""
    if key == "status":
        if value not in {status.value for status in NodeStatus}:
            raise UsageError(f"there is no status {value!r}", ", ".join(status.value for status in NodeStatus))
        return lambda node: node.status.value == value
    if key == "is":
        if value not in ("locked", "frontier", "leaf"):
            raise UsageError(f"a node cannot be {value!r}", "is:locked, is:frontier or is:leaf")
        return lambda node: {"locked": node.locked, "frontier": node.selected, "leaf": not node.children}[value]
    try:
        limit = float(value)
    except ValueError:
        raise UsageError(f"{value!r} is not a number", f"{key}>0.5") from None
    return lambda node: _compare(_number(node, key), sign, limit)


def _number(node: Node, key: str) -> float | None:
    """Return the number that a term compares."""
    return {"score": node.value, "depth": node.depth, "tokens": node.tokens.completion}[key]


def _compare(number: float | None, sign: str, limit: float) -> bool:
    """Compare; no value is neither more nor less than anything."""
    if number is None:
        return False
    if sign in ("=", ":"):
        return abs(number - limit) < 5e-3
    return {">": number > limit, "<": number < limit, ">=": number >= limit, "<=": number <= limit}[sign]
