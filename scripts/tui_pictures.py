# ruff: noqa: INP001
"""Makes the pictures of docs/tui.md: a real run of the starter model, watched, continued in the chat, and its pages.

Usage: python scripts/tui_pictures.py [FOLDER]   (default: docs/images; a minute on a CPU)

The model must be there: pie-mlx pull smollm2-135m.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pie_mlx
from pie_mlx.chat import ChatSession, ChatSettings, SessionStore
from pie_mlx.engine import Engine
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks import make_task
from pie_mlx.tui.app import Workbench, make_app
from pie_mlx.tui.bridge import Bridge
from pie_mlx.tui.desk import Sources

QUESTION = "How could a small town save water?"
LINES = ("Which of these should the town begin with?", "/fork costs", "And what would it cost?")
SIZE = (132, 38)
PARAMS = SearchParams(beam=3, breadth=4, depth=3, max_tokens=40, seed=0)


def save(app: Workbench, path: Path) -> None:
    """Write the screen as it is; the fonts that Textual names on the network are left out."""
    picture = re.sub(r"@font-face\s*\{[^}]*\}\s*", "", app.export_screenshot(title="pie-mlx"))
    path.write_text(re.sub(r"terminal-\d+", "terminal", picture), encoding="utf-8")
    sys.stdout.write(f"{path}\n")


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not holds():  # noqa: ASYNC110  what is waited for happens on other threads
        await asyncio.sleep(0.05)


async def show(engine: Engine, folder: Path, scratch: Path) -> None:
    """Run a search, look at each screen at its best moment."""
    store = SessionStore(scratch / "sessions.db")
    settings = ChatSettings(max_tokens=90, temperature=0.3)
    bridge = Bridge()
    run = Run(engine, make_task("free", QUESTION), PARAMS, listen=bridge.offer, deltas=True)

    def open_chat() -> ChatSession:
        return ChatSession.new(engine, store, settings=settings)

    app = make_app(Sources(engine=engine, run=run, open_chat=open_chat), bridge=bridge)
    async with app.run_test(size=SIZE) as pilot:
        story = app.desk.story

        def num_decoding() -> int:
            readings = app.desk.gauges.readings
            return 0 if readings is None else sum(each.phase == "decoding" for each in readings.requests)

        await pilot.press("f4")
        await until(lambda: len(story.tree) > 22 and num_decoding() > 6)
        await pilot.press("l", "l")
        save(app, folder / "tui-engine.svg")
        await pilot.press("f3")
        await until(lambda: story.is_over and bridge.is_quiet)
        app.clear_notifications()
        await pilot.press("b")
        save(app, folder / "tui-tree.svg")
        await pilot.press("c")
        await until(lambda: app.current_mode == "chat" and app.desk.chat is not None)
        assert app.desk.chat is not None, "it was just opened"
        for line in LINES:
            await pilot.pause(0.5)
            await pilot.press(*("space" if char == " " else char for char in line), "enter")
            await until(lambda: app.desk.chat is not None and app.desk.chat.reply is None and bridge.is_quiet)
        await pilot.pause(0.5)
        app.clear_notifications()
        await pilot.pause(0.5)
        save(app, folder / "tui-chat.svg")


def main(folder: Path) -> None:
    """Make the pictures."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        pie_mlx.open_engine("smollm2-135m", pool_pages=480, page_size=8) as engine,
    ):
        asyncio.run(show(engine, folder, Path(scratch)))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images"))
