"""A recorded run to read: a beam over the legal moves of a game of 24, told by hand, without an engine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from pie_mlx.search.trace import (
    Accepted,
    Deduplicated,
    Event,
    Finished,
    FinishReason,
    Header,
    NodeDone,
    NodeStarted,
    PagesRead,
    Pruned,
    RunStarted,
    Scored,
    Selected,
    Trace,
    TraceWriter,
    Verdict,
    read_trace,
)
from pie_mlx.search.tree import ROOT, NodeId, NodePages, PoolCounts, Score, TokenCounts

HEADER = Header(run="run-1", model="starter", revision="r1", seed=7, task="game24", params={"beam": 1})
_N = NodeId
_COST = TokenCounts(prompt=100, cached=90, completion=10)


def events_of_a_run(text: str = "4 + 8 = 12", answer: str = "(6 - 4) * (4 + 8) = 24") -> list[Event]:
    """Return a run with a pruned, an invalid, a duplicate, an unscored and an accepted node."""
    return [
        RunStarted(question="4 4 6 8", strategy="beam", scorer="labels"),
        NodeStarted(node=ROOT),
        NodeDone(node=ROOT, text="make 24", finish="user"),
        PagesRead(pool=PoolCounts(free=10, private=2, viewed=2)),
        NodeStarted(node=_N("0.0"), seed=1),
        NodeStarted(node=_N("0.1"), seed=2),
        NodeStarted(node=_N("0.2"), seed=3),
        NodeStarted(node=_N("0.3"), seed=4),
        NodeDone(node=_N("0.0"), text=text, tokens=_COST, pages=NodePages(3, 2), key="4 6 12"),
        NodeDone(node=_N("0.1"), text="8 - 6 = 2", tokens=_COST, pages=NodePages(3, 2), key="2 4 4"),
        NodeDone(node=_N("0.2"), text="hmm", tokens=_COST, verdict=Verdict.UNPARSED, reason="no-move"),
        NodeDone(node=_N("0.3"), text="8 + 4 = 12", tokens=_COST, key="4 6 12"),
        Deduplicated(node=_N("0.3"), duplicate_of=_N("0.0"), freed_pages=1),
        PagesRead(pool=PoolCounts(free=4, private=4, shared=4, viewed=16)),
        Scored(
            node=_N("0.0"),
            score=Score(0.75, "labels", mass=0.9, label_probs={"sure": 0.5, "likely": 0.5}),
            tokens=TokenCounts(120, 110, 0),
        ),
        Scored(node=_N("0.1"), score=Score(None, "labels", mass=0.1)),
        Selected(nodes=(_N("0.0"),)),
        Pruned(node=_N("0.1"), freed_pages=2, reason="outside the beam"),
        NodeStarted(node=_N("0.0.0")),
        NodeDone(node=_N("0.0.0"), text="6 - 4 = 2", tokens=_COST, key="2 12"),
        NodeStarted(node=_N("0.0.0.0")),
        NodeDone(node=_N("0.0.0.0"), text="2 * 12 = 24", tokens=_COST, terminal=True),
        Scored(node=_N("0.0.0.0"), score=Score(1.0, "exact")),
        Accepted(node=_N("0.0.0.0")),
        PagesRead(pool=PoolCounts(free=10, private=2, viewed=2)),
        Finished(node=_N("0.0.0.0"), reason=FinishReason.ANSWER, answer=answer, solved=True),
    ]


def record(path: Path, events: list[Event], header: Header = HEADER) -> Trace:
    """Write events, one a second, and read them back."""
    ticks = count(0, 1_000_000_000)
    with TraceWriter.create(path, header, clock=lambda: next(ticks)) as writer:
        for event in events:
            writer.write(event)
    return read_trace(path)


@pytest.fixture
def run_events() -> Callable[..., list[Event]]:
    """Return the function that tells the run."""
    return events_of_a_run


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Trace]:
    """Return a function that records events into a fresh file; without any, the run above."""
    numbers = count()

    def write(events: list[Event] | None = None, header: Header = HEADER) -> Trace:
        return record(tmp_path / f"run-{next(numbers)}.jsonl", events or events_of_a_run(), header)

    return write
