"""Parameters are checked before any work is done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.params import SearchParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strategy", "bfs"),
        ("scorer", "gut"),
        ("propose", "oracle"),
        ("breadth", 0),
        ("breadth", True),
        ("beam", -1),
        ("depth", 0),
        ("max_tokens", 1.5),
        ("budget_tokens", 0),
        ("budget_seconds", 0.0),
        ("budget_seconds", float("nan")),
        ("patience", 0),
        ("temperature", -0.1),
        ("top_p", 1.5),
        ("top_p", float("nan")),
        ("seed", -1),
        ("seed", 1 << 64),
        ("dedup", "yes"),
        ("exploration", -1.0),
        ("keep_above", float("inf")),
        ("scorer", "oracle"),
    ],
)
def test_values_outside_their_range_are_refused(name: str, value: Any) -> None:
    """Each refusal is typed and names the parameter."""
    with pytest.raises(InvalidParameter, match=name):
        replace(SearchParams(), **{name: value})


def test_parameters_survive_json() -> None:
    """What the trace holds makes the same parameters; an unknown one is refused."""
    params = SearchParams(strategy="mcts", breadth=7, keep_above=0.25, oracle=True, scorer="oracle")
    assert SearchParams.from_json(params.to_json()) == params
    with pytest.raises(InvalidParameter, match="of this version"):
        SearchParams.from_json({"width": 3})


def test_zero_exploration_is_allowed() -> None:
    """UCT without exploration is greedy by mean."""
    assert SearchParams(exploration=0.0).exploration == 0.0
