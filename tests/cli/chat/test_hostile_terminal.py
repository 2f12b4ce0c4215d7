"""Text that wants to be obeyed, a killed program and a light terminal: the interactive chat, in a real terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pie_mlx.chat import SessionStore

Open = Callable[..., Any]
CLIPBOARD = "\x1b]52;c;QUFB\x07"
ESCAPES = (b"\x1b]52", b"\x1b[?1003h", b"\x1b]8;;", b"\x1b[2J")


def _obeyed(raw: bytes) -> list[bytes]:
    """Return what a terminal would have obeyed."""
    return [escape for escape in ESCAPES if escape in raw]


def test_marks_of_templates_and_markup_are_text(open_terminal: Open) -> None:
    """A reply of closing tags, template marks or many quote marks is shown, and the chat goes on."""
    terminal = open_terminal()
    terminal.prompt()
    # A reply that has just brought a `>` looks as the prompt does: wait for its text first.
    terminal.send("tags\r")
    terminal.expect("[/INST] [red] </s> <|eot_id|> [/x] \\[ end")
    terminal.prompt()
    terminal.send("quotes\r")
    terminal.wait_for(lambda: terminal.text().count(">") >= 600, "quote marks")
    terminal.prompt()
    terminal.say("still here")
    assert "you said: 'still here'" in terminal.text()
    assert terminal.leave() == 0


def test_a_hostile_message_is_never_obeyed(open_terminal: Open) -> None:
    """Escapes in a pasted message stay text: in the editor, the tree, the branch list and when it is undone."""
    terminal = open_terminal()
    terminal.prompt()
    terminal.send(f"\x1b[200~a{CLIPBOARD}\x1b[?1003h[red]b[/red]\x1b[201~")
    terminal.expect("b[/red]")
    terminal.send("\r")
    terminal.expect("you said")
    terminal.prompt()
    for command in ("/tree", "/switch", "/undo", "/switch main.2", "/stats"):
        terminal.say(command)
    assert _obeyed(terminal.raw) == []
    assert terminal.leave() == 0


def test_bytes_that_are_no_text_are_no_failure(open_terminal: Open) -> None:
    """What a paste of another encoding sends is shown as such; the chat goes on."""
    terminal = open_terminal()
    terminal.prompt()
    terminal.send_bytes(b"caf\xe9 \xff\r")
    terminal.expect("you said: 'caf")
    terminal.prompt()
    terminal.say("again")
    assert "you said: 'again'" in terminal.text()
    assert terminal.leave() == 0


def test_hostile_file_names_are_never_obeyed(open_terminal: Open, tmp_path: Path) -> None:
    """A file may have any name: it is attached, and told in clean text."""
    path = tmp_path / f"a{CLIPBOARD}[red].txt"
    path.write_text("content", encoding="utf-8")
    terminal = open_terminal(columns=200)
    terminal.prompt()
    terminal.send(f"\x1b[200~/file {path}\x1b[201~")
    terminal.expect("[red].txt")
    terminal.send("\r")
    terminal.expect("tokens)")
    terminal.prompt()
    terminal.say("look")
    terminal.say("/tree")
    assert "File a" in terminal.text()
    assert _obeyed(terminal.raw) == []
    assert terminal.leave() == 0


def test_hostile_session_names_are_never_obeyed(open_terminal: Open) -> None:
    """What is no printable name is refused, and the refusal does not repeat it raw."""
    terminal = open_terminal()
    terminal.prompt()
    terminal.say("hello")
    for command in ("/save", "/load", "/new", "/fork", "/model", "/export"):
        terminal.send(f"\x1b[200~{command} x{CLIPBOARD}\x1b[201~")
        terminal.expect(f"> {command} x")
        terminal.send("\r")
        terminal.prompt()
    assert _obeyed(terminal.raw) == []
    assert terminal.leave() == 0


def test_a_killed_chat_reopens_with_its_partial_reply(open_terminal: Open, environment: dict[str, str]) -> None:
    """After kill -9 in mid-reply the session says that its last reply is not complete."""
    terminal = open_terminal(FAKE_PAUSE_S="0.01")
    terminal.prompt()
    terminal.send("slow\r")
    terminal.wait_for(lambda: terminal.text().count("word") > 60, "reply")
    terminal.process.kill()
    terminal.process.wait()
    with SessionStore(Path(environment["PIE_MLX_STATE_DIR"]) / "chat.sqlite3") as store:
        turn = store.load(store.find("fake").id).current_path()[-1]
    assert turn.is_partial
    assert 5 < turn.text.count("word") < 400
    again = open_terminal()
    again.expect("the last reply is not complete")
    again.prompt()
    assert "> slow" in again.text(), "one sees where the conversation was left"
    assert again.text().count("word") == turn.text.count("word")
    again.say("/tree")
    assert "(partial)" in again.text()
    assert again.leave() == 0


def test_a_light_terminal_keeps_its_background(open_terminal: Open) -> None:
    """Code is coloured in the terminal's own dark colours; nothing is white, bright or has a background."""
    terminal = open_terminal(FAKE_THEME="light")
    terminal.prompt()
    before = len(terminal.raw)
    terminal.say("code")
    told = terminal.raw[before:]
    reply = told[told.index(b"Look:") : told.index(b"End.")]
    reply = re.sub(rb"\x1b\[37(;49)?m +\x1b\[0m", b"", reply)  # white space has no colour to be seen
    codes = {int(code) for group in re.findall(rb"\x1b\[([\d;]+)m", reply) for code in group.split(b";")}
    assert codes & set(range(31, 37)), "code has colours"
    assert codes & {37, 93, 97, 38, 48, *range(40, 48), *range(100, 108)} == set()
    assert terminal.leave() == 0
