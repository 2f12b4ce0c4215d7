"""The events of a search: past facts, frozen, each one line of the trace.

``seq`` counts from 1 without a gap; ``t_ns`` is nanoseconds since the run began. Both are 0 until the event is
stamped (:class:`pie_mlx.search.trace.TraceWriter`). ``node`` is the node that an event is about, None where it is
about the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from pie_mlx.errors import Fact
from pie_mlx.search.node import NO_PAGES, NO_TOKENS, Count, Named
from pie_mlx.search.tree import NodePages, PoolCounts, Score, TokenCounts

SCHEMA = "pie-mlx.tot/1"


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


class Event(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="event", gc=False):
    """What every event has; the tag is the kind's name in JSON. Without cycles, so that the collector need not look."""

    seq: Count = 0
    t_ns: Count = 0
    node: Named | None = None

    @property
    def event(self) -> str:
        """The kind's name in JSON."""
        return kind_of(type(self))

    def to_json(self) -> dict[str, Fact]:
        """Return the event's line; fields at their default are left out."""
        out: dict[str, Fact] = {"event": self.event, "seq": self.seq, "t_ns": self.t_ns}
        for name, default in _DEFAULTS[type(self)]:
            value = getattr(self, name)
            if value != default:
                out[name] = _to_fact(value)
        return out


class NodeEvent(Event, frozen=True, kw_only=True):
    """What every event about one node has."""

    node: Named


class RunStarted(Event, tag="run_start", frozen=True, kw_only=True):
    """The run began, on this question."""

    question: str
    strategy: str = ""
    scorer: str = ""
    oracle: bool = False
    """Whether the task's exact labels steer the search."""


class NodeStarted(NodeEvent, tag="node_start", frozen=True, kw_only=True):
    """A node is there, and its thought is being written; its id names its parent."""

    seed: Count = 0


class TextAdded(NodeEvent, tag="delta", frozen=True, kw_only=True):
    """A piece of a thought; not needed to build the tree, the whole text comes with :class:`NodeDone`."""

    text: str


class NodeDone(NodeEvent, tag="node_done", frozen=True, kw_only=True):
    """A thought is complete, or failed."""

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


class Scored(NodeEvent, tag="score", frozen=True, kw_only=True):
    """A scorer judged a node."""

    score: Score
    tokens: TokenCounts = NO_TOKENS
    """What the judging cost."""


class Pruned(NodeEvent, tag="prune", frozen=True, kw_only=True):
    """A node and all below it were given up, and their contexts closed."""

    freed_pages: Count = 0
    reason: str = ""


class Deduplicated(NodeEvent, tag="dedup", frozen=True, kw_only=True):
    """A node has the state of another, which stands for both."""

    duplicate_of: Named
    freed_pages: Count = 0


class Selected(Event, tag="select", frozen=True, kw_only=True):
    """The frontier was chosen, best first."""

    nodes: tuple[Named, ...] = ()
    reason: str = ""


class PagesRead(Event, tag="pages", frozen=True, kw_only=True):
    """The pool was read."""

    pool: PoolCounts


class AlarmRaised(Event, tag="alarm", frozen=True, kw_only=True):
    """The watchdog, or the run's own planning, raised an alarm."""

    kind: str
    message: str


class Paused(Event, tag="pause", frozen=True, kw_only=True):
    """The user stopped the clock; running thoughts end first."""


class Resumed(Event, tag="resume", frozen=True, kw_only=True):
    """The run goes on."""


class Stepped(Event, tag="step", frozen=True, kw_only=True):
    """The user let a paused run do one step."""


class Edited(NodeEvent, tag="edit", frozen=True, kw_only=True):
    """The user rewrote a thought: its scores are void. What was below it is pruned by an event of its own."""

    text: str
    key: str = ""


class Inserted(NodeEvent, tag="insert", frozen=True, kw_only=True):
    """The user added a thought by hand; the node's id names its parent."""

    text: str
    key: str = ""


class Locked(NodeEvent, tag="lock", frozen=True, kw_only=True):
    """The user locked a node into the beam, or let it go."""

    locked: bool = True


class Accepted(NodeEvent, tag="accept", frozen=True, kw_only=True):
    """A node is the answer."""

    by: str = "run"
    """run or user."""


class Finished(Event, tag="finish", frozen=True, kw_only=True):
    """The run ended: exactly one, and the last event."""

    reason: FinishReason
    answer: str | None = None
    solved: bool | None = None
    """None where the task cannot check."""
    error: str | None = None
    peak: PoolCounts | None = None
    """The pool when the run held most, which may lie between two readings; it depends on when the run looked."""


class Noticed(Event, tag="notice", frozen=True, kw_only=True):
    """Something the reader of the run should know."""

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


def kind_of(cls: type[Event]) -> str:
    """Return the name that events of a class have in JSON."""
    return str(cls.__struct_config__.tag)


_UNSET = object()
_DEFAULTS: dict[type[Event], tuple[tuple[str, object], ...]] = {
    cls: tuple(
        (f.name, _UNSET if f.default is NODEFAULT else f.default) for f in fields(cls) if f.name not in ("seq", "t_ns")
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
