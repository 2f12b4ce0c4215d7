"""The flat list of visible rows always equals what a walk of the tree would show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pie_mlx.errors import UsageError
from pie_mlx.search.node import Score
from pie_mlx.search.tree import ROOT, Node, NodeId, NodeStatus, Tree
from pie_mlx.tui.rows import Rows, parse_filter


def walked(tree: Tree, folded: set[NodeId], start: NodeId = ROOT) -> Iterator[NodeId]:
    """Yield what is to be seen, worked out the simple way."""
    yield start
    if start not in folded:
        for child in tree[start].children:
            yield from walked(tree, folded, child)


class Growing(RuleBasedStateMachine):
    """A tree that grows while its rows fold and unfold."""

    def __init__(self) -> None:
        """Start at the root."""
        super().__init__()
        self.tree = Tree()
        self.tree.add(ROOT, status=NodeStatus.OPEN)
        self.rows = Rows()
        self.rows.rebuild(self.tree)

    @rule(picks=st.lists(st.integers(0, 10_000), min_size=1, max_size=4))
    def grow(self, picks: list[int]) -> None:
        """Add a few nodes anywhere."""
        added: list[Node] = []
        for pick in picks:
            parent = list(self.tree.nodes)[pick % len(self.tree)]
            added.append(self.tree.add(self.tree.next_child(parent), status=NodeStatus.OPEN))
        self.rows.add(added)

    @rule(pick=st.integers(0, 10_000))
    def fold(self, pick: int) -> None:
        """Fold a row."""
        self.rows.fold(pick % len(self.rows))

    @rule(pick=st.integers(0, 10_000))
    def unfold(self, pick: int) -> None:
        """Unfold a row."""
        self.rows.unfold(pick % len(self.rows))

    @rule(pick=st.integers(0, 10_000))
    def reveal(self, pick: int) -> None:
        """Reveal any node: it then has a row."""
        node = list(self.tree.nodes)[pick % len(self.tree)]
        row = self.rows.reveal(node)
        assert self.rows.nodes[row].id == node

    @invariant()
    def equals_a_walk(self) -> None:
        """The rows are what a walk shows."""
        assert [node.id for node in self.rows.nodes] == list(walked(self.tree, self.rows.folded))


TestGrowing = Growing.TestCase


def small_tree() -> Tree:
    """Return a root with three children, the first of which has two."""
    tree = Tree()
    tree.add(ROOT, status=NodeStatus.OPEN)
    for node, text, value in (
        ("0.0", "Red fox", 0.9),
        ("0.1", "blue", 0.2),
        ("0.2", "green", None),
        ("0.0.0", "red", 0.5),
    ):
        made = tree.add(NodeId(node), status=NodeStatus.OPEN)
        made.text = text
        if value is not None:
            made.set_score(Score(value, "label"))
    return tree


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("red", ["0", "0.0", "0.0.0"]),
        ("0.1", ["0", "0.1"]),
        ("score>0.4", ["0", "0.0", "0.0.0"]),
        ("score<=0.2", ["0", "0.1"]),
        ("depth=1 is:leaf", ["0", "0.1", "0.2"]),
        ("status:open blue", ["0", "0.1"]),
        ("nowhere", []),
    ],
)
def test_a_filter_shows_matches_and_the_way_to_them(asked: str, shown: list[str]) -> None:
    """Ancestors of a match stay; a node without a score is neither above nor below a limit."""
    rows = Rows()
    rows.rebuild(small_tree())
    rows.set_filter(parse_filter(asked))
    assert [node.id for node in rows.nodes] == shown


@pytest.mark.parametrize("asked", ["status:happy", "is:tall", "score>much"])
def test_a_filter_without_meaning_is_refused(asked: str) -> None:
    """What cannot be asked is said, with what can."""
    with pytest.raises(UsageError) as refused:
        parse_filter(asked)
    assert refused.value.hint


def test_guides_know_which_branches_follow() -> None:
    """A level's line goes on only while another branch follows there, also among filtered rows."""
    tree = small_tree()
    rows = Rows()
    rows.rebuild(tree)
    assert rows.guide(tree[NodeId("0.0.0")]) == [True, False]
    rows.set_filter(parse_filter("red"))
    assert rows.guide(tree[NodeId("0.0.0")]) == [False, False]


@given(st.text())
def test_any_text_is_a_filter_or_a_refusal(text: str) -> None:
    """Typing never crashes the screen."""
    try:
        match = parse_filter(text)
    except UsageError:
        return
    assert match is None or match(small_tree().root) in (True, False)
