"""A run that was killed goes on from its trace and yields the tree that it would have had."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pie_mlx.errors import UsageError
from pie_mlx.search.errors import TraceError
from pie_mlx.search.node import NodeId
from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.strategies import STRATEGIES
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace import TraceWriter, read_trace
from pie_mlx.search.trace_events import Event, NodeDone

SMALL = SearchParams(max_tokens=12, answer_tokens=12, breadth=2, beam=2, rollouts=3, budget_nodes=14)
TASK = Free("Why?", depth=2)


def tree_of(result: SearchResult) -> list[tuple[object, ...]]:
    """Return what of a tree depends on the seed alone."""
    return [(n.id, n.text, n.score, n.status) for n in result.nodes]


def record(engine: Any, path: Path, params: SearchParams, *, steer: Any = None) -> SearchResult:
    """Run with a trace; ``steer`` gets the run and each event."""
    runs: list[Run] = []

    def listen(event: Event) -> None:
        if steer is not None:
            steer(runs[0], event)

    run = Run(engine, TASK, params, listen=listen, name="r")
    runs.append(run)
    with TraceWriter.create(path, run.header()) as writer:
        run.record(writer)
        return run.result(60)


def go_on(engine: Any, path: Path) -> SearchResult:
    """Finish the run of a trace."""
    trace = read_trace(path)
    with TraceWriter.resume(trace) as writer:
        return Run.from_trace(engine, TASK, trace, writer=writer).result(60)


def cut(source: Path, target: Path, num_events: int, *, torn: str = "") -> None:
    """Copy the header and so many events, and part of another line."""
    lines = source.read_text("ascii").splitlines(keepends=True)
    target.write_text("".join(lines[: num_events + 1]) + torn, "ascii")


def without_times(path: Path) -> list[dict[str, Any]]:
    """Return the events that depend on the seed alone, without what the pool and the moment decide."""
    kept = []
    for line in path.read_text("ascii").splitlines()[1:]:
        event = json.loads(line)
        if event["event"] in ("pages", "notice", "alarm", "pause", "resume", "step") and "node" not in event:
            continue
        for name in ("seq", "t_ns", "pages", "tokens", "freed_pages", "peak"):
            event.pop(name, None)
        kept.append(event)
    return kept


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_run_killed_at_any_event_ends_in_the_same_tree(start_engine: Any, tmp_path: Path, strategy: Any) -> None:
    """Cut after every single event, and inside every second line, the resumed run has the same tree and trace."""
    engine = start_engine()
    whole = tmp_path / "whole.jsonl"
    expected = record(engine, whole, replace(SMALL, strategy=strategy))
    num = len(read_trace(whole).events)
    lines = whole.read_text("ascii").splitlines()[1:]
    for kept in range(num):
        part = tmp_path / f"{kept}.jsonl"
        cut(whole, part, kept, torn=lines[kept][: 1 + kept * 7 % (len(lines[kept]) - 1)] if kept % 2 else "")
        result = go_on(engine, part)
        assert tree_of(result) == tree_of(expected), f"cut after {kept} of {num} events"
        assert result.answer == expected.answer
        assert without_times(part) == without_times(whole)
        assert tree_of(result) == [(n.id, n.text, n.value, n.status) for n in read_trace(part).tree().walk()]


def test_only_missing_work_is_done(start_engine: Any, tmp_path: Path) -> None:
    """A run that lacks nothing but its last events asks the model for nothing."""
    whole = tmp_path / "whole.jsonl"
    record(start_engine(), whole, SMALL)
    part = tmp_path / "part.jsonl"
    cut(whole, part, len(read_trace(whole).events) - 1)
    engine = start_engine()
    go_on(engine, part)
    assert engine.backend.num_steps == 0


def test_a_torn_last_line_is_cut_off(start_engine: Any, tmp_path: Path) -> None:
    """Half a line at the end is what a kill leaves; the run goes on before it."""
    engine = start_engine()
    whole = tmp_path / "whole.jsonl"
    expected = record(engine, whole, SMALL)
    part = tmp_path / "part.jsonl"
    cut(whole, part, 12, torn='{"event":"node_done","seq":13,"t_')
    assert tree_of(go_on(engine, part)) == tree_of(expected)


def test_a_killed_run_with_steering_is_steered_again(start_engine: Any, tmp_path: Path) -> None:
    """What a user pruned, wrote, locked and expanded happens again in its place, wherever the trace ends."""
    engine = start_engine()
    whole = tmp_path / "whole.jsonl"

    def steer(run: Run, event: Event) -> None:
        if not isinstance(event, NodeDone) or run.is_over:
            return
        if event.node == "0.0":
            run.insert(NodeId("0"), "think of light")
        elif event.node == "0.1":
            run.lock(NodeId("0.1"))
            run.edit(NodeId("0.0"), "look up")
            run.expand(NodeId("0.1"), 1, 99)
        elif event.node == "0.1.0":
            run.prune(NodeId("0.2"))

    expected = record(engine, whole, replace(SMALL, budget_nodes=None), steer=steer)
    kinds = {event.event for event in read_trace(whole).events}
    assert {"insert", "edit", "lock", "prune"} <= kinds
    num = len(read_trace(whole).events)
    for kept in range(num):
        part = tmp_path / f"{kept}.jsonl"
        cut(whole, part, kept)
        told = [json.loads(line) for line in part.read_text("ascii").splitlines()[1:]]
        result = go_on(engine, part)
        if {"insert", "edit", "lock"} <= {event["event"] for event in told} and any(
            event["event"] == "prune" and event["node"] == "0.2" for event in told
        ):
            assert tree_of(result) == tree_of(expected), f"cut after {kept} of {num} events"
        assert result.pages.free_after == 512


def test_a_trace_of_another_question_is_refused(start_engine: Any, tmp_path: Path) -> None:
    """A trace that this run cannot have told is an error that names the line; nothing is mixed."""
    engine = start_engine()
    whole = tmp_path / "whole.jsonl"
    record(engine, whole, SMALL)
    part = tmp_path / "part.jsonl"
    cut(whole, part, 20)
    lines = part.read_text("ascii").splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if '"node":"0.1"' in line and '"node_done"' in line)
    lines[at] = lines[at].replace('"node":"0.1"', '"node":"0.0"')
    part.write_text("".join(lines), "ascii")
    trace = read_trace(part)
    with TraceWriter.resume(trace) as writer:
        result = Run.from_trace(engine, TASK, trace, writer=writer).result(60)
    assert isinstance(result.error, TraceError)
    assert result.error.line == at + 1
    assert part.read_text("ascii") == "".join(lines)


def test_a_finished_run_is_not_resumed(start_engine: Any, tmp_path: Path) -> None:
    """There is nothing left to do."""
    engine = start_engine()
    whole = tmp_path / "whole.jsonl"
    record(engine, whole, SMALL)
    with pytest.raises(UsageError, match="finished"):
        go_on(engine, whole)
