"""A search is begun in the workbench: from the chat's question, or on the Tree screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from textual.pilot import Pilot

from pie_mlx.chat import ChatSession, SessionStore
from pie_mlx.engine import Engine
from pie_mlx.errors import UsageError
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace_events import Event
from pie_mlx.tui.app import Workbench
from pie_mlx.tui.bridge import Bridge
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.screens.chat import ChatScreen
from pie_mlx.tui.screens.dialogs import AskText
from pie_mlx.tui.screens.tree import TreeScreen
from pie_mlx.tui.widgets.chat.composer import Composer
from pie_mlx.tui.widgets.chat.transcript import Transcript

SMALL = SearchParams(max_tokens=12, answer_tokens=12, breadth=2, beam=2)


@pytest.fixture
def engine(scripted: ModuleType) -> Iterator[Engine]:
    """Return an engine whose device always answers the same, as the chat's own tests script it."""
    opened: Engine = scripted.start_engine(lambda _text: "think of it")
    yield opened
    opened.close()


@pytest.fixture
def workbench(engine: Engine, open_app: Any) -> Callable[..., Workbench]:
    """Open a workbench that can chat and search, on the screen that is named."""

    def start(screen: str) -> Workbench:
        store = SessionStore(None)

        def begin(question: str, listen: Callable[[Event], None]) -> Run:
            if question == "refuse":
                raise UsageError("this one is refused", "another")
            return Run(engine, Free(question, depth=2), SMALL, listen=listen)

        sources = Sources(engine=engine, open_chat=lambda: ChatSession.new(engine, store), open_search=begin)
        app: Workbench = open_app(sources, start=screen, bridge=Bridge(pace_s=0.0))
        return app

    return start


def shown(app: Workbench) -> str:
    """Return the transcript's text."""
    return "\n".join(str(each.render()) for each in app.screen.query_one(Transcript).query("Static"))


async def say(pilot: Pilot[None], text: str) -> None:
    """Put a text into the composer and send it."""
    pilot.app.screen.query_one(Composer).load_text(text)
    await pilot.press("enter")


def is_at_end_of(app: Workbench, question: str) -> bool:
    """Whether the tree screen shows the whole search of a question."""
    story = app.desk.story
    return isinstance(app.screen, TreeScreen) and story.is_over and story.tree.question == question


def test_a_question_of_the_chat_is_searched(workbench: Any, drive: Any, wait_until: Any) -> None:
    """/search QUESTION goes to the tree and shows the search; /search alone takes the last message."""
    app = workbench("chat")

    async def scenario(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: app.desk.chat is not None)
        await say(pilot, "/search Why is it so?")
        await wait_until(pilot, lambda: is_at_end_of(app, "Why is it so?"))
        first = app.desk.run
        assert len(app.desk.story.tree) > 3
        await pilot.press("f2")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatScreen) and app.screen.is_mounted)
        await say(pilot, "How?")
        await wait_until(pilot, lambda: app.desk.chat is not None and app.desk.chat.reply is None)
        await say(pilot, "/search")
        await wait_until(pilot, lambda: is_at_end_of(app, "How?"))
        assert app.desk.run is not first
        assert app.desk.story.fault is None

    drive(app, scenario)


def test_a_search_is_begun_on_the_tree_screen(workbench: Any, drive: Any, wait_until: Any) -> None:
    """The key asks for the question; a second search takes the place of the first, whose undo list is forgotten."""
    app = workbench("tree")

    async def search(pilot: Pilot[None], question: str) -> None:
        await pilot.press("s")
        await wait_until(pilot, lambda: isinstance(app.screen, AskText) and app.screen.is_mounted)
        await pilot.press(*question, "enter")
        await wait_until(pilot, lambda: is_at_end_of(app, question))

    async def scenario(pilot: Pilot[None]) -> None:
        await search(pilot, "one")
        await search(pilot, "two")
        assert isinstance(app.screen, TreeScreen)
        assert not app.screen._undo

    drive(app, scenario)


def test_a_search_that_cannot_be_begun_is_said(workbench: Any, drive: Any, wait_until: Any) -> None:
    """The refusal is shown, and the search before stays."""
    app = workbench("chat")

    async def scenario(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: app.desk.chat is not None)
        await say(pilot, "/search")
        await wait_until(pilot, lambda: "no question yet" in shown(app))
        await say(pilot, "/search refuse")
        await wait_until(pilot, lambda: any("this one is refused" in note.message for note in app._notifications))
        assert app.desk.run is None
        assert isinstance(app.screen, ChatScreen)

    drive(app, scenario)


def test_no_second_search_beside_one_that_runs(workbench: Any, drive: Any, wait_until: Any) -> None:
    """It is refused with what to do; the one that runs goes on."""
    app = workbench("chat")

    async def scenario(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: app.desk.chat is not None)
        opened = app.desk.sources.open_search
        assert opened is not None
        run = opened("slow", app.desk.bridge.offer)
        run.pause()
        run.start()
        app.desk.run = run
        await say(pilot, "/search again")
        await wait_until(pilot, lambda: "a search runs already" in shown(app))
        assert app.desk.run is run
        run.cancel()
        run.outcome()

    drive(app, scenario)
