"""A search of a thousand nodes: its own work grows with the nodes alone, and pruned branches leave no page behind."""

from __future__ import annotations

import threading
from typing import Any

from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace_events import Event, PagesRead, Pruned, Selected

PAGE, BEAM, BREADTH, THOUGHT = 16, 5, 10, 12


def search(engine: Any, nodes: int, events: list[Event] | None = None) -> SearchResult:
    """Run a beam that writes ``nodes`` nodes."""
    params = SearchParams(breadth=BREADTH, beam=BEAM, max_tokens=THOUGHT, budget_nodes=nodes, temperature=1.0)
    listen = None if events is None else events.append
    return Run(engine, Free("Why?", depth=100), params, listen=listen).result(120)


def calls_of(engine: Any, nodes: int) -> int:
    """Count the Python calls of a run's own thread; the engine has its own, which is not counted."""
    count = 0

    def counting(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    threading.setprofile(counting)
    try:
        assert len(search(engine, nodes).nodes) > nodes * 0.9
    finally:
        threading.setprofile(None)
    return count


def test_pages_stay_flat_after_pruning(start_engine: Any) -> None:
    """After each level's pruning nothing is held but the prompt and the beam's own paths, however many were written."""
    events: list[Event] = []
    engine = start_engine(4096, PAGE)
    result = search(engine, 1000, events)
    assert len(result.nodes) == 1001
    assert result.pages.free_after == result.pages.free_before == 4096
    level, pruned = 0, False
    for event in events:
        level += isinstance(event, Selected)
        pruned = isinstance(event, Pruned) or (pruned and isinstance(event, PagesRead))
        if pruned and isinstance(event, PagesRead):
            # A path's lines are a thought and its number; the prompt is below 20 pages, each fork ends in a page.
            assert event.pool.held <= 20 + BEAM * (level * (THOUGHT + 5) // PAGE + 2)
            pruned = False
    assert level > 10


def test_the_search_s_own_work_grows_with_its_nodes_alone(start_engine: Any) -> None:
    """Four times the nodes are no more than six times the calls, and a node costs less than five thousand."""
    small, large = (calls_of(start_engine(4096, PAGE), nodes) for nodes in (100, 400))
    assert large < 6 * small
    assert large < 5000 * 400
