"""Rows and lines of the engine screen: contexts, requests, waiters, curves, legend."""

from __future__ import annotations

from pie_mlx.engine.readings import ContextReading, PageReading, RequestReading
from pie_mlx.ids import PageId
from pie_mlx.tui.gauges import Gauges
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.text import count, fit, one_line, seconds, spark
from pie_mlx.tui.widgets.frame.line_view import Line
from pie_mlx.tui.widgets.frame.table import Column

CONTEXT_COLUMNS = (
    Column("", 1),
    Column("context", 0),
    Column("tokens", 7, right=True),
    Column("in pool", 7, right=True, least_width=56),
    Column("own+shr", 9, right=True),
    Column("idle", 7, right=True, least_width=40),
    Column("state", 9, least_width=64),
)
REQUEST_COLUMNS = (
    Column("request", 8, right=True),
    Column("context", 0),
    Column("phase", 10),
    Column("done", 6, right=True),
    Column("left", 6, right=True, least_width=48),
    Column("age", 7, right=True),
    Column("waits for", 18, least_width=80),
)


def context_rows(gauges: Gauges, inks: Inks) -> list[Line]:
    """Return a row for each context, the largest first; forks carry their tree path in their name."""
    if gauges.readings is None:
        return []
    ordered = sorted(gauges.readings.contexts, key=lambda context: (-context.num_pages, context.id))
    return [_context_row(context, gauges, inks) for context in ordered]


def _context_row(context: ContextReading, gauges: Gauges, inks: Inks) -> Line:
    """Return one context's row."""
    parent = f" ‹ {gauges.name(context.parent)}" if context.parent is not None else ""
    state = "pinned" if context.pinned else "running" if context.request is not None else "idle"
    if context.num_evicted_tokens:
        state = "evicted"
    idle = "" if context.request is not None else seconds(context.idle_s)
    return (
        (gauges.letter(context.id), inks.owner(gauges.rank(context.id))),
        (one_line(gauges.name(context.id) + parent), inks["text"]),
        (count(context.num_tokens), inks["text"]),
        (count(context.num_resident), inks["dim"]),
        (f"{context.num_private}+{context.num_pages - context.num_private}", inks["info"]),
        (idle, inks["dim"]),
        (state, inks["good"] if state == "running" else inks["warn"] if state == "evicted" else inks["dim"]),
    )


def request_rows(gauges: Gauges, inks: Inks) -> list[Line]:
    """Return a row for each live request in the order of arrival."""
    return [_request_row(request, gauges, inks) for request in gauges.readings.requests] if gauges.readings else []


def _request_row(request: RequestReading, gauges: Gauges, inks: Inks) -> Line:
    """Return one request's row."""
    role = {"decoding": "good", "prefilling": "info", "waiting": "warn", "preempted": "warn"}.get(request.phase, "text")
    return (
        (str(request.id), inks["strong"]),
        (one_line(gauges.name(request.context)), inks["text"]),
        (request.phase, inks[role]),
        (count(request.completion_tokens), inks["text"]),
        (count(request.outstanding_tokens), inks["dim"]),
        (seconds(request.age_s), inks["dim"]),
        (one_line(request.waits_for or ""), inks["warn"]),
    )


def curve_lines(gauges: Gauges, inks: Inks, width: int) -> list[Line]:
    """Return the curves: throughput, batch width, step time, held pages."""
    room = max(4, width - 23)
    tps, steps = gauges.decode_tps, gauges.steps
    total = gauges.readings.pages.total if gauges.readings is not None else 1
    last = steps[-1] if steps else None
    rows = (
        ("tok/s", gauges.rates(), "" if tps is None else f"{tps:.0f}", None, "good"),
        ("batch", gauges.widths(), "" if last is None else f"{last.decode_rows} rows", None, "info"),
        ("step", gauges.durations(), "" if last is None else seconds(last.device_s + last.host_s), None, "busy"),
        ("held", gauges.held(), "" if last is None else f"{last.pages.held} of {total}", float(total), "accent"),
    )
    lines: list[Line] = [
        [(f"{name:<6} ", inks["head"]), (f"{words:>12}  ", inks["strong"]), (spark(values, room, top=top), inks[role])]
        for name, values, words, top, role in rows
    ]
    return lines


def waiting_lines(gauges: Gauges, inks: Inks) -> list[Line]:
    """Return who waits by reason, the counters, and how the last requests ended."""
    if gauges.readings is None:
        return [[("no engine", inks["dim"])]]
    lines: list[Line] = [
        [(f"{number:>3} ", inks["warn"]), (one_line(why), inks["text"])] for why, number in gauges.waiting().items()
    ] or [[("nobody waits", inks["dim"])]]
    counters = gauges.readings.counters
    shown = ("completed", "failed", "cancelled", "preemptions", "evictions")
    words = "  ".join(f"{name} {counters[name]}" for name in shown if counters.get(name))
    lines.append([(words or "no request has ended yet", inks["dim"])])
    recent = list(gauges.endings)[-4:]
    lines += [
        [(f"{ending.request:>3} ", inks["dim"]), (f"{ending.reason}, {ending.tokens} tokens", inks["dim"])]
        for ending in reversed(recent)
    ]
    return lines


def legend_lines(gauges: Gauges, inks: Inks) -> list[Line]:
    """Return what the glyphs of the map mean, with the pool's counts."""
    if gauges.readings is None:
        return []
    pages = gauges.readings.pages
    return [
        [
            ("a", inks.owner(0)), (f" own {pages.private}  ", inks["text"]),
            ("2", inks["good"]), (f" shared {pages.shared}  ", inks["text"]),
            ("▒", inks["dim"]), (f" cached {pages.cached}  ", inks["text"]),
            ("·", inks["dim"]), (f" free {pages.free}/{pages.total}", inks["text"]),
        ]
    ]  # fmt: skip


def page_words(first: PageId, pages: list[PageReading], gauges: Gauges, per_cell: int) -> str:
    """Return what stands under the map's cursor, in words."""
    if per_cell > 1:
        shared = sum(1 for page in pages if len(page.owners) > 1)
        return f"pages {first}–{first + per_cell - 1}: {len(pages)} held, {shared} of them shared"
    if not pages:
        return f"page {first}: free"
    page = pages[0]
    names = ", ".join(f"{gauges.letter(owner)} {one_line(gauges.name(owner))}" for owner in page.owners[:6])
    more = f" and {len(page.owners) - 6} more" if len(page.owners) > 6 else ""
    who = f"viewed by {names}{more}" if page.owners else "only in the prefix cache: free when wanted"
    return fit(f"page {page.page}: {page.used} slots written, {who}", 400).rstrip()
