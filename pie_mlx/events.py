"""Facts the engine tells: past, frozen, and the same for every listener.

The engine does not know who listens. Each listener has its own queue (:meth:`pie_mlx.engine.Engine.listen`),
so that a slow one delays nobody. Tokens travel in the request's own queue, not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from pie_mlx.errors import Fact
from pie_mlx.ids import ContextId, RequestId


@dataclass(frozen=True, slots=True)
class PageCounts:
    """The pool at one moment, in pages; ``free + held == total`` and ``private + shared + cached == held``."""

    total: int
    free: int
    private: int
    """Viewed by one context alone."""
    shared: int
    """Viewed by two or more contexts."""
    cached: int
    """Viewed by the prefix index alone: free for the taking."""
    views: int
    """Views by contexts: what would be held if nothing were shared."""

    @property
    def held(self) -> int:
        """Pages that somebody views."""
        return self.total - self.free

    @property
    def sharing_ratio(self) -> float:
        """Views per page that contexts hold; 1.0 when nothing is shared."""
        own = self.private + self.shared
        return self.views / own if own else 1.0


@dataclass(frozen=True, slots=True)
class ContextOpened:
    """A context was made, by itself or as a fork."""

    context: ContextId
    name: str
    parent: ContextId | None
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ContextShut:
    """A context was closed; ``freed_pages`` are those that it alone held."""

    context: ContextId
    freed_pages: int


@dataclass(frozen=True, slots=True)
class ContextEvicted:
    """A context lost K/V under pressure; its tokens are kept and recomputed when next asked."""

    context: ContextId
    freed_pages: int
    num_tokens_lost: int
    was_running: bool


@dataclass(frozen=True, slots=True)
class ContextRewound:
    """Tokens were taken back, and more must be computed again than that: what came before them was not kept.

    A recurrent state is kept at some positions only, and K/V behind a model's window is let go.
    """

    context: ContextId
    num_resident: int
    num_tokens_lost: int
    """Tokens that are still in the sequence and are computed again with the next request."""


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """A request has arrived."""

    request: RequestId
    context: ContextId


@dataclass(frozen=True, slots=True)
class RequestAdmitted:
    """A request runs for the first time, or again after a preemption."""

    request: RequestId
    context: ContextId
    cached_tokens: int
    restored: bool


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request's one terminal event; ``reason`` is a finish reason or an error's code, never blank."""

    request: RequestId
    context: ContextId
    reason: str
    completion_tokens: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """One forward pass: how wide it was, what it took, and the pool after it."""

    step: int
    decode_rows: int
    prefill_tokens: int
    failed_rows: int
    device_s: float
    host_s: float
    pages: PageCounts


@dataclass(frozen=True, slots=True)
class Alarm:
    """The watchdog speaks: ``level`` is ``warning`` or ``failure``; ``kind`` one of its classes."""

    level: str
    kind: str
    message: str
    request: RequestId | None
    report: dict[str, Fact]


@dataclass(frozen=True, slots=True)
class EventsDropped:
    """This listener was too slow: so many events before the next one were dropped, the oldest first."""

    num_steps: int
    """Dropped :class:`StepDone` events; a later one tells the same of the pool."""
    num_others: int


@dataclass(frozen=True, slots=True)
class EngineEnded:
    """The engine thread has ended; ``error`` is None after a shutdown."""

    error: str | None


Event = (
    ContextOpened
    | ContextShut
    | ContextEvicted
    | ContextRewound
    | RequestSubmitted
    | RequestAdmitted
    | RequestEnded
    | StepDone
    | Alarm
    | EventsDropped
    | EngineEnded
)
