"""Somebody else closes contexts of a run for their pages: the run computes them again, and ends as it would have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pie_mlx.errors import ContextBusy, ContextClosed
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace_events import Event, Scored, Selected

SMALL = SearchParams(max_tokens=16, answer_tokens=24, breadth=3, beam=2, rollouts=4, budget_nodes=40)


@pytest.mark.parametrize("strategy", ["beam", "best_first", "mcts", "dfs"])
def test_the_tree_is_the_same(start_engine: Any, strategy: Any) -> None:
    """At each choice of the frontier every idle context goes, the root's too."""
    params = replace(SMALL, strategy=strategy)
    engine = start_engine()
    closed = 0

    def close_idle(event: Event) -> None:
        nonlocal closed
        if not isinstance(event, Selected | Scored):
            return
        for reading in engine.readings().contexts:
            if reading.request is None and reading.num_pages:
                try:
                    engine.close_context(reading.id)
                except (ContextBusy, ContextClosed):
                    continue
                closed += 1

    whole = Run(start_engine(), Free("Why is the sky blue?"), params).result(60)
    result = Run(engine, Free("Why is the sky blue?"), params, listen=close_idle).result(60)
    assert closed > 5
    assert result.error is None
    assert result.finish_reason is whole.finish_reason
    assert [(n.id, n.text, n.score, n.status) for n in result.nodes] == [
        (n.id, n.text, n.score, n.status) for n in whole.nodes
    ]
    assert not engine.readings().contexts
