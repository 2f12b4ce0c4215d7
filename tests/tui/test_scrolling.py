"""Log, levels and transcript stand at their end, however rows, window and scroll bar come to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from pie_mlx.tui.desk import Sources
from pie_mlx.tui.widgets.chat.composer import Composer
from pie_mlx.tui.widgets.chat.transcript import Transcript
from pie_mlx.tui.widgets.tree.strips import LogView


def test_the_end_is_shown_before_the_scroll_bar_is(trace_file: Path, open_app: Any, *, drive: Any) -> None:
    """Many rows that come at once are scrolled to their end in the same turn, and the bar stands there too."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        log = app.screen.query_one(LogView)
        log.set_num_rows(0)
        await pilot.pause()
        assert not log.show_vertical_scrollbar
        log.show_change()
        assert log.num_rows() == len(app.desk.story.log) > log.size.height
        assert log.at_bottom()
        await pilot.pause()
        assert log.show_vertical_scrollbar
        assert log.vertical_scrollbar.position == log.max_scroll_y == log.scroll_y

    drive(app, scenario)


def test_the_end_stays_in_sight_in_another_window(trace_file: Path, open_app: Any, *, drive: Any, at_rest: Any) -> None:
    """A smaller and a larger terminal both show the last lines, of the log and of the levels."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        log, levels = app.screen.query_one(LogView), app.screen.query_one("#depths")
        for height in (24, 50, 22, 36):
            await pilot.resize_terminal(100, height)
            await at_rest(app, pilot)
            assert log.at_bottom(), height
            assert levels.at_bottom(), height

    drive(app, scenario)


def test_who_reads_further_up_is_left_alone(trace_file: Path, open_app: Any, *, drive: Any, at_rest: Any) -> None:
    """After Page Up new rows and another window leave the reader where he is; at the end he is taken along again."""
    app = open_app(Sources(trace=trace_file))

    async def scenario(pilot: Pilot[None]) -> None:
        log = app.screen.query_one(LogView)
        log.focus()
        await pilot.press("pageup")
        await at_rest(app, pilot)
        log.scroll_to(y=3, animate=False)
        assert not log.at_bottom()
        log.show_change()
        await pilot.resize_terminal(100, 34)
        await at_rest(app, pilot)
        assert log.scroll_y == 3
        log.scroll_to(y=log.max_scroll_y, animate=False)
        await pilot.resize_terminal(100, 24)
        await at_rest(app, pilot)
        assert log.at_bottom()

    drive(app, scenario)


def test_scrolling_up_holds_while_a_reply_streams(talk: Any, drive: Any, wait_until: Any) -> None:
    """Who reads further up is not pulled down."""
    app = talk({"long": "\n".join(f"row {n}" for n in range(70))}, pause_s=0.001)

    async def scenario(pilot: Pilot[None]) -> None:
        transcript = app.screen.query_one(Transcript)
        app.screen.query_one(Composer).load_text("long")
        await pilot.press("enter")
        await wait_until(pilot, lambda: transcript.max_scroll_y > 20)
        transcript.scroll_to(y=5, animate=False, immediate=True)
        await pilot.pause()
        await wait_until(pilot, lambda: app.desk.chat.reply is None and app.desk.bridge.is_quiet)
        assert transcript.scroll_offset.y == 5

    drive(app, scenario)


def test_the_end_is_in_sight_whatever_the_lines_are(talk: Any, drive: Any, at_rest: Any) -> None:
    """The scroll bar that appears takes no room from the text, whose new line breaks would hide the last lines."""
    app = talk()

    async def scenario(pilot: Pilot[None]) -> None:
        transcript = app.screen.query_one(Transcript)
        for words in (33, 42, 51, 63):
            await transcript.show_path([])
            await pilot.pause()
            transcript.say("word " * words)
            for _ in range(6):
                transcript.say("x")
            await at_rest(app, pilot)
            transcript.add_message("hello " * 40)
            await at_rest(app, pilot)
            assert transcript.scroll_y == transcript.max_scroll_y == transcript.vertical_scrollbar.position, words
            assert transcript.max_scroll_y > 0

    drive(app, scenario)
