"""Alarms as the screens show them: one note each, whoever raised it, with its report in words and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from pie_mlx.errors import Fact
from pie_mlx.events import Alarm
from pie_mlx.ids import RequestId
from pie_mlx.search.trace_events import AlarmRaised, Finished, FinishReason
from pie_mlx.tui.text import one_line

UNREACHABLE = "unreachable"
"""The kind of alarm that a server elsewhere raises by its silence."""
_EXPLAINED = {
    UNREACHABLE: "the server that this screen looks at does not answer; it is asked again every second",
    "impossible": "the ask is larger than the pool could ever give",
    "hog": "one context holds most of the pool and asks for more than can ever be free",
    "deadlock": "requests wait for each other in a circle",
    "starved": "someone waits for pages, and nobody who holds them can give any back",
    "leak": "a page is held although nobody views it: a fault of pie-mlx",
    "device": "the device has not come back from a step",
    "stalled": "work is there, but nothing moves, and pages are not the cause",
    FinishReason.FAILED: "an error that the search could not go on with",
}


_HELPS = {
    FinishReason.STARVED: (
        "fewer branches (--breadth, --beam), or shorter ones (--max-tokens)",
        "a larger pool: leave, and start with more --pool-pages; its size is fixed while the engine runs",
    ),
    FinishReason.FAILED: ("the log says more: pie-mlx config path names its file",),
}
"""What helps a run that an error has ended."""


@dataclass(frozen=True, slots=True)
class AlarmNote:
    """One alarm: ``level`` is ``warning`` or ``failure``."""

    level: str
    kind: str
    words: str
    request: RequestId | None = None
    report: Mapping[str, Fact] = field(default_factory=dict)
    is_end: bool = False
    """Whether it tells how the run that is shown has ended; another run takes it away."""

    @property
    def explained(self) -> str:
        """What an alarm of this kind means."""
        return _EXPLAINED.get(self.kind, "the run's own planning raised it")


def is_alarming(event: object) -> TypeGuard[Alarm | AlarmRaised | Finished]:
    """Whether an event is an alarm, or the end of a run by an error that nobody asked for."""
    return isinstance(event, Alarm | AlarmRaised) or (isinstance(event, Finished) and event.reason in _HELPS)


def note_of(event: Alarm | AlarmRaised | Finished) -> AlarmNote:
    """Return the note of an event of the engine's watchdog, of a trace's alarm, or of a run that failed."""
    if isinstance(event, Alarm):
        return AlarmNote(
            event.level, one_line(event.kind, 40), one_line(event.message, 600), event.request, event.report
        )
    if isinstance(event, Finished):
        helps: list[Fact] = list(_HELPS[event.reason])
        words = f"the run has ended: {one_line(event.error or event.reason.value, 600)}"
        return AlarmNote("failure", event.reason.value, words, report={"try": helps}, is_end=True)
    return AlarmNote("warning", one_line(event.kind, 40), one_line(event.message, 600))


def report_lines(note: AlarmNote) -> Iterator[tuple[str, str]]:
    """Yield the report as names and words: what happened, who waits, who holds, cause, what was tried, what helps."""
    yield "what", note.words
    yield "means", note.explained
    error = note.report.get("error")
    if isinstance(error, Mapping):
        yield from _cause_lines(error)
    for each in _what_helps(note.report):
        yield "helps", one_line(each)


def _cause_lines(error: Mapping[str, Fact]) -> Iterator[tuple[str, str]]:
    """Yield who waits for what, who holds the pages, why, and what was tried."""
    detail = error.get("detail")
    facts = detail if isinstance(detail, Mapping) else {}
    if facts.get("waiter"):
        yield "waits", f"{facts['waiter']} for {facts.get('need_pages')} pages"
    if "free_pages" in facts:
        yield "pool", f"{facts['free_pages']} pages free of {facts.get('total_pages')}"
    holders = facts.get("holders")
    for holder in holders if isinstance(holders, list) else []:
        if isinstance(holder, Mapping):
            yield "holds", _holder(holder)
    if facts.get("cause"):
        yield "cause", one_line(str(facts["cause"]))
    tried = facts.get("tried")
    for action in tried if isinstance(tried, list) else []:
        yield "tried", one_line(str(action))


def _what_helps(report: Mapping[str, Fact]) -> Iterator[str]:
    """Yield what would end the trouble, the nearest first."""
    wanted, error = report.get("try"), report.get("error")
    if isinstance(wanted, list) and wanted:
        yield from map(str, wanted)
    elif isinstance(error, Mapping) and error.get("hint"):
        yield str(error["hint"])


def _holder(holder: Mapping[str, Fact]) -> str:
    """Say what one holder has."""
    idle = holder.get("idle_s")
    since = f", idle {idle:.1f} s" if isinstance(idle, int | float) else ""
    return (
        f"{one_line(str(holder.get('name')))}: {holder.get('pages')} pages, {holder.get('shared_pages')} shared{since}"
    )
