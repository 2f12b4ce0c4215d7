"""Sets of tasks: the aggregate is what its rows say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.params import SearchParams
from pie_mlx.search.sets import SetRow, run_set
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.tasks.registry import draw_test_set

ORACLE = SearchParams(propose="legal", scorer="oracle", oracle=True, beam=5)


def test_with_the_truth_every_puzzle_is_solved(start_engine: Any) -> None:
    """First, any and the scorer's measures are perfect, and the result says that the oracle steered."""
    rows: list[SetRow] = []
    tasks = draw_test_set("game24", 4, split="easy")
    result = run_set(start_engine(), tasks, ORACLE, on_row=rows.append)
    assert (result.first, result.any) == (1.0, 1.0)
    assert result.auc == 1.0
    assert result.regret == 0.0
    assert [row.question for row in rows] == [task.question for task in tasks]
    out = result.to_json()
    assert out["schema"] == "pie-mlx.tot-set/1"
    assert out["oracle"] is True
    assert out["baselines"]


def test_random_text_parses_badly_and_says_so(start_engine: Any) -> None:
    """Thoughts without the form are counted beside the accuracy."""
    params = SearchParams(max_tokens=8, breadth=2, beam=2)
    result = run_set(start_engine(), draw_test_set("game24", 2), params)
    assert result.first == 0.0
    assert result.unparsed is not None
    assert result.unparsed > 0.5
    assert result.calls > 0
    assert result.tokens.completion > 0


def test_a_task_that_cannot_check_makes_no_claim(start_engine: Any) -> None:
    """No accuracy for free questions: None, not 0."""
    params = SearchParams(max_tokens=4, answer_tokens=4, breadth=1, beam=1)
    result = run_set(start_engine(), [Free("Why?", depth=1)], params)
    assert (result.first, result.any, result.mean, result.baselines) == (None, None, None, None)


def test_a_failing_row_keeps_its_error(start_engine: Any) -> None:
    """A pool that is too small for a task gives an unsolved row with the error's code."""
    params = replace(SearchParams(), max_tokens=8)
    result = run_set(start_engine(4), draw_test_set("game24", 1), params)
    assert result.first == 0.0
    assert result.to_json()["rows"][0]["error"] is not None  # type: ignore[index,call-overload]


def test_an_empty_set_is_refused(start_engine: Any) -> None:
    """Nothing to run is no result."""
    with pytest.raises(InvalidParameter):
        run_set(start_engine(), [], ORACLE)
