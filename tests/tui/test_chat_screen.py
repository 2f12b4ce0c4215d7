"""The chat screen over a real session: what is sent, what streams in, and what the keys do."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from textual.pilot import Pilot

from pie_mlx.chat import ChatSession, SessionStore
from pie_mlx.tui.app import Workbench
from pie_mlx.tui.bridge import Bridge
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.screens.chat import ChatScreen
from pie_mlx.tui.widgets.chat.composer import Composer
from pie_mlx.tui.widgets.chat.transcript import Transcript
from pie_mlx.tui.widgets.frame.line_view import CursorLines, TextLines

Talk = Callable[..., Workbench]


def shown(app: Workbench) -> str:
    """Return the transcript's text."""
    return "\n".join(str(each.render()) for each in app.screen.query_one(Transcript).query("Static"))


async def say(pilot: Pilot[None], text: str) -> None:
    """Put a text into the composer and send it."""
    pilot.app.screen.query_one(Composer).load_text(text)
    await pilot.press("enter")


def is_idle(app: Workbench) -> bool:
    """Whether no reply runs and all of it is shown."""
    return app.desk.chat is not None and app.desk.chat.reply is None and app.desk.bridge.is_quiet


def test_a_reply_streams_in_literal_and_is_saved(talk: Talk, drive: Any, wait_until: Any) -> None:
    """Markup and escapes of the model are text; the transcript equals what the session holds."""
    reply = "[/x] [@click=app.quit]no[/] \x1b[2J **bold**\n\n```python\nx = 1"
    app = talk({"hi [red": reply})

    async def scenario(pilot: Pilot[None]) -> None:
        await say(pilot, "hi [red")
        await wait_until(pilot, lambda: is_idle(app))
        assert "[/x] [@click=app.quit]no[/] ␛[2J bold" in shown(app)
        assert "x = 1" in shown(app)
        assert "hi [red" in shown(app)
        assert app.desk.chat is not None
        assert app.desk.chat.path()[-1].text == reply
        assert "tok/s" in app.screen.query_one("#figures", TextLines).text

    drive(app, scenario)


def test_long_replies_keep_their_finished_blocks(
    talk: Talk, drive: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail stays short however long the reply grows, and no line is lost or doubled."""
    monkeypatch.setattr("pie_mlx.tui.widgets.chat.transcript._BLOCK_CHARS", 120)
    lines = [f"line {number}" for number in range(200)]
    app = talk({"go": "\n".join(lines)}, context_tokens=20_000, pool_pages=2_000, pause_s=0.001)

    async def scenario(pilot: Pilot[None]) -> None:
        assert app.desk.chat is not None
        app.desk.chat.change(settings=app.desk.chat.settings.changed("max_tokens", "9000"))
        await say(pilot, "go")
        await wait_until(pilot, lambda: is_idle(app))
        blocks = [str(each.render()) for each in app.screen.query_one(Transcript).query("Static")]
        assert len(blocks) >= 4
        assert max(map(len, blocks)) < 900, "of 1,890 characters"
        text = "\n".join(blocks).splitlines()
        assert [line.strip() for line in text if line.startswith("line ")] == lines

    drive(app, scenario)


def test_a_long_conversation_has_few_blocks_and_looks_the_same(
    talk: Talk, drive: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older turns become one block: what a frame costs does not grow with them, and no line moves."""
    monkeypatch.setattr("pie_mlx.tui.widgets.chat.transcript._MOST_BLOCKS", 8)
    app = talk({f"m{number}": f"first [/x]\n\nsecond {number}" for number in range(8)})

    async def scenario(pilot: Pilot[None]) -> None:
        transcript = app.screen.query_one(Transcript)
        for number in range(8):
            await say(pilot, f"m{number}")
            await wait_until(pilot, lambda: is_idle(app))
            transcript.say("a notice")
            # A turn takes ten lines, wherever it stands; the pane has room for two.
            height = max(transcript.size.height, 10 * (number + 1))
            await wait_until(pilot, lambda height=height: transcript.virtual_size.height == height)
        assert len(transcript.query("Static")) < 20, "of 32"
        words = [line.strip() for line in shown(app).splitlines() if line.strip().startswith(("m", "second"))]
        assert words == [word for number in range(8) for word in (f"m{number}", f"second {number}")]
        assert app.desk.chat is not None
        await transcript.show_path(app.desk.chat.path())
        await wait_until(pilot, lambda: transcript.virtual_size.height == 8 * 8)

    drive(app, scenario)


def test_escape_stops_and_keeps_what_there_is(talk: Talk, drive: Any, wait_until: Any) -> None:
    """A stopped reply is partial, said to be so, and the next turn works."""
    app = talk({"long": "word " * 200, "next": "fine"}, pause_s=0.01)

    async def scenario(pilot: Pilot[None]) -> None:
        await say(pilot, "long")
        await wait_until(pilot, lambda: "word word" in shown(app))
        await pilot.press("escape")
        await wait_until(pilot, lambda: is_idle(app))
        assert app.desk.chat is not None
        assert app.desk.chat.path()[-1].is_partial
        assert "the reply is kept as it is" in shown(app)
        await say(pilot, "next")
        await wait_until(pilot, lambda: is_idle(app))
        assert "fine" in shown(app)

    drive(app, scenario)


def test_branches_are_kept_and_shown(talk: Talk, drive: Any, wait_until: Any) -> None:
    """Retry makes a branch; the side tree names both; switching shows the other's turns."""
    app = talk({"a": "first", "b": "second"})

    async def scenario(pilot: Pilot[None]) -> None:
        await say(pilot, "a")
        await wait_until(pilot, lambda: is_idle(app))
        await say(pilot, "/fork side")
        await say(pilot, "b")
        await wait_until(pilot, lambda: is_idle(app))
        text = app.screen.query_one("#branches", CursorLines).text
        assert "main" in text
        assert "side" in text
        await say(pilot, "/switch main")
        await pilot.pause()
        assert "second" not in shown(app)
        await say(pilot, "/nonsense")
        assert "there is no command /nonsense" in shown(app)
        assert app.screen.query_one(Composer).text == "/nonsense"

    drive(app, scenario)


def test_commands_complete_and_edit_takes_the_old_message(talk: Talk, drive: Any, wait_until: Any) -> None:
    """Tab takes the first completion; /edit puts the old message back for editing."""
    app = talk({"one": "1", "two": "2"})

    async def scenario(pilot: Pilot[None]) -> None:
        await pilot.press("slash", "f", "o")
        assert app.screen.query_one("#suggestions").display
        await pilot.press("tab")
        assert app.screen.query_one(Composer).text == "/fork "
        await say(pilot, "one")
        await wait_until(pilot, lambda: is_idle(app))
        await say(pilot, "/edit")
        assert app.screen.query_one(Composer).text == "one"
        await say(pilot, "two")
        await wait_until(pilot, lambda: is_idle(app))
        assert app.desk.chat is not None
        assert [turn.text for turn in app.desk.chat.path()] == ["two", "2"]

    drive(app, scenario)


def test_the_composer_takes_several_lines(talk: Talk, drive: Any, wait_until: Any) -> None:
    """Ctrl+J and a trailing backslash begin a line; up inside the text moves, at its top it recalls."""
    app = talk()

    async def scenario(pilot: Pilot[None]) -> None:
        composer = app.screen.query_one(Composer)
        await pilot.press("a", "ctrl+j", "b", "backslash", "enter", "c")
        assert composer.text == "a\nb\nc"
        await pilot.press("up")
        assert composer.text == "a\nb\nc"
        await pilot.press("enter")
        await wait_until(pilot, lambda: is_idle(app))
        assert app.desk.chat is not None
        assert app.desk.chat.path()[0].text == "a\nb\nc"
        await pilot.press("up")
        assert composer.text == "a\nb\nc"

    drive(app, scenario)


def test_a_paste_is_one_message(talk: Talk, drive: Any, wait_until: Any) -> None:
    """Forty pasted lines wait for Enter."""
    from textual import events

    app = talk()

    async def scenario(pilot: Pilot[None]) -> None:
        app.post_message(events.Paste("\r\n".join(f"line {n}" for n in range(40))))
        await pilot.pause()
        await pilot.press("enter")
        await wait_until(pilot, lambda: is_idle(app))
        assert app.desk.chat is not None
        assert len(app.desk.chat.path()) == 2
        assert app.desk.chat.path()[0].text.count("line") == 40

    drive(app, scenario)


def test_the_mouse_is_left_and_taken(talk: Talk, drive: Any) -> None:
    """/mouse switches at run time; another word is refused, and the line is kept."""
    app = talk()

    async def scenario(pilot: Pilot[None]) -> None:
        await say(pilot, "/mouse off")
        assert not app.has_mouse
        await say(pilot, "/mouse")
        assert app.has_mouse
        await say(pilot, "/mouse maybe")
        assert "cannot be 'maybe'" in shown(app)
        assert app.screen.query_one(Composer).text == "/mouse maybe"

    drive(app, scenario)


def test_a_selection_is_copied_and_stops_nothing(talk: Talk, drive: Any, wait_until: Any) -> None:
    """What the mouse has selected goes to the clipboard; the focus stays where it was."""
    app = talk({"a": "first words of the reply"})

    async def scenario(pilot: Pilot[None]) -> None:
        await say(pilot, "a")
        await wait_until(pilot, lambda: is_idle(app))
        block = app.screen.query_one(Transcript).query("Static").last()
        await pilot.mouse_down(block, offset=(0, 0))
        await pilot.hover(block, offset=(11, 0))
        await pilot.mouse_up(block, offset=(11, 0))
        await pilot.press("ctrl+c")
        assert app.clipboard.startswith("first words")
        assert app.is_running
        assert app.screen.query_one(Composer).has_focus

    drive(app, scenario)


def test_without_a_model_the_screen_says_so(open_app: Any, drive: Any) -> None:
    """There is nothing to talk with beside a trace."""
    app = open_app(Sources(), start="chat")

    async def scenario(pilot: Pilot[None]) -> None:
        assert isinstance(app.screen, ChatScreen)
        assert "no model to talk with" in shown(app)
        await say(pilot, "hello")
        await pilot.press("f3")

    drive(app, scenario)


def test_a_thought_is_carried_into_a_chat(
    talk: Talk, open_app: Any, drive: Any, wait_until: Any, scripted: ModuleType
) -> None:
    """The key begins a conversation with the question and the thoughts so far, on a context that shares their K/V."""
    from pie_mlx.search.params import SearchParams
    from pie_mlx.search.run import Run
    from pie_mlx.search.tasks.free import Free

    engine = scripted.start_engine(lambda _text: "think of it")
    bridge = Bridge(pace_s=0.0)
    run = Run(
        engine, Free("Why?", depth=2), SearchParams(max_tokens=12, answer_tokens=12, breadth=2), listen=bridge.offer
    )
    store = SessionStore(None)
    sources = Sources(engine=engine, run=run, open_chat=lambda: ChatSession.new(engine, store))
    app = open_app(sources, bridge=bridge)

    async def scenario(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: app.desk.story.is_over)
        await pilot.press("g", "j", "c")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatScreen) and app.screen.is_mounted)
        assert app.desk.chat is not None
        path = app.desk.chat.path()
        assert path[0].text == "Why?"
        assert path[1].text == app.desk.story.tree["0.0"].text
        await wait_until(pilot, lambda: "Why?" in shown(app))

    drive(app, scenario)
    engine.close()


def test_a_node_without_a_thought_opens_no_chat(
    talk: Talk, open_app: Any, drive: Any, wait_until: Any, scripted: ModuleType
) -> None:
    """At the root nobody has written anything: the key says so, and no empty turn comes of it."""
    from pie_mlx.search.params import SearchParams
    from pie_mlx.search.run import Run
    from pie_mlx.search.tasks.free import Free

    engine = scripted.start_engine(lambda _text: "think of it")
    bridge = Bridge(pace_s=0.0)
    run = Run(engine, Free("Why?", depth=2), SearchParams(max_tokens=12, breadth=2), listen=bridge.offer)
    store = SessionStore(None)
    app = open_app(Sources(engine=engine, run=run, open_chat=lambda: ChatSession.new(engine, store)), bridge=bridge)

    async def scenario(pilot: Pilot[None]) -> None:
        await wait_until(pilot, lambda: app.desk.story.is_over)
        await pilot.press("g", "c")
        await wait_until(pilot, lambda: any("no thought has been written" in n.message for n in app._notifications))
        assert not isinstance(app.screen, ChatScreen)
        assert app.desk.chat is None

    drive(app, scenario)
    engine.close()


@pytest.mark.parametrize("theme", ["pie-dark", "pie-light"])
@pytest.mark.parametrize("size", [(60, 16), (100, 30), (160, 50)])
def test_picture(
    size: tuple[int, int], theme: str, talk: Talk, drive: Any, *, wait_until: Any, compare: Any, at_rest: Any
) -> None:
    """Two turns, one of them generated anew, with a command being typed."""
    answers = {
        "What is a page?": "<think>A short answer will do.</think>A page is a run of slots.\n\n"
        "Two contexts may view one: [/x] sharing.",
        "And a fork?": "A fork copies no KV:\n\n    child = context.fork()",
    }
    app = talk(answers)
    app.theme = theme

    async def scenario(pilot: Pilot[None]) -> None:
        for line in ("What is a page?", "And a fork?", "/retry"):
            await say(pilot, line)
            await wait_until(pilot, lambda: is_idle(app))
        await pilot.press("slash", "s")
        screen = app.screen
        assert isinstance(screen, ChatScreen)
        assert app.desk.chat is not None
        app.desk.chat.last = None
        screen.query_one(Composer).cursor_blink = False
        screen._show_figures()
        await pilot.pause()
        await at_rest(app, pilot)
        compare(app, f"chat-{size[0]}x{size[1]}-{theme}")

    drive(app, scenario, size=size)
