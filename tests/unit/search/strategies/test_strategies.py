"""Strategies choose as their papers say, on a tree whose values the test gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.sampling import derive_seed, uniform
from pie_mlx.search.node import ROOT, NodeId, NodeStatus, child_id
from pie_mlx.search.params import SearchParams, StrategyName
from pie_mlx.search.strategies import STRATEGIES
from pie_mlx.search.strategies.base import Evaluate, Expand, Prune, Select

ALL: list[StrategyName] = sorted(STRATEGIES)


def test_beam_expands_the_best_of_each_level_together(world: Any) -> None:
    """Every level is one expansion of the kept nodes, best first; the others are pruned."""
    run = world(SearchParams(breadth=3, beam=2)).run(STRATEGIES["beam"]())
    expansions = [a for a in run.actions if isinstance(a, Expand)]
    assert [[ask.node for ask in a.asks] for a in expansions] == [["0"], ["0.2", "0.1"], ["0.1.2", "0.2.2"]]
    assert run.tree["0.0"].status is NodeStatus.PRUNED
    assert run.tree["0.2.2.2"].status is NodeStatus.DONE


def test_beam_ranks_a_missing_value_last(world: Any) -> None:
    """A node whose verdict could not be read loses against the worst value; it is not taken for 0."""

    def value(path: tuple[int, ...]) -> float | None:
        return (None, -5.0, -9.0)[path[-1]]

    run = world(SearchParams(breadth=3, beam=2), value=value).run(STRATEGIES["beam"]())
    assert run.selected()[0] == [(1,), (2,)]


def test_beam_follows_a_locked_node_besides_its_own(world: Any) -> None:
    """A locked node is expanded whatever its value, and only once."""
    run = world(SearchParams(breadth=2, beam=1))
    run.tree.add(NodeId("0.0"), status=NodeStatus.OPEN)
    run.tree["0.0"].locked = True
    run.run(STRATEGIES["beam"]())
    assert run.expanded().count((0,)) == 1
    assert (2,) in run.expanded()


def test_beam_ends_where_a_locked_node_gets_no_children(world: Any) -> None:
    """A locked node without children is not asked for them again and again."""
    run = world(SearchParams(breadth=2, beam=1))
    run.tree.add(NodeId("0.0"), status=NodeStatus.OPEN)
    run.tree["0.0"].locked = True
    run.barren = {(0,)}
    run.run(STRATEGIES["beam"]())
    assert run.expanded().count((0,)) == 1


def test_greedy_goes_straight_down(world: Any) -> None:
    """Greedy expands one node a level: the best of the last one."""
    run = world(SearchParams(strategy="greedy", breadth=3)).run(STRATEGIES["greedy"]())
    assert run.expanded() == [(), (2,), (2, 2)]


@pytest.mark.parametrize("name", ["best_of_n", "self_consistency"])
def test_chains_grow_side_by_side_without_competing(world: Any, name: StrategyName) -> None:
    """Each sample gets one child a level; nothing is pruned on the way."""
    run = world(SearchParams(breadth=3)).run(STRATEGIES[name]())
    assert [len(a.asks) for a in run.actions if isinstance(a, Expand)] == [1, 3, 3]
    assert not any(isinstance(a, Prune) for a in run.actions)
    assert sum(node.status is NodeStatus.DONE for node in run.tree.nodes.values()) == 3


def test_best_of_n_takes_the_best_leaf(world: Any) -> None:
    """The leaf with the highest value wins."""
    run = world(SearchParams(breadth=3), value=lambda path: -abs(path[0] - 1)).run(STRATEGIES["best_of_n"]())
    assert run.selected() == [[(1, 0, 0)]]


@pytest.mark.parametrize(
    ("weight", "values", "winner"),
    [
        ("count", (0.9, 0.1, 0.1), (1, 0, 0)),
        ("value", (0.9, 0.1, 0.1), (0, 0, 0)),
        ("value", (0.1, None, 0.2), (2, 0, 0)),
    ],
)
def test_majority_counts_or_weighs(
    world: Any, weight: Any, values: tuple[float | None, ...], winner: tuple[int, ...]
) -> None:
    """Two equal answers beat one; weighted, one good sample beats two bad ones, and no value weighs nothing."""
    run = world(SearchParams(breadth=3, self_weight=weight), value=lambda path: values[path[0]])
    run.answers = {(0, 0, 0): "a", (1, 0, 0): "b", (2, 0, 0): "b"}
    if values[1] is None:
        run.answers[(2, 0, 0)] = "c"
    run.run(STRATEGIES["self_consistency"]())
    assert run.selected() == [[winner]]


def test_a_sample_without_an_answer_has_no_vote(world: Any) -> None:
    """Unreadable samples do not form a majority."""
    run = world(SearchParams(breadth=3))
    run.answers = {(2, 0, 0): "b"}
    assert run.run(STRATEGIES["self_consistency"]()).selected() == [[(2, 0, 0)]]


def test_depth_first_backtracks_in_order_of_value(world: Any) -> None:
    """A branch is left for good before the next one is entered, best child first."""
    run = world(SearchParams(breadth=2), depth=2).run(STRATEGIES["dfs"]())
    assert run.expanded() == [(), (1,), (0,)]


def test_depth_first_leaves_a_branch_below_the_floor(world: Any) -> None:
    """A value below the floor, or none, is not followed."""
    values = {0: 0.2, 1: 0.8, 2: None}
    run = world(SearchParams(breadth=3, keep_above=0.5), depth=2, value=lambda path: values[path[-1]])
    assert run.run(STRATEGIES["dfs"]()).expanded() == [(), (1,)]


def test_depth_first_prunes_dead_ends(world: Any) -> None:
    """A branch without any finished node is pruned when it is left."""
    run = world(SearchParams(breadth=2), depth=2)
    run.dead = {(1, 0), (1, 1)}
    run.run(STRATEGIES["dfs"]())
    assert run.tree["0.1"].status is NodeStatus.PRUNED
    assert run.tree["0.0.1"].status is NodeStatus.DONE


def test_best_first_jumps_to_the_best_open_node(world: Any) -> None:
    """After a disappointing child, an earlier sibling is expanded."""
    values = {(0,): 0.6, (1,): 0.9}
    run = world(SearchParams(breadth=2), value=lambda path: values.get(path, 0.1), depth=2)
    assert run.run(STRATEGIES["best_first"]()).expanded() == [(), (1,), (0,)]


def test_dvts_subtrees_never_compete(world: Any) -> None:
    """Each subtree keeps its own best node, even where another subtree's second is better."""

    def value(path: tuple[int, ...]) -> float:
        return 10.0 + path[-1] if path[0] % 2 == 0 else float(path[-1])

    run = world(SearchParams(breadth=2, beam=2), value=value, depth=2).run(STRATEGIES["dvts"]())
    assert run.selected()[0] == [(2,), (3,)]
    assert run.selected()[1] == [(2, 1), (3, 1)]


def test_mcts_compares_siblings_only(world: Any) -> None:
    """Selection walks down level by level: a selected node's parent was expanded, the best branch is revisited."""
    params = SearchParams(breadth=2, rollouts=6, exploration=0.1)
    run = world(params, value=lambda path: 1.0 if path[0] == 1 else 0.0).run(STRATEGIES["mcts"]())
    selected = [path for frontier in run.selected() for path in frontier]
    assert selected[0] == ()
    assert all(path == () or path[:-1] in run.expanded() for path in selected)
    assert sum(path[:1] == (1,) for path in selected) > sum(path[:1] == (0,) for path in selected)


def test_mcts_rolls_out_to_a_finished_node(world: Any) -> None:
    """One descent selects, expands, writes one child a level to the end, and judges the end."""
    run = world(SearchParams(breadth=2, rollouts=1)).run(STRATEGIES["mcts"]())
    kinds = [type(action) for action in run.actions]
    assert kinds == [Select, Expand, Evaluate, Expand, Expand, Evaluate]
    assert [a.asks[0].breadth for a in run.actions if isinstance(a, Expand)] == [2, 1, 1]


def test_mcts_ends_when_the_tree_is_exhausted(world: Any) -> None:
    """A tree of four nodes does not take a thousand rollouts."""
    run = world(SearchParams(breadth=2, rollouts=1000), depth=1).run(STRATEGIES["mcts"]())
    assert len(run.actions) < 20


@pytest.mark.parametrize("name", ALL)
def test_a_search_with_nothing_to_go_on_ends(world: Any, name: StrategyName) -> None:
    """Where no first thought can be read, the strategy returns."""
    run = world(SearchParams(breadth=2, beam=2))
    run.dead = {(i,) for i in range(9)}
    run.run(STRATEGIES[name](), limit=100)
    assert all(node.depth < 2 for node in run.tree.nodes.values())


@pytest.mark.parametrize("name", ALL)
def test_a_search_that_gets_no_children_ends(world: Any, name: StrategyName) -> None:
    """A root without children is expanded once or a bounded number of times."""
    run = world(SearchParams(breadth=2, beam=2))
    run.barren = {()}
    run.run(STRATEGIES[name](), limit=100)
    assert len(run.tree) == 1


@given(
    params=st.builds(
        SearchParams,
        strategy=st.sampled_from(ALL),
        breadth=st.integers(1, 3),
        beam=st.integers(1, 3),
        rollouts=st.just(4),
    ),
    depth=st.integers(1, 3),
    holes=st.sets(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), max_size=12),
    seed=st.integers(0, 99),
)
def test_every_search_ends_and_keeps_to_the_tree(
    world: Any, params: SearchParams, depth: int, holes: set[tuple[int, ...]], seed: int
) -> None:
    """Whatever thoughts fail and whatever the values, a search ends and never expands what is given up."""

    def value(path: tuple[int, ...]) -> float | None:
        draw = uniform(derive_seed(seed, *path), 0)
        return None if draw < 0.1 else draw

    run = world(params, depth=depth, value=value)
    run.dead = {path for path in holes if seed % 2}
    run.barren = {path for path in holes if not seed % 2}
    run.run(STRATEGIES[params.strategy]())
    asked = run.expanded()
    assert not run.dead.intersection(asked)
    assert all(len(path) < depth for path in asked)


def test_child_ids_are_paths() -> None:
    """A path id names the way from the root."""
    assert child_id(child_id(ROOT, 2), 1) == "0.2.1"


def test_scores_are_asked_for_a_level_at_once(world: Any) -> None:
    """Beam judges all siblings in one action, so that they land in one batch."""
    run = world(SearchParams(breadth=3, beam=2)).run(STRATEGIES["beam"]())
    assert [len(a.nodes) for a in run.actions if isinstance(a, Evaluate)] == [3, 6, 6]
