"""Every screen as a picture: what it looks like changes only on purpose.

The pictures are Textual's own SVG exports; they depend on no font and no path. ``NEW_SNAPSHOTS=1`` writes
them anew: look at each before it is committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from pie_mlx.engine.readings import ContextReading, PageReading, Readings, RequestReading
from pie_mlx.errors import Holder, Starved
from pie_mlx.events import Alarm, PageCounts, RequestEnded, StepDone
from pie_mlx.ids import ContextId, PageId, RequestId
from pie_mlx.search.trace import Event
from pie_mlx.tui.alarms import note_of
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.gauges import Gauges

SIZES = [(60, 16), (100, 30), (160, 50)]
THEMES = ["pie-dark", "pie-light"]


def busy_engine() -> Gauges:
    """Return gauges that have read an engine under pressure: figures made by hand, the same on every machine."""
    owner = [ContextId(number) for number in range(1, 7)]
    pages = [PageReading(PageId(n), 16, tuple(owner), cached=False) for n in range(1, 9)]
    pages += [PageReading(PageId(8 + n), 16, tuple(owner[1:4]), cached=False) for n in range(1, 7)]
    pages += [PageReading(PageId(20 + n), 16, (owner[n % 6],), cached=False) for n in range(1, 31)]
    pages += [PageReading(PageId(56 + n), 16, (), cached=True) for n in range(4)]
    counts = PageCounts(total=64, free=16, private=30, shared=14, cached=4, views=96)
    names = ["run1/0", "run1/0.0", "run1/0.1", "run1/0.0.0", "run1/0.0.1", "chat main"]
    parents = [None, owner[0], owner[0], owner[1], owner[1], None]
    contexts = tuple(
        ContextReading(
            c,
            name,
            parent,
            128 + 9 * n,
            120 + 9 * n,
            0,
            13 + n % 3,
            5,
            0.4 * n,
            n == 5,
            RequestId(n) if n in (3, 4) else None,
        )
        for n, (c, name, parent) in enumerate(zip(owner, names, parents, strict=True))
    )
    requests = (
        RequestReading(RequestId(3), owner[3], "decoding", 1, 17, 0.81, None),
        RequestReading(RequestId(4), owner[4], "decoding", 1, 12, 0.63, None),
        RequestReading(RequestId(9), owner[5], "waiting", 96, 0, 4.2, "4 pages short"),
    )
    counters = {"completed": 41, "failed": 1, "cancelled": 0, "preemptions": 2, "evictions": 3}
    gauges = Gauges()
    steps = [
        StepDone(
            n,
            1 + n % 7,
            32 if n % 9 == 0 else 0,
            0,
            0.011 + 0.004 * (n % 5),
            0.001,
            PageCounts(64, 60 - n // 2, n // 2, 4, 0, 9),
        )
        for n in range(80)
    ]
    gauges.feed([*steps, RequestEnded(RequestId(2), owner[1], "stop", 24)], None, None)
    gauges.feed([], Readings(counts, contexts, requests, counters, True, None), pages)
    return gauges


def starved() -> Alarm:
    """Return an alarm with a full report."""
    holders = (Holder("run1/0.0.0", 15, 8, 0.0), Holder("chat main", 13, 0, 212.5))
    error = Starved(
        4, 0, 64, "pinned contexts hold 13 pages; 4 pages short", "request 9", holders, ("dropped 4 cached pages",)
    )
    return Alarm("failure", "starved", error.message, RequestId(9), {"error": dict(error.to_json())})


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_tree(
    size: tuple[int, int], theme: str, trace_file: Path, open_app: Any, *, drive: Any, compare: Any, at_rest: Any
) -> None:
    """A finished search with the cursor on its answer."""
    app = open_app(Sources(trace=trace_file), theme=theme)

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await at_rest(app, pilot)
        compare(app, f"tree-{size[0]}x{size[1]}-{theme}")

    drive(app, scenario, size=size)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", SIZES)
def test_engine(size: tuple[int, int], theme: str, open_app: Any, *, drive: Any, compare: Any, at_rest: Any) -> None:
    """An engine under pressure, with the alarm in its banner."""
    app = open_app(Sources(), theme=theme, start="engine")
    app.desk.gauges = busy_engine()
    app.desk.alarms.append(note_of(starved()))

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press("l", "h")
        await at_rest(app, pilot)
        compare(app, f"engine-{size[0]}x{size[1]}-{theme}")

    drive(app, scenario, size=size)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("best-path", ["v"]),
        ("levels", ["v", "v"]),
        ("flame", ["v", "v", "v"]),
        ("help", ["question_mark"]),
        ("diff", ["j", "j", "d", "j", "j", "j", "d"]),
        ("export", ["E"]),
        ("filter", ["f", *"score>0.5", "enter"]),
        ("past", ["left_square_bracket"] * 12),
    ],
)
def test_other_views(
    name: str, keys: list[str], trace_file: Path, open_app: Any, *, drive: Any, compare: Any, at_rest: Any
) -> None:
    """Views and dialogs of the tree screen."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press(*keys)
        app.clear_notifications()
        await at_rest(app, pilot)
        compare(app, f"view-{name}")

    drive(app, scenario)


def test_report(open_app: Any, *, drive: Any, compare: Any, at_rest: Any) -> None:
    """The watchdog's report in full."""
    app = open_app(Sources(), start="engine", theme="pie-contrast")
    app.desk.gauges = busy_engine()
    app.desk.alarms.append(note_of(starved()))

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press("w")
        await at_rest(app, pilot)
        compare(app, "report")

    drive(app, scenario)


def test_no_color(trace_file: Path, open_app: Any, drive: Any, compare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With NO_COLOR the terminal's own two colours are all there is; every fact is still to be read."""
    monkeypatch.setenv("NO_COLOR", "1")
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press("b")
        await pilot.pause()
        for strip in app.screen._compositor.render_strips():
            for segment in strip:
                style = segment.style
                for color in (style.color, style.bgcolor) if style is not None else ():
                    assert color is None or color.is_default
        compare(app, "no-color")

    drive(app, scenario)


def test_live_view_and_replay_are_the_same_picture(
    run_events: list[Event], trace_file: Path, open_app: Any, drive: Any, at_rest: Any
) -> None:
    """Events that come one by one, and the same events replayed from their file, end in equal screens."""
    live = open_app(Sources())
    read = open_app(Sources(trace=trace_file))
    shots: dict[str, str] = {}

    async def watch(pilot: Pilot[None]) -> None:
        live.desk.story.path = trace_file
        for event in run_events:
            live.desk.bridge.offer(event)
            await at_rest(live, pilot)
        from pie_mlx.search.trace import read_trace

        live.desk.bridge.offer_many([], read_trace(trace_file).header)
        await at_rest(live, pilot)
        live.clear_notifications()
        await pilot.press("b")
        await pilot.pause()
        shots["live"] = live.export_screenshot()

    async def replay(pilot: Pilot[None]) -> None:
        await pilot.press("left_parenthesis", "space")
        for _ in range(200):
            read.screen.play_on()
        await pilot.press("b")
        read.clear_notifications()
        await pilot.pause()
        shots["replay"] = read.export_screenshot()

    drive(live, watch, size=(120, 40))
    drive(read, replay, size=(120, 40))
    assert shots["live"] == shots["replay"]
