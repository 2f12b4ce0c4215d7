"""Slash commands: one implementation for every front end."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.chat import ChatSession, SessionStore
from pie_mlx.chat.commands import COMMANDS, Call, Message, complete, describe, find_command, parse, run
from pie_mlx.chat.results import Copied, EditPrompt, Exported, Generating, Leave, Moved, Result, Said, TreeDrawn
from pie_mlx.engine import Engine
from pie_mlx.errors import InvalidParameter, ModelNotFound, PieError, UsageError

Say = Callable[[ChatSession, str], str]
Start = Callable[..., Engine]


def _run(session: ChatSession, line: str) -> Result:
    """Run a line that must be a command."""
    call = parse(line)
    assert isinstance(call, Call)
    return run(session, call)


def _said(session: ChatSession, line: str) -> str:
    """Run a command that answers with text."""
    result = _run(session, line)
    assert isinstance(result, Said | Moved)
    return result.text


@pytest.mark.parametrize(
    ("line", "parsed"),
    [
        ("hello", Message("hello")),
        ("//help", Message("/help")),
        ("/* a comment", Message("/* a comment")),
        ("/etc/hosts is a file", Message("/etc/hosts is a file")),
        ("/", Message("/")),
        ("C:\\new\\table", Message("C:\\new\\table")),
        ("/help", Call("help", "")),
        ("/?", Call("?", "")),
        ("/Fork  a ", Call("fork", "a")),
        ("/system two\nlines", Call("system", "two\nlines")),
        ("/file C:\\new\\table.txt", Call("file", "C:\\new\\table.txt")),
        (" /help", Message(" /help")),
    ],
)
def test_a_line_is_a_message_or_a_command(line: str, parsed: Message | Call) -> None:
    """A slash and a word is a command; two slashes, a path and any other text are said as they are."""
    assert parse(line) == parsed


@given(st.text())
def test_every_text_can_be_said(text: str) -> None:
    """Whatever a user wants to say, a second slash makes it a message."""
    assert parse("//" + text.removeprefix("/")) == Message("/" + text.removeprefix("/"))


def test_an_unknown_command_meets_the_nearest(session: ChatSession) -> None:
    """A typing error is answered with the command that was meant, and with the way to say it."""
    with pytest.raises(UsageError) as caught:
        _run(session, "/swich main")
    assert "did you mean /switch?" in str(caught.value.hint)
    assert "//swich" in str(caught.value.hint)


def test_help_lists_every_command_and_describes_one(session: ChatSession) -> None:
    """All commands of the surface are there."""
    text = _said(session, "/help")
    wanted = (
        "help new system model set fork switch tree undo retry edit save load export file stats pages copy search "
        "mouse quit"
    )
    assert [command.name for command in COMMANDS] == wanted.split()
    assert all(f"/{name}" in text for name in wanted.split())
    assert _said(session, "/help /fork").startswith("/fork [NAME]")
    assert "also /exit" in describe(find_command("q"))


def test_settings_are_shown_and_changed(session: ChatSession, store: SessionStore) -> None:
    """A change counts at once and is saved with the session; a wrong one changes nothing."""
    assert "temperature is 0.7" in _said(session, "/set temperature 0.7")
    assert "temperature is 0.2" in _said(session, "/set temp=0.2")
    with pytest.raises(InvalidParameter):
        _run(session, "/set temperature warm")
    assert session.settings.temperature == 0.2
    assert store.facts(session.facts.id).settings.temperature == 0.2
    assert "top_k" in _said(session, "/set")
    assert _said(session, "/set max-tokens") == "max_tokens is 512"


def test_the_system_text_is_set_shown_and_taken_away(session: ChatSession) -> None:
    """A dash takes it away; nothing shows it."""
    _said(session, "/system be brief\nplease")
    assert _said(session, "/system") == "be brief\nplease"
    _said(session, "/system -")
    assert session.system is None


def test_branches_are_made_listed_and_entered(session: ChatSession, say: Say) -> None:
    """/fork, /switch and /tree move in the tree and show where one is."""
    say(session, "one")
    assert isinstance(_run(session, "/fork idea"), Moved)
    say(session, "two")
    assert "● idea (2 turns)" in _said(session, "/switch")
    _run(session, "/switch main")
    drawn = _run(session, "/tree")
    assert isinstance(drawn, TreeDrawn)
    assert "● one → echo one  [main]" in [str(line) for line in drawn.lines]
    with pytest.raises(UsageError, match="already"):
        _run(session, "/fork idea")
    with pytest.raises(InvalidParameter):
        _run(session, "/fork two words")


def test_undo_retry_and_edit(session: ChatSession, say: Say) -> None:
    """Each names the branch that keeps the old turns; /edit alone offers the old text."""
    say(session, "one")
    assert _run(session, "/edit") == EditPrompt("one")
    edited = _run(session, "/edit uno")
    assert isinstance(edited, Generating)
    assert "".join(piece.answer for piece in edited.reply) == "echo uno"
    again = _run(session, "/retry")
    assert isinstance(again, Generating)
    list(again.reply)
    assert "main.4" in _said(session, "/undo")
    assert set(session.conversation.tree.branches) == {"main", "main.2", "main.3", "main.4"}
    with pytest.raises(UsageError):
        _run(session, "/undo")
    with pytest.raises(UsageError, match="takes no argument"):
        _run(session, "/retry now")


def test_new_and_load_change_the_session(session: ChatSession, say: Say) -> None:
    """The old conversation stays saved, an empty one vanishes, and a wrong name changes nothing."""
    say(session, "one")
    old = session.facts.name
    _run(session, "/new trip to Rome")
    assert session.facts.name == "trip to Rome"
    assert session.path() == []
    with pytest.raises(PieError):
        _run(session, "/load nowhere")
    _run(session, f"/load {old}")
    assert session.path()[-1].text == "echo one"
    assert "trip" not in _said(session, "/load")
    assert say(session, "two") == "echo two"


def test_files_go_with_the_next_message(session: ChatSession, say: Say, tmp_path: Path) -> None:
    """A file is fenced under its name, without byte order mark and carriage returns; then it is off again."""
    path = tmp_path / "my notes.py"
    path.write_bytes(b"\xef\xbb\xbfprint('h\xc3\xa9')\r\n```\r\n")
    assert "my notes.py" in _said(session, f'/file "{path}"')
    say(session, "explain")
    assert session.path()[0].text == "explain\n\nFile my notes.py:\n````\nprint('hé')\n```\n````"
    say(session, "more")
    assert session.path()[2].text == "more"
    _said(session, f"/file {str(path).replace(' ', chr(92) + ' ')}")
    assert len(session.attachments) == 1
    _said(session, "/file -")
    assert session.attachments == []


@pytest.mark.parametrize(("content", "why"), [(b"a\0b", "binary"), (b"\xff\xfe", "UTF-8"), (b"x" * 1_000_001, "limit")])
def test_a_file_that_is_no_text_is_refused(session: ChatSession, tmp_path: Path, content: bytes, why: str) -> None:
    """The refusal says what is wrong with the file; nothing is attached."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=why):
        _run(session, f"/file {path}")
    with pytest.raises(UsageError, match="folder"):
        _run(session, f"/file {tmp_path}")
    with pytest.raises(UsageError, match="no file"):
        _run(session, "/file /nowhere/at/all")
    assert session.attachments == []


def test_a_refused_message_keeps_its_attachments(session: ChatSession, tmp_path: Path) -> None:
    """When sending fails, the files are still attached for the next try."""
    path = tmp_path / "big.txt"
    path.write_text("w" * 100_000)
    _run(session, f"/file {path}")
    with pytest.raises(PieError):
        session.send("read this")
    assert len(session.attachments) == 1


def test_export_holds_every_branch_and_no_escape(start: Start, store: SessionStore, say: Say, tmp_path: Path) -> None:
    """Both forms tell all turns once; control characters are written out; a file is never overwritten."""
    with ChatSession.new(start({"evil": "\x1b[2J\x1b]52;c;AA\x07 [red]x[/red]"}), store, name="a/b c") as session:
        say(session, "evil")
        session.conversation.fork("side")
        say(session, "on the side")
        session.conversation.switch("main")
        say(session, "on main")
        path = tmp_path / "out.md"
        exported = _run(session, f"/export md {path}")
        assert isinstance(exported, Exported)
        text = path.read_text()
        assert "\x1b" not in text
        assert "\\x1b[2J" in text
        assert text.count("echo on the side") == text.count("echo on main") == text.count("## User [1]") == 1
        document = json.loads(_export_json(session, tmp_path))
        assert document["schema"] == "pie-mlx.chat/1"
        assert document["branches"].keys() == {"main", "side"}
        assert len(document["turns"]) == 6
        with pytest.raises(UsageError, match="exists"):
            _run(session, f"/export {path}")


def _export_json(session: ChatSession, folder: Path) -> str:
    """Export as JSON, the form told by the file's name."""
    path = folder / "out.json"
    _run(session, f"/export {path}")
    assert path.read_bytes().isascii()
    return path.read_text()


def test_export_chooses_a_plain_file_name(
    session: ChatSession, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session's name cannot lead out of the working folder."""
    monkeypatch.chdir(tmp_path)
    say(session, "one")
    session.rename("../../x y")
    exported = _run(session, "/export")
    assert isinstance(exported, Exported)
    assert exported.path == Path("x-y.md")


def test_copy_gives_the_reply_or_its_code(start: Start, store: SessionStore, say: Say) -> None:
    """The front end gets the text and the terminal's own sequence for it."""
    reply = "See:\n```python\nx = 1\n```\nor\n~~~\ny\n~~~\n"
    with ChatSession.new(start({"q": reply, "plain": "none"}), store) as session:
        with pytest.raises(UsageError):
            _run(session, "/copy")
        say(session, "q")
        copied = _run(session, "/copy")
        assert isinstance(copied, Copied)
        assert copied.text == reply
        assert copied.sequence == f"\x1b]52;c;{base64.b64encode(reply.encode()).decode()}\x07"
        assert _run(session, "/copy code") == Copied("y\n", "\x1b]52;c;eQo=\x07")
        say(session, "plain")
        with pytest.raises(UsageError, match="no code"):
            _run(session, "/copy code")


def test_a_text_too_long_for_a_terminal_has_no_sequence() -> None:
    """Terminals cut long sequences; the front end must know instead."""
    from pie_mlx.chat.clipboard import MAX_BYTES, osc52

    assert osc52("x" * MAX_BYTES) is not None
    assert osc52("x" * (MAX_BYTES + 1)) is None


def test_stats_and_pages_show_the_figures(session: ChatSession, say: Say) -> None:
    """The figures of the last reply and of the pool, before and after the first one."""
    assert "ctx 0/4,096 0 %" in _said(session, "/stats")
    say(session, "one")
    stats = _said(session, "/stats")
    assert "8 tokens in" in stats
    assert "ended by    stop" in stats
    pages = _said(session, "/pages")
    assert "of 512 pages held" in pages
    assert "main" in pages


def test_the_status_line_has_all_parts_and_fits_a_width(session: ChatSession, say: Say) -> None:
    """Parts are left out from the end until the rest fits."""
    from pie_mlx.chat.status import read_status

    say(session, "one")
    say(session, "two")
    status = read_status(session)
    line = status.line()
    for part in ("scripted", "ctx ", " %", "tok/s", "TTFT ", "prefix hit ", "pages ", "(shared "):
        assert part in line
    for width in (80, 40, 20, 5):
        assert len(status.line(width)) <= width
    assert status.line(20).startswith("ctx ")
    assert status.line(40).startswith("scripted · ctx ")
    assert status.line(len(line) - 1) == line.partition(" (shared")[0]


def test_quit_leaves(session: ChatSession) -> None:
    """Every name of it."""
    assert all(_run(session, line) == Leave() for line in ("/quit", "/exit", "/q", "/bye"))


def test_completion_offers_commands_branches_and_settings(session: ChatSession, say: Say) -> None:
    """What is typed decides what is offered; a message is never completed."""
    say(session, "one")
    session.conversation.fork("idea")

    def offered(line: str) -> list[str]:
        return [item.text for item in complete(session, line)]

    assert offered("/s") == ["/system", "/set", "/switch", "/save", "/stats", "/search"]
    assert offered("/switch i") == ["idea"]
    assert "temperature" in offered("/set ")
    assert offered("/set reasoning f") == ["reasoning fold"]
    assert offered("/load ch") == ["chat-1"]
    assert offered("/nothing x") == offered("hello") == offered("//s") == offered("/a\n/s") == []


def test_another_model_goes_on_with_the_conversation(start: Start, store: SessionStore, say: Say) -> None:
    """/model opens the new model first; one that fails to open changes nothing; the tokens are computed anew."""

    def open_model(name: str) -> Engine:
        if name == "missing":
            raise ModelNotFound(name, "there is no such model")
        return start(lambda text: f"{name} says {text}", name=name)

    with ChatSession.new(start(), store, open_model=open_model) as session:
        say(session, "one")
        with pytest.raises(ModelNotFound):
            _run(session, "/model missing")
        assert say(session, "two") == "echo two"
        old = session.engine
        assert "other" in _said(session, "/model other")
        assert not old.is_alive
        assert any("anew" in notice for notice in session.take_notices())
        assert say(session, "three") == "other says three"
        assert session.last is not None
        assert session.last.cached_tokens == 0
        assert [turn.model for turn in session.path()[1::2]] == ["scripted", "scripted", "other"]
        assert store.facts(session.facts.id).model == "other"


def test_a_front_end_that_cannot_open_models_says_so(session: ChatSession) -> None:
    """/model NAME is refused there, with the way that works."""
    with pytest.raises(UsageError, match="cannot be changed"):
        _run(session, "/model other")
