"""Runs over the fake device: how they end, what they give back, and that one seed gives one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec import structs

from pie_mlx.errors import InvalidParameter, PressureError
from pie_mlx.search.metrics import measure
from pie_mlx.search.node import NodeStatus
from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.strategies import STRATEGIES
from pie_mlx.search.tasks.base import Judging
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.tasks.game24 import Game24
from pie_mlx.search.trace import TraceWriter, read_trace
from pie_mlx.search.trace_events import (
    Event,
    Finished,
    FinishReason,
    NodeDone,
    NodeStarted,
    PagesRead,
    Pruned,
    Scored,
    TextAdded,
)

ALL = sorted(STRATEGIES)
SMALL = SearchParams(max_tokens=16, answer_tokens=24, breadth=3, beam=2, rollouts=4, budget_nodes=40)
QUESTION = "Why is the sky blue?"


class Fixed(Free):
    """A free question whose every word is fixed here: the pools of these tests are measured on it."""

    system: ClassVar[str] = ""

    def prompt(self) -> str:
        """Return 120 characters."""
        return f"{self.question} ".ljust(120, ".")

    def lead(self, state: tuple[str, ...]) -> str:
        """Number the step."""
        return f"\nStep {len(state) + 1}:"

    def synthesis(self, state: tuple[str, ...]) -> str:
        """Ask for the answer."""
        return "\nAnswer:"

    def judging(self, state: tuple[str, ...]) -> Judging:
        """Ask in about 80 characters."""
        return Judging("\nIs this right? One word, good, fair or bad:".ljust(80, "."), {"good": 1.0, "bad": 0.0})


def tree_of(result: SearchResult) -> list[tuple[object, ...]]:
    """Return what of a tree depends on the seed alone."""
    return [(n.id, n.text, n.score, n.status) for n in result.nodes]


def facts(events: Sequence[Event]) -> list[Event]:
    """Return events without their times, and without the widest moment, which depends on when the run looked."""
    timeless = [structs.replace(event, t_ns=0) for event in events]
    return [structs.replace(event, peak=None) if isinstance(event, Finished) else event for event in timeless]


@pytest.mark.parametrize("strategy", ALL)
def test_each_strategy_ends_once_and_gives_its_pages_back(start_engine: Any, strategy: Any) -> None:
    """One terminal event, the last; an answer from a finished node; every page free again."""
    engine = start_engine()
    events: list[Event] = []
    result = Run(engine, Free(QUESTION), replace(SMALL, strategy=strategy), listen=events.append).result(60)
    assert [event for event in events if isinstance(event, Finished)] == events[-1:]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert result.answer
    assert result.pages.free_after == result.pages.free_before == 512
    assert result.pages.peak > 0
    assert not engine.readings().contexts
    answers = [node for node in result.nodes if node.id == result.node]
    assert answers[0].status == NodeStatus.ACCEPTED


@pytest.mark.parametrize("strategy", ALL)
def test_one_seed_gives_one_sequence_of_events(start_engine: Any, strategy: Any) -> None:
    """Two engines, one seed: the same events in the same order, times aside. Another seed: another tree."""
    told: list[list[Event]] = []
    for seed in (7, 7, 8):
        events: list[Event] = []
        params = replace(SMALL, strategy=strategy, seed=seed)
        Run(start_engine(), Free(QUESTION), params, listen=events.append, name="r").result(60)
        told.append(facts(events))
    assert told[0] == told[1]
    assert told[0] != told[2]


@pytest.mark.parametrize("strategy", ["beam", "mcts", "best_first", "self_consistency"])
@pytest.mark.parametrize("pool_pages", [22, 24, 32])
def test_a_small_pool_is_slower_and_gives_the_same_tree(start_engine: Any, strategy: Any, pool_pages: int) -> None:
    """Whatever the pool, the tree, its scores and its answer are the same."""
    params = replace(SMALL, strategy=strategy, budget_nodes=25)
    wide = Run(start_engine(), Fixed(QUESTION), params).result(60)
    tight = Run(start_engine(pool_pages), Fixed(QUESTION), params).result(60)
    assert tree_of(tight) == tree_of(wide)
    assert tight.answer == wide.answer
    assert tight.pages.free_after == tight.pages.free_before == pool_pages


def test_a_small_pool_says_that_it_is_small(start_engine: Any) -> None:
    """Working narrower than wished is told in a notice with its numbers."""
    result = Run(start_engine(22), Fixed(QUESTION), SMALL).result(60)
    assert any("the pool is small" in notice for notice in result.notices)


def test_a_pool_below_one_path_starves_with_a_typed_error(start_engine: Any) -> None:
    """Too few pages for a single path: starved, exit code 4, and the engine serves the next run."""
    engine = start_engine(8)
    result = Run(engine, Fixed(QUESTION), SMALL).result(60)
    assert result.finish_reason is FinishReason.STARVED
    assert isinstance(result.error, PressureError)
    assert result.exit_code == 4
    assert result.answer is None
    assert result.pages.free_after == 8
    assert Run(engine, Free("?", depth=1), replace(SMALL, max_tokens=2, answer_tokens=2)).result(60) is not None
    assert result.to_json()["error"]


def test_three_runs_one_after_another_leave_no_page(start_engine: Any) -> None:
    """A long-lived engine serves run after run; each finds all pages free and ends."""
    engine = start_engine(64, 32)
    params = SearchParams(breadth=4, beam=2, depth=3, max_tokens=64, answer_tokens=64)
    for seed in range(3):
        result = Run(engine, Fixed(QUESTION), replace(params, seed=seed)).result(60)
        assert result.finish_reason is FinishReason.ANSWER
        assert result.pages.free_before == result.pages.free_after == 64


def test_two_runs_at_once_do_not_mix(start_engine: Any) -> None:
    """Runs side by side on one engine give the trees that they give alone."""
    tasks = [Free("What is red?"), Free("What is blue?")]
    alone = [tree_of(Run(start_engine(), task, SMALL).result(60)) for task in tasks]
    engine = start_engine()
    runs = [Run(engine, task, SMALL) for task in tasks]
    for run in runs:
        run.start()
    assert [tree_of(run.result(60)) for run in runs] == alone


def test_the_second_puzzle_in_a_process_starts_afresh(start_engine: Any) -> None:
    """Nothing of one puzzle's tree is left in the next one's."""
    engine = start_engine()
    params = SearchParams(propose="legal", scorer="oracle", oracle=True, breadth=5, beam=5)
    first = Run(engine, Game24(4, 4, 6, 8), params).result(60)
    second = Run(engine, Game24(1, 2, 3, 4), params).result(60)
    assert first.solved
    assert second.solved
    assert second.answer is not None
    assert sorted(c for c in second.answer.partition("=")[0] if c.isdigit()) == list("1234")


@pytest.mark.parametrize("scorer", ["auto", "label", "p_true", "vote", "logprob", "rating", "consistency"])
def test_each_scorer_tells_its_kind_and_gives_its_pages_back(start_engine: Any, scorer: Any) -> None:
    """Every scorer judges the first level, in its own name, and no judging fork stays open."""
    engine = start_engine()
    events: list[Event] = []
    result = Run(engine, Fixed(QUESTION), replace(SMALL, scorer=scorer), listen=events.append).result(60)
    kinds = {event.score.kind for event in events if isinstance(event, Scored)}
    expected = {"auto": "labels", "label": "labels", "p_true": "ptrue"}.get(scorer, scorer)
    assert kinds == {expected}
    assert result.pages.free_after == 512
    assert not engine.readings().contexts
    assert all(event.score.error is None for event in events if isinstance(event, Scored))


def test_without_a_scorer_nothing_is_judged(start_engine: Any) -> None:
    """The beam then keeps tree order, and no model call is spent on judging."""
    events: list[Event] = []
    Run(start_engine(), Fixed(QUESTION), replace(SMALL, scorer="none"), listen=events.append).result(60)
    assert not any(isinstance(event, Scored) for event in events)


# --- budgets -----------------------------------------------------------------------------


def test_the_budget_of_nodes_is_never_exceeded(start_engine: Any) -> None:
    """Exactly as many nodes as allowed, root aside."""
    result = Run(start_engine(), Free(QUESTION), replace(SMALL, budget_nodes=5)).result(60)
    assert len(result.nodes) - 1 == 5
    assert result.finish_reason is FinishReason.BUDGET


@pytest.mark.parametrize("budget", [250, 320, 400])
def test_the_budget_of_tokens_stops_the_writing(start_engine: Any, budget: int) -> None:
    """Generated tokens stay within what is left after the prompt; the run says that its budget ended it."""
    result = Run(start_engine(), Fixed(QUESTION), replace(SMALL, budget_tokens=budget, scorer="none")).result(60)
    assert result.finish_reason is FinishReason.BUDGET
    assert result.tokens.completion <= budget


def test_the_budget_of_seconds_ends_a_run_in_the_middle(start_engine: Any) -> None:
    """Time that is over cancels what is being written."""
    params = replace(SMALL, budget_seconds=1e-4, max_tokens=200)
    result = Run(start_engine(), Fixed(QUESTION), params).result(60)
    assert result.finish_reason is FinishReason.BUDGET
    assert result.pages.free_after == 512


def test_the_budget_of_pages_narrows_the_run(start_engine: Any) -> None:
    """With a few pages allowed, fewer branches are open at once and the tree is the same."""
    wide = Run(start_engine(), Fixed(QUESTION), SMALL).result(60)
    narrow = Run(start_engine(), Fixed(QUESTION), replace(SMALL, budget_pages=18)).result(60)
    assert tree_of(narrow) == tree_of(wide)
    assert narrow.pages.peak < wide.pages.peak


def test_a_budget_of_pages_below_one_path_is_refused(start_engine: Any) -> None:
    """Nothing is run that could only go over its own budget; the number that would do is named."""
    result = Run(start_engine(), Free(QUESTION), replace(SMALL, budget_pages=1)).result(60)
    assert isinstance(result.error, InvalidParameter)
    assert "budget_pages" in result.error.message
    assert "at least" in result.error.message
    assert result.exit_code == 2
    assert result.answer is None


def test_the_widest_moment_is_told_with_the_end(start_engine: Any, tmp_path: Path) -> None:
    """The trace, and what is measured of it, name the peak that the result names."""
    run = Run(start_engine(), Free(QUESTION), SMALL)
    writer = TraceWriter.create(tmp_path / "t.jsonl", run.header())
    run.record(writer)
    result = run.result(60)
    writer.close()
    trace = read_trace(tmp_path / "t.jsonl")
    assert trace.finished is not None
    assert trace.finished.peak is not None
    measured = measure(trace.events)
    assert trace.finished.peak.held == measured.peak_pages == result.pages.peak
    assert measured.sharing_at_peak == pytest.approx(result.pages.sharing_ratio)


def test_patience_ends_a_search_that_finds_nothing_better(start_engine: Any) -> None:
    """After so many expansions without a better node the run ends on its budget."""
    params = replace(SMALL, strategy="best_first", patience=2, budget_nodes=None)
    result = Run(start_engine(), Free(QUESTION), params).result(60)
    assert result.finish_reason is FinishReason.BUDGET


# --- pages -------------------------------------------------------------------------------


def test_pruning_frees_pages_at_once_and_says_how_many(start_engine: Any) -> None:
    """The prune events' freed pages are what the pool gains."""
    engine = start_engine(prefix_cache=False)
    seen: list[tuple[int, int]] = []
    free = [0]

    def listen(event: Event) -> None:
        now = engine.readings().pages.free
        if isinstance(event, Pruned):
            seen.append((event.freed_pages, now))
        elif isinstance(event, PagesRead):
            free[0] = now

    Run(engine, Free(QUESTION), SMALL, listen=listen).result(60)
    assert seen
    assert sum(freed for freed, _ in seen) > 0


def test_siblings_of_a_level_are_judged_in_one_batch(start_engine: Any) -> None:
    """All children of a level are scored by one step of the device."""
    engine = start_engine()
    steps: dict[str, int] = {}

    def listen(event: Event) -> None:
        if isinstance(event, Scored) and event.node.count(".") == 1:
            steps[event.node] = engine.backend.num_steps

    Run(engine, Free(QUESTION), replace(SMALL, breadth=4), listen=listen).result(60)
    assert len(steps) == 4
    assert len(set(steps.values())) == 1


def test_pieces_join_to_the_thoughts(start_engine: Any) -> None:
    """With deltas, every sibling grows while it is written, and the pieces are the whole; the tree is the same."""
    events: list[Event] = []
    result = Run(start_engine(), Free(QUESTION), SMALL, listen=events.append, deltas=True).result(60)
    pieces: dict[str, str] = {}
    for event in events:
        if isinstance(event, TextAdded):
            pieces[event.node] = pieces.get(event.node, "") + event.text
        elif isinstance(event, NodeDone) and event.node != "0":
            assert event.text in pieces.get(event.node, "")
    assert pieces
    assert tree_of(result) == tree_of(Run(start_engine(), Free(QUESTION), SMALL).result(60))


def test_pieces_are_shown_and_not_written(start_engine: Any, tmp_path: Path) -> None:
    """With deltas, a listener sees thoughts grow; the trace is the one of a run without them."""
    told: list[list[Event]] = []
    for deltas in (True, False):
        events: list[Event] = []
        run = Run(start_engine(), Free(QUESTION), SMALL, listen=events.append, deltas=deltas, name="r")
        with TraceWriter.create(tmp_path / f"{deltas}.jsonl", run.header()) as writer:
            run.record(writer)
            run.result(60)
        assert any(isinstance(event, TextAdded) for event in events) is deltas
        told.append(facts(read_trace(tmp_path / f"{deltas}.jsonl").events))
    assert told[0] == told[1]


# --- shapes ------------------------------------------------------------------------------


def test_the_result_is_the_documented_object(start_engine: Any) -> None:
    """Exactly the documented fields, with the schema's name."""
    out: dict[str, Any] = dict(Run(start_engine(), Free(QUESTION), SMALL).result(60).to_json())
    assert out["schema"] == "pie-mlx.tot-result/1"
    assert set(out) == {
        "schema", "answer", "solved", "finish_reason", "nodes", "tokens", "wall_s", "pages", "alarms",
        "duplicate_share",
    }  # fmt: skip
    assert set(out["nodes"][0]) == {"id", "parent", "depth", "text", "score", "status", "tokens", "pages"}
    assert set(out["tokens"]) == {"prompt", "cached", "completion"}
    assert set(out["pages"]) == {"total", "peak", "free_before", "free_after", "sharing_ratio"}
    assert out["solved"] is None


def test_node_started_comes_before_its_end_and_with_its_seed(start_engine: Any) -> None:
    """Every node is announced once with a seed of its own."""
    events: list[Event] = []
    Run(start_engine(), Free(QUESTION), SMALL, listen=events.append).result(60)
    started = [event for event in events if isinstance(event, NodeStarted)]
    assert len({event.node for event in started}) == len(started)
    assert len({event.seed for event in started}) == len(started)


def test_an_unsolved_puzzle_is_unsolved(start_engine: Any) -> None:
    """A finished but wrong candidate is no answer: solved is false and the reason says so."""
    params = SearchParams(strategy="best_of_n", breadth=1, propose="legal", scorer="checker", seed=1)
    result = Run(start_engine(), Game24(1, 1, 1, 2), params).result(60)
    assert result.finish_reason is FinishReason.UNSOLVED
    assert result.solved is False
