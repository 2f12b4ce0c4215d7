"""Sets of tasks: the aggregate is what its rows say."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pie_mlx.errors import InvalidParameter
from pie_mlx.search.failures import CrashedError
from pie_mlx.search.params import SearchParams
from pie_mlx.search.rows import SetRow
from pie_mlx.search.run import Run
from pie_mlx.search.sets import SetRun, run_set
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.tasks.game24 import Game24
from pie_mlx.search.tasks.registry import draw_test_set
from pie_mlx.search.trace import read_trace
from pie_mlx.search.trace_events import Event, NodeDone, Scored

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


class Faulty(Game24):
    """A puzzle whose code fails, as a user's own task may."""

    def step(self, state: Any, text: str) -> Any:
        """Fail."""
        raise ValueError(f"cannot read {text}")


def test_a_task_that_crashes_is_a_row_and_the_set_goes_on(start_engine: Any) -> None:
    """The exception of the task's own code is the row's typed error; the next task is searched as ever."""
    tasks = [Faulty(4, 4, 6, 8), Game24(4, 4, 6, 8)]
    result = run_set(start_engine(), tasks, ORACLE)
    assert [row.result.solved for row in result.rows] == [False, True]
    error = result.rows[0].result.error
    assert isinstance(error, CrashedError)
    assert "ValueError" in error.message
    assert result.failed == 1
    assert result.is_complete


def test_an_interrupt_keeps_the_rows_that_are_done(start_engine: Any) -> None:
    """Interrupted in the third of four puzzles, two rows make the result, and it says that it is not complete."""
    rows: list[SetRow] = []

    def on_event(event: Event) -> None:
        if len(rows) == 2 and isinstance(event, NodeDone) and event.node == "0.3":
            signal.raise_signal(signal.SIGINT)

    run = SetRun(start_engine(), draw_test_set("game24", 4, split="easy"), ORACLE, listen=on_event)
    with pytest.raises(KeyboardInterrupt):
        run.run(rows.append)
    result = run.result()
    assert len(result.rows) == 2
    assert not result.is_complete
    assert result.to_json()["complete"] is False
    assert result.first == 1.0


def test_every_puzzle_leaves_a_trace(start_engine: Any, tmp_path: Path) -> None:
    """One file a puzzle, numbered, readable, with the puzzle's own question."""
    tasks = draw_test_set("game24", 2, split="easy")
    result = run_set(start_engine(), tasks, ORACLE, traces=tmp_path)
    assert [row.trace for row in result.rows] == [tmp_path / "001.jsonl", tmp_path / "002.jsonl"]
    assert [read_trace(tmp_path / f"00{at}.jsonl").tree().question for at in (1, 2)] == [t.question for t in tasks]


def test_rivals_get_what_the_search_took(start_engine: Any) -> None:
    """Greedy never spends more than the search; both are run on every task, and the budget stands beside the use."""
    params = replace(SearchParams(), propose="legal", beam=2)
    result = run_set(start_engine(2048), draw_test_set("game24", 2, split="easy"), params, compare=True)
    greedy, best = result.rivals
    assert (greedy.strategy, best.strategy) == ("greedy", "best_of_n")
    assert greedy.n == best.n == 2
    used = sum(row.tokens_used for row in result.rows)
    assert greedy.budget == best.budget == used
    assert 0 < greedy.tokens <= used
    assert best.tokens > 0


def test_a_rival_does_not_meet_itself(start_engine: Any) -> None:
    """A greedy set is compared with best of n alone."""
    params = SearchParams(strategy="greedy", max_tokens=6, breadth=2)
    result = run_set(start_engine(), draw_test_set("game24", 1), params, compare=True)
    assert [rival.strategy for rival in result.rivals] == ["best_of_n"]


def test_legal_moves_are_ranked_by_the_model(start_engine: Any) -> None:
    """Each move's value is its share among its state's moves; the moves of a level share their prefills."""
    engine = start_engine(2048)
    events: list[Event] = []
    run = Run(engine, Game24(1, 4, 6, 8), SearchParams(propose="legal", beam=2), listen=events.append)
    result = run.result(60)
    scores = [event.score for event in events if isinstance(event, Scored) and event.score.kind == "move"]
    firsts = [e.score.value for e in events if isinstance(e, Scored) and e.node.count(".") == 1]
    assert scores
    assert sum(value for value in firsts if value is not None) <= 1.0 + 1e-9
    assert all(score.value is not None and score.mass is not None for score in scores)
    assert engine.backend.num_steps < len(scores)
    assert result.tokens.completion == 0
    assert result.calls > 0
    assert result.pages.free_after == result.pages.free_before
    told = sum((e.tokens.prompt - e.tokens.cached for e in events if isinstance(e, Scored)), 0)
    assert told == result.tokens.prompt - result.tokens.cached - _root(events)


def test_ranking_does_not_depend_on_the_pool(start_engine: Any) -> None:
    """A pool that holds a few moves at a time ranks them the same."""
    trees = []
    for pages in (2048, 48):
        result = Run(start_engine(pages), Game24(1, 4, 6, 8), SearchParams(propose="legal", beam=2)).result(60)
        trees.append([(n.id, n.text, n.score, n.status) for n in result.nodes])
    assert trees[0] == trees[1]


def _root(events: list[Event]) -> int:
    """Return the prompt's length."""
    return sum(e.tokens.prompt for e in events if isinstance(e, NodeDone) and e.node == "0")
