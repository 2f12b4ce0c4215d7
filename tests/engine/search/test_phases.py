"""Every strategy's trace shows the phases of its method, in their order and with their sizes."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from pie_mlx.search.export import export
from pie_mlx.search.export.registry import FORMATS
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.strategies import STRATEGIES
from pie_mlx.search.tasks import make_task, task_names
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace import TraceWriter, read_trace

_LETTERS = {
    "node_start": "n",
    "node_done": "w",
    "score": "s",
    "select": "S",
    "prune": "p",
    "accept": "A",
    "finish": "F",
}

# Breadth 3, beam 2, two thoughts and the answer written from them: w writes, s scores, S selects, p prunes.
PHASES = {
    "greedy": r"w1 (w3 s3 S1 p2 ){2}w1 s1 S1 A1 F1",
    "best_of_n": r"w1 w3 w3 w3 s3 S1 A1 F1",
    "self_consistency": r"w1 w3 w3 w3 s3 S1 A1 F1",
    "beam": r"w1 w3 s3 S1 p1 w6 s6 S1 p4 w2 s2 S1 A1 F1",
    "dvts": r"w1 w6 s6 S1 p4 w6 s6 S1 p4 w2 s2 S1 A1 F1",
    # One node is taken up at a time: chosen, expanded, its children judged.
    "dfs": r"w1 (S1 w[13] s[13] )+(S1 )?A1 F1",
    "best_first": r"w1 (S1 w[13] s[13] )+(S1 )?A1 F1",
    # Selection, expansion, then one child a level down to the end, which alone is judged.
    "mcts": r"w1 S1 w3 s3 w1 w1 s1 S1 w3 s3 w1 s1 A1 F1",
}


def phases_of(path: Path) -> str:
    """Return a trace's events as letters with their numbers; the starts of nodes stand between two writings."""
    letters = [_LETTERS.get(event.event, "") for event in read_trace(path).events]
    runs = [f"{letter}{len(list(group))}" for letter, group in groupby(filter(None, letters))]
    return " ".join(run for run in runs if not run.startswith("n"))


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_the_trace_shows_the_method(start_engine: Any, tmp_path: Path, strategy: Any) -> None:
    """What the strategy is documented to do is what its trace tells, and every token written is told."""
    params = SearchParams(
        strategy=strategy, breadth=3, beam=2, rollouts=2, max_tokens=12, answer_tokens=12, temperature=1.0
    )
    run = Run(start_engine(), Free("Why?", depth=2), params)
    with TraceWriter.create(tmp_path / "t.jsonl", run.header()) as writer:
        run.record(writer)
        result = run.result(60)
    assert re.fullmatch(PHASES[strategy], phases_of(tmp_path / "t.jsonl"))
    tree = read_trace(tmp_path / "t.jsonl").tree()
    assert tree.tokens().completion == result.tokens.completion > 0
    assert {node.id for node in tree.walk()} == {node.id for node in result.nodes}


_QUESTIONS = {"free": "Why?"}


@pytest.mark.parametrize("name", task_names())
def test_a_run_of_any_task_can_be_viewed(start_engine: Any, tmp_path: Path, name: str) -> None:
    """Whatever a task's state is, its trace turns into every format, without a network or a model."""
    task = make_task(name, _QUESTIONS.get(name))
    run = Run(start_engine(2048), task, SearchParams(breadth=2, beam=1, max_tokens=8, answer_tokens=8, depth=2))
    with TraceWriter.create(tmp_path / "t.jsonl", run.header()) as writer:
        run.record(writer)
        assert run.result(60).error is None
    trace = read_trace(tmp_path / "t.jsonl")
    for form in FORMATS:
        assert export(trace, form)
