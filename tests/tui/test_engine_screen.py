"""The engine screen: pages, owners, requests and alarms as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from pie_mlx.engine import Engine
from pie_mlx.engine.readings import PageReading
from pie_mlx.errors import Fact, Holder, Starved
from pie_mlx.events import Alarm
from pie_mlx.ids import ContextId, PageId, RequestId
from pie_mlx.tui.alarms import note_of, report_lines
from pie_mlx.tui.bridge import Bridge
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.gauges import Gauges
from pie_mlx.tui.inks import DARK, Inks
from pie_mlx.tui.screens.engine import EngineScreen
from pie_mlx.tui.screens.report import idle_contexts
from pie_mlx.tui.widgets.engine.page_map import Layout, PageMap, many_pages, one_page
from pie_mlx.tui.widgets.frame.line_view import TextLines
from pie_mlx.tui.widgets.frame.table import Table

INKS = Inks(DARK)


def page(number: int, *owners: int, cached: bool = False) -> PageReading:
    """Return a page with owners."""
    return PageReading(PageId(number), 8, tuple(ContextId(owner) for owner in owners), cached)


def map_text(page_map: PageMap) -> str:
    """Return the map's glyphs."""
    rows = (page_map.render_line(y).text for y in range(page_map.size.height))
    return "".join(rows).replace(" ", "")


def test_pages_light_up_when_shared_and_go_dark_when_freed(
    start_engine: Callable[..., Engine], open_app: Any, drive: Any, at_rest: Any
) -> None:
    """A fork turns letters into numbers; closing it turns them back; closing all leaves only dots."""
    engine = start_engine(64, prefix_cache=False)
    app = open_app(Sources(engine=engine))

    async def scenario(pilot: Pilot[None]) -> None:
        screen = app.screen
        assert isinstance(screen, EngineScreen)
        page_map = screen.query_one(PageMap)

        async def glyphs() -> str:
            await at_rest(app, pilot)
            await pilot.press("R")
            return map_text(page_map)

        with engine.context(list(range(1, 33)), name="root") as root:
            root.prefill().result()
            alone = await glyphs()
            assert set(alone) == {"a", "·"}
            fork = root.fork(name="root/0")
            assert "2" in await glyphs()
            assert "root/0 ‹ root" in screen.query_one("#contexts", Table).text
            fork.close()
            assert await glyphs() == alone
        assert set(await glyphs()) <= {"·", "◌"}

    drive(app, scenario)


def test_the_cursor_names_page_and_owners(
    start_engine: Callable[..., Engine], open_app: Any, drive: Any, at_rest: Any
) -> None:
    """What stands under the cursor is said in words; o lets an owner's pages stand out."""
    engine = start_engine(64, prefix_cache=False)
    app = open_app(Sources(engine=engine))

    async def scenario(pilot: Pilot[None]) -> None:
        with engine.context(list(range(1, 33)), name="root [/x]") as root:
            root.prefill().result()
            await at_rest(app, pilot)
            await pilot.press("R", "l", "h")
            assert "viewed by a root [/x]" in app.screen.query_one("#legend", TextLines).text
            await pilot.press("o")
            assert app.screen.query_one(PageMap).owner == root.id
            await pilot.press("escape", *["l"] * 40)
            assert ": free" in app.screen.query_one("#legend", TextLines).text

    drive(app, scenario)


@pytest.mark.parametrize(
    ("pages", "width", "height"), [(1, 60, 10), (600, 60, 10), (601, 60, 10), (100_000, 60, 10), (7, 1, 1)]
)
def test_every_page_has_a_cell(pages: int, width: int, height: int) -> None:
    """However large the pool, all pages fall into cells that are on the screen."""
    layout = Layout.of(pages, width, height)
    assert layout.num_cells * layout.per_cell >= pages
    assert -(-layout.num_cells // layout.width) <= height
    assert layout.width * layout.pitch <= max(width, layout.pitch)


def test_a_cell_of_many_pages_tells_kind_and_level_by_its_glyph() -> None:
    """Free, own, shared and cached differ in shape; fuller cells in another."""
    own = [page(n, 1) for n in range(1, 11)]
    shared = [page(n, 1, 2) for n in range(1, 11)]
    cached = [page(n, cached=True) for n in range(1, 11)]
    glyphs = [many_pages(pages[:most], 10, INKS)[0] for pages in (own, shared, cached) for most in (2, 6, 10)]
    assert len(set(glyphs)) == 9
    assert many_pages([], 10, INKS)[0] == "·"


def test_glyphs_of_single_pages() -> None:
    """One owner is a letter, several a number, none the cache's mark."""
    gauges = Gauges()
    glyphs = [
        one_page(each, gauges, INKS)[0]
        for each in (page(1, 1), page(2, 1, 2, 3), page(3, *range(12)), page(4, cached=True))
    ]
    assert glyphs == ["a", "3", "+", "▒"]


def starved() -> Alarm:
    """Return the watchdog's alarm of a starved request."""
    error = Starved(
        9,
        1,
        64,
        "pinned contexts hold 60 pages",
        "request 7",
        (Holder("run1/0 [/x]", 60, 12, 33.0),),
        ("dropped 3 cached",),
    )
    report: dict[str, Fact] = {
        "schema": "pie-mlx.alarm/1",
        "level": "failure",
        "kind": "starved",
        "error": dict(error.to_json()),
    }
    return Alarm("failure", "starved", error.message, RequestId(7), report)


def test_a_report_says_who_waits_who_holds_why_and_what_helps() -> None:
    """Every part of the watchdog's report is in words."""
    lines = list(report_lines(note_of(starved())))
    words = dict(lines)
    assert words["waits"] == "request 7 for 9 pages"
    assert words["pool"] == "1 pages free of 64"
    assert words["holds"] == "run1/0 [/x]: 60 pages, 12 shared, idle 33.0 s"
    assert "pinned" in words["cause"]
    assert words["tried"] == "dropped 3 cached"
    assert "--pool-pages" in words["helps"]


def test_an_alarm_comes_as_banner_and_toast(
    start_engine: Callable[..., Engine], open_app: Any, drive: Any, at_rest: Any
) -> None:
    """Whatever screen is shown, the alarm is on it; one alarm is said once."""
    engine = start_engine(64)
    bridge = Bridge(pace_s=0.0)
    app = open_app(Sources(engine=engine), bridge=bridge)

    async def scenario(pilot: Pilot[None]) -> None:
        for _ in range(2):
            bridge._put(lambda inbox: inbox.engine.append(starved()))
            await at_rest(app, pilot)
        assert len(app.desk.alarms) == 1
        assert len([note for note in app._notifications if "starved" in note.title]) == 1
        await pilot.press("w")
        text = str(app.screen.query_one("#reports").render())
        assert "run1/0 [/x]" in text

    drive(app, scenario)


def test_buttons_help(
    start_engine: Callable[..., Engine], open_app: Any, drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is cleared at once; idle contexts are closed only after a yes."""
    monkeypatch.setattr("pie_mlx.tui.screens.report.IDLE_S", 0.0)
    engine = start_engine(64)
    app = open_app(Sources(engine=engine))

    async def scenario(pilot: Pilot[None]) -> None:
        with engine.context(list(range(1, 40)), name="done") as done:
            done.generate(max_tokens=4)
        idle = engine.context(list(range(60, 90)), name="idle")
        idle.prefill().result()
        assert engine.readings().pages.cached > 0
        await pilot.press("w")
        await pilot.click("#clear")
        assert engine.readings().pages.cached == 0
        await pilot.click("#close-idle")
        await pilot.press("n")
        assert len(idle_contexts(engine, app.desk)) == 1
        await pilot.click("#close-idle")
        await pilot.press("y")
        assert not engine.readings().contexts

    drive(app, scenario)


def test_gauges_keep_a_letter_for_the_life_of_a_context(start_engine: Callable[..., Engine]) -> None:
    """Closing one context does not rename the others; a new one takes the free letter."""
    engine = start_engine(64)
    gauges = Gauges()
    first, second = engine.context(name="first"), engine.context(name="second")
    gauges.feed([], engine.readings(), None)
    assert (gauges.letter(first.id), gauges.letter(second.id)) == ("a", "b")
    first.close()
    third = engine.context(name="third")
    gauges.feed([], engine.readings(), None)
    assert (gauges.letter(second.id), gauges.letter(third.id)) == ("b", "a")
    second.close()
    third.close()


def test_help_explains_the_glyphs_of_its_own_screen(
    start_engine: Callable[..., Engine], open_app: Any, drive: Any
) -> None:
    """On the engine screen those of pages, on the tree screen those of thoughts, in the chat none."""
    app = open_app(Sources(engine=start_engine(64)))

    async def scenario(pilot: Pilot[None]) -> None:
        shown = {}
        for key in ("f2", "f3", "f4"):
            await pilot.press(key, "f1")
            shown[key] = "".join(str(each.render()) for each in app.screen.query("Static"))
            await pilot.press("escape")
        assert [("writing" in words, "prefix cache holds" in words) for words in shown.values()] == [
            (False, False),
            (True, False),
            (False, True),
        ]

    drive(app, scenario)
