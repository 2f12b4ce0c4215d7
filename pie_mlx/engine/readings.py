"""One consistent reading of the engine: what UIs, metrics and the watchdog look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pie_mlx.events import PageCounts
from pie_mlx.ids import ContextId, PageId, RequestId

Wait = Literal["pages", "prefix", "turn"]
"""What a request waits for."""


@dataclass(frozen=True, slots=True)
class ContextReading:
    """One context: its pages and its age."""

    id: ContextId
    name: str
    parent: ContextId | None
    num_tokens: int
    num_resident: int
    """Tokens that need not be computed again."""
    num_evicted_tokens: int
    num_pages: int
    num_private: int
    idle_s: float
    pinned: bool
    request: RequestId | None
    num_let_go: int = 0
    """Those of the resident tokens whose K/V was given back, as it lies behind the model's window."""


@dataclass(frozen=True, slots=True)
class RequestReading:
    """One live request: its phase, and what it waits for."""

    id: RequestId
    context: ContextId
    phase: str
    outstanding_tokens: int
    completion_tokens: int
    age_s: float
    waits_for: str | None
    """Why it gets nothing now, in words; None for one that takes part in steps."""
    wait: Wait | None = None
    """The same as a kind."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Pages, contexts, requests and counters at one moment; counters only grow."""

    pages: PageCounts
    contexts: tuple[ContextReading, ...]
    requests: tuple[RequestReading, ...]
    counters: Mapping[str, int]
    """submitted, completed, failed, cancelled, steps, tokens_committed, pages_freed, preemptions, evictions …"""
    is_alive: bool
    step_s: float | None
    """Seconds that the step in flight has taken; None if none is."""

    @property
    def waiting_by_reason(self) -> Mapping[Wait, int]:
        """How many requests wait for pages, for a prefix that another one computes, or for their turn."""
        counts: dict[Wait, int] = {}
        for request in self.requests:
            if request.wait is not None:
                counts[request.wait] = counts.get(request.wait, 0) + 1
        return counts

    @property
    def waiting(self) -> Mapping[str, int]:
        """How many requests are in each phase."""
        counts: dict[str, int] = {}
        for request in self.requests:
            counts[request.phase] = counts.get(request.phase, 0) + 1
        return counts


@dataclass(frozen=True, slots=True)
class PageReading:
    """One page: how many slots are written, who views it."""

    page: PageId
    used: int
    owners: tuple[ContextId, ...]
    cached: bool
