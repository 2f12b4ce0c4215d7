"""The events of a search: past facts, frozen, each one line of the trace.

``seq`` counts from 1 without a gap; ``t_ns`` is nanoseconds since the run began. Both are 0 until the event is
stamped (:class:`pie_mlx.search.trace.TraceWriter`). ``node`` is the node that an event is about, None where it is
about the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from typing import ClassVar

from pie_mlx.errors import Fact
from pie_mlx.search.tree import NodeId, NodePages, PoolCounts, Score, TokenCounts

SCHEMA = "pie-mlx.tot/1"
NO_TOKENS = TokenCounts()
NO_PAGES = NodePages()


class Verdict(StrEnum):
    """What a task made of a thought."""

    OK = "ok"
    UNPARSED = "unparsed"
    """It does not have the form that was asked for."""
    INVALID = "invalid"
    """It has the form, but is not a legal step."""


class FinishReason(StrEnum):
    """Why a run ended."""

    ANSWER = "answer"
    UNSOLVED = "unsolved"
    BUDGET = "budget"
    STARVED = "starved"
    CANCELLED = "cancelled"
    FAILED = "failed"
    """The device or the engine failed."""


@dataclass(frozen=True, slots=True)
class Header:
    """The trace's first line: what was run, and with what."""

    run: str
    """Name of the run."""
    model: str
    revision: str
    """Fingerprint or revision of the model."""
    seed: int
    task: str
    params: Mapping[str, Fact] = field(default_factory=dict)
    """Every setting that decides the tree."""
    pool: Mapping[str, Fact] = field(default_factory=dict)
    """Pages, page size and bytes of the pool."""
    created_s: float = 0.0
    """Wall clock at the start, seconds since 1970."""

    def to_json(self) -> dict[str, Fact]:
        """Return the header's line."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "model": self.model,
            "revision": self.revision,
            "seed": self.seed,
            "task": self.task,
            "params": dict(self.params),
            "pool": dict(self.pool),
            "created_s": self.created_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event has."""

    event: ClassVar[str] = ""
    """The kind's name in JSON."""
    seq: int = 0
    t_ns: int = 0
    node: NodeId | None = None

    def to_json(self) -> dict[str, Fact]:
        """Return the event's line; fields at their default are left out."""
        out: dict[str, Fact] = {"event": self.event, "seq": self.seq, "t_ns": self.t_ns}
        for name, default in _DEFAULTS[type(self)]:
            value = getattr(self, name)
            if value != default:
                out[name] = _to_fact(value)
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent(Event):
    """What every event about one node has."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The run began, on this question."""

    event: ClassVar[str] = "run_start"
    question: str
    strategy: str = ""
    scorer: str = ""
    oracle: bool = False
    """Whether the task's exact labels steer the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(NodeEvent):
    """A node is there, and its thought is being written; its id names its parent."""

    event: ClassVar[str] = "node_start"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextAdded(NodeEvent):
    """A piece of a thought; not needed to build the tree, the whole text comes with :class:`NodeDone`."""

    event: ClassVar[str] = "delta"
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDone(NodeEvent):
    """A thought is complete, or failed."""

    event: ClassVar[str] = "node_done"
    text: str = ""
    reasoning: str = ""
    finish: str = "stop"
    """stop, length, context_full, legal (not written by the model) or failed."""
    tokens: TokenCounts = NO_TOKENS
    pages: NodePages = NO_PAGES
    key: str = ""
    verdict: Verdict = Verdict.OK
    reason: str = ""
    """Why the verdict is not ok."""
    terminal: bool = False
    """Whether it is a finished candidate that nothing follows."""
    error: str | None = None
    """Code and message of the engine's error; the node is then failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored(NodeEvent):
    """A scorer judged a node."""

    event: ClassVar[str] = "score"
    score: Score
    tokens: TokenCounts = NO_TOKENS
    """What the judging cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(NodeEvent):
    """A node and all below it were given up, and their contexts closed."""

    event: ClassVar[str] = "prune"
    freed_pages: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicated(NodeEvent):
    """A node has the state of another, which stands for both."""

    event: ClassVar[str] = "dedup"
    duplicate_of: NodeId
    freed_pages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected(Event):
    """The frontier was chosen, best first."""

    event: ClassVar[str] = "select"
    nodes: tuple[NodeId, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagesRead(Event):
    """The pool was read."""

    event: ClassVar[str] = "pages"
    pool: PoolCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRaised(Event):
    """The watchdog, or the run's own planning, raised an alarm."""

    event: ClassVar[str] = "alarm"
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused(Event):
    """The user stopped the clock; running thoughts end first."""

    event: ClassVar[str] = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """The run goes on."""

    event: ClassVar[str] = "resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped(Event):
    """The user let a paused run do one step."""

    event: ClassVar[str] = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited(NodeEvent):
    """The user rewrote a thought: its scores are void. What was below it is pruned by an event of its own."""

    event: ClassVar[str] = "edit"
    text: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted(NodeEvent):
    """The user added a thought by hand; the node's id names its parent."""

    event: ClassVar[str] = "insert"
    text: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked(NodeEvent):
    """The user locked a node into the beam, or let it go."""

    event: ClassVar[str] = "lock"
    locked: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(NodeEvent):
    """A node is the answer."""

    event: ClassVar[str] = "accept"
    by: str = "run"
    """run or user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The run ended: exactly one, and the last event."""

    event: ClassVar[str] = "finish"
    reason: FinishReason
    answer: str | None = None
    solved: bool | None = None
    """None where the task cannot check."""
    error: str | None = None
    peak: PoolCounts | None = None
    """The pool when the run held most, which may lie between two readings; it depends on when the run looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed(Event):
    """Something the reader of the run should know."""

    event: ClassVar[str] = "notice"
    text: str


EVENTS: tuple[type[Event], ...] = (
    RunStarted,
    NodeStarted,
    TextAdded,
    NodeDone,
    Scored,
    Pruned,
    Deduplicated,
    Selected,
    PagesRead,
    AlarmRaised,
    Paused,
    Resumed,
    Stepped,
    Edited,
    Inserted,
    Locked,
    Accepted,
    Finished,
    Noticed,
)

_UNSET = object()
_DEFAULTS: dict[type[Event], tuple[tuple[str, object], ...]] = {
    cls: tuple(
        (f.name, _UNSET if f.default is MISSING else f.default) for f in fields(cls) if f.name not in ("seq", "t_ns")
    )
    for cls in EVENTS
}


def _to_fact(value: object) -> Fact:
    """Turn a field's value into JSON."""
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Score):
        return value.to_json()
    assert isinstance(value, TokenCounts | NodePages | PoolCounts)
    return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
