"""The tree: ids, status moves, walks, ranking and the best path."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.errors import InvalidParameter, UsageError
from pie_mlx.search.errors import TreeError
from pie_mlx.search.tree import (
    MOVES,
    ROOT,
    NodeId,
    NodeStatus,
    Score,
    TokenCounts,
    Tree,
    child_id,
    id_path,
    parent_id,
    parse_node_id,
    rank_key,
)


def _open(tree: Tree, node: str, value: float | None = None) -> NodeId:
    """Add a node with a complete thought."""
    made = tree.add(NodeId(node))
    tree.move(made.id, NodeStatus.OPEN)
    if value is not None:
        made.set_score(Score(value, "labels"))
    return made.id


def test_path_ids_name_parent_and_order() -> None:
    """An id tells its parent, and sorts by number, not by text."""
    assert parent_id(NodeId("0.2.1")) == "0.2"
    assert parent_id(ROOT) is None
    assert child_id(NodeId("0.2"), 10) == "0.2.10"
    assert sorted([NodeId("0.10"), NodeId("0.9"), ROOT], key=id_path) == ["0", "0.9", "0.10"]


@pytest.mark.parametrize("text", ["", "1", "0.", ".0", "0.01", "0.-1", "0.x", "0.2 ", "0.\u0662", "0..1"])
def test_what_is_no_path_is_refused(text: str) -> None:
    """Only canonical ASCII paths below 0 are ids, so that one node has one name."""
    with pytest.raises(UsageError):
        parse_node_id(text)


def test_a_parent_is_expanding_until_its_last_child_is_written() -> None:
    """The parent's status follows its children."""
    tree = Tree()
    _open(tree, "0")
    tree.add(NodeId("0.0"))
    tree.add(NodeId("0.1"))
    seen = []
    for child, status in (("0.0", NodeStatus.OPEN), ("0.1", NodeStatus.FAILED)):
        tree.move(NodeId(child), status)
        seen.append(tree.root.status)
    assert seen == [NodeStatus.EXPANDING, NodeStatus.EXPANDED]


def test_every_status_move_is_allowed_or_refused_by_the_table() -> None:
    """A move outside the table raises and changes nothing."""
    for was in NodeStatus:
        for wanted in NodeStatus:
            tree = Tree()
            node = tree.add(ROOT)
            node.status = was
            if wanted in MOVES[was]:
                tree.move(ROOT, wanted)
                assert node.status is wanted
            else:
                with pytest.raises(TreeError):
                    tree.move(ROOT, wanted)
                assert node.status is was


def test_a_node_needs_a_parent_and_a_free_name() -> None:
    """Two nodes of one id, a node without its parent, and a child of a written-off node are refused."""
    tree = Tree()
    _open(tree, "0")
    with pytest.raises(TreeError, match="already"):
        tree.add(ROOT)
    with pytest.raises(TreeError, match="no such node"):
        tree.add(NodeId("0.5.1"))
    tree.move(ROOT, NodeStatus.INVALID)
    with pytest.raises(TreeError, match="cannot become expanding"):
        tree.add(NodeId("0.0"))


def test_a_missing_value_ranks_last_and_is_not_zero() -> None:
    """None is below 0 and below a negative value; equal values keep tree order."""
    tree = Tree()
    _open(tree, "0")
    for name, value in (("0.0", None), ("0.1", 0.0), ("0.2", -1.0), ("0.3", 0.5), ("0.4", 0.5)):
        _open(tree, name, value)
    tree[NodeId("0.0")].set_score(Score(None, "labels"))
    ranked = sorted((tree[child] for child in tree.root.children), key=rank_key)
    assert [node.id for node in ranked] == ["0.3", "0.4", "0.1", "0.2", "0.0"]


@pytest.mark.parametrize("value", ["0.5", True, math.nan, math.inf, [1]])
def test_a_score_takes_only_numbers_that_can_be_ranked(value: object) -> None:
    """Text and NaN are refused where the score is made, not where it is compared."""
    with pytest.raises(InvalidParameter):
        Score(value, "labels")  # type: ignore[arg-type]


def test_the_latest_score_ranks() -> None:
    """A second score of a kind replaces the first and becomes the latest."""
    tree = Tree()
    node = tree[_open(tree, "0", 0.2)]
    node.set_score(Score(0.9, "exact"))
    node.set_score(Score(0.4, "labels"))
    assert node.value == 0.4
    assert list(node.scores) == ["exact", "labels"]


def test_pruning_takes_the_subtree_but_not_what_has_ended() -> None:
    """Failed nodes keep their status, the accepted one stays; the rest is pruned with the reason."""
    tree = Tree()
    for name in ("0", "0.0", "0.0.0", "0.0.1", "0.0.2"):
        _open(tree, name)
    tree.move(NodeId("0.0.1"), NodeStatus.FAILED)
    tree.accept(NodeId("0.0.2"))
    assert tree.prune(NodeId("0.0"), "worse") == ["0.0", "0.0.0"]
    assert tree[NodeId("0.0.1")].status is NodeStatus.FAILED
    assert tree[NodeId("0.0.2")].status is NodeStatus.ACCEPTED
    assert tree[NodeId("0.0.0")].reason == "worse"


def test_an_unfinished_node_never_wins() -> None:
    """The best node is finished, however well an open one scores; an accepted one beats all."""
    tree = Tree()
    _open(tree, "0")
    _open(tree, "0.0", 0.99)
    for name, value in (("0.1", 0.3), ("0.2", 0.5)):
        tree.move(_open(tree, name, value), NodeStatus.DONE)
    assert tree.best_path()[-1].id == "0.2"
    tree.accept(NodeId("0.1"))
    assert [node.id for node in tree.best_path()] == ["0", "0.1"]
    tree.accept(NodeId("0.2"))
    assert tree[NodeId("0.1")].status is NodeStatus.DONE


def test_without_a_finished_node_there_is_no_best_but_a_path_so_far() -> None:
    """The path so far leads to the deepest valued node that is alive."""
    tree = Tree()
    assert tree.best() is None
    assert tree.best_path() == []
    _open(tree, "0")
    _open(tree, "0.0", 0.9)
    _open(tree, "0.1", 0.1)
    _open(tree, "0.1.0", 0.2)
    assert tree.best() is None
    assert [node.id for node in tree.best_path()] == ["0", "0.1", "0.1.0"]


@given(st.lists(st.sampled_from([None, 0.1, 0.5, 0.9]), min_size=1, max_size=12), st.integers(0, 3))
def test_the_best_is_the_first_of_the_ranked(values: list[float | None], num_done: int) -> None:
    """Whether the path ends at a finished node or at the deepest alive, it is the one that ranks first there."""
    tree = Tree()
    tree.add(ROOT)
    tree.move(ROOT, NodeStatus.OPEN)
    for at, value in enumerate(values):
        node = tree.add(child_id(ROOT, at))
        tree.move(node.id, NodeStatus.DONE if at < num_done else NodeStatus.OPEN)
        if value is not None:
            node.set_score(Score(value, "label"))
    finished = tree.ranked(NodeStatus.DONE)
    alive = [node for node in tree.ranked(NodeStatus.OPEN) if node.value is not None]
    wanted = (finished or alive)[:1]
    assert tree.best_path()[-1:] == wanted


def test_equal_states_are_found_by_key() -> None:
    """The first node of a key answers; a node that changes its key gives it up."""
    tree = Tree()
    for name in ("0", "0.0", "0.1"):
        _open(tree, name)
    tree.set_key(NodeId("0.0"), "4 6")
    tree.set_key(NodeId("0.1"), "4 6")
    found = tree.find_key("4 6")
    assert found is not None
    assert found.id == "0.0"
    tree.set_key(NodeId("0.0"), "other")
    assert tree.find_key("4 6") is None
    assert tree.find_key("") is None


def test_a_deep_and_a_wide_tree_need_no_recursion() -> None:
    """A chain of 3,000 and 100,000 children are walked, pruned and counted."""
    deep = Tree()
    name = _open(deep, "0")
    for _ in range(3_000):
        name = _open(deep, child_id(name, 0), 0.1)
    assert len(list(deep.walk())) == 3_001
    assert len(deep.best_path()) == 3_001
    assert len(deep.prune(ROOT)) == 3_001

    wide = Tree()
    _open(wide, "0")
    for _ in range(100_000):
        _open(wide, wide.next_child(ROOT))
    assert wide.counts() == {NodeStatus.EXPANDED: 1, NodeStatus.OPEN: 100_000}
    assert sum(1 for _ in wide.leaves()) == 100_000


def test_the_frontier_replaces_the_one_before() -> None:
    """Selecting marks the new frontier and unmarks the old one."""
    tree = Tree()
    for name in ("0", "0.0", "0.1"):
        _open(tree, name)
    tree.select([NodeId("0.0")])
    tree.select([NodeId("0.1")])
    assert tree.selected == ("0.1",)
    assert not tree[NodeId("0.0")].selected


def test_tokens_add_up() -> None:
    """The tree's tokens are the sum over its nodes."""
    tree = Tree()
    for name in ("0", "0.0"):
        tree[_open(tree, name)].tokens = TokenCounts(3, 2, 1)
    assert tree.tokens() == TokenCounts(6, 4, 2)
