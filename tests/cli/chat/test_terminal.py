"""The interactive chat in a real terminal, on the scripted device."""

from __future__ import annotations

import base64
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pie_mlx.chat import SessionStore

Open = Callable[..., Any]
"""Starts the chat; returns the terminal of ``conftest.py``, which no test can import by name."""


def test_a_turn_is_answered_and_control_d_leaves(open_terminal: Open) -> None:
    """A message, its reply, the prompt again; Ctrl-D at an empty prompt ends with 0."""
    terminal = open_terminal()
    terminal.prompt()
    terminal.say("hello")
    assert terminal.text().count("you said: 'hello'") == 1
    assert terminal.leave() == 0


def test_hostile_replies_reach_the_terminal_as_text(open_terminal: Open) -> None:
    """No escape sequence of the model is obeyed, no markup is parsed."""
    terminal = open_terminal()
    terminal.prompt()
    before = len(terminal.raw)
    terminal.say("hostile")
    told = terminal.raw[before:]
    for escape in (b"\x1b]52", b"\x1b[?1003h", b"\x1b]8;;http"):
        assert escape not in told
    assert "[@click=app.quit]x[/]" in terminal.text()
    assert terminal.leave() == 0


def test_control_c_keeps_the_partial_reply_and_the_chat(open_terminal: Open) -> None:
    """Ctrl-C in the middle of a reply ends it alone; the next turn works."""
    terminal = open_terminal(FAKE_PAUSE_S="0.01")
    terminal.prompt()
    terminal.send("slow\r")
    terminal.expect("word word")
    terminal.send("\x03")
    terminal.prompt()
    assert 1 < terminal.text().count("word") < 400
    terminal.say("again")
    assert "you said: 'again'" in terminal.text()
    assert terminal.leave() == 0


def test_five_quick_control_cs_do_not_end_the_chat(open_terminal: Open) -> None:
    """However often it is pressed, it never leaves the program."""
    terminal = open_terminal(FAKE_PAUSE_S="0.01")
    terminal.prompt()
    terminal.send("slow\r")
    terminal.expect("word word")
    for _ in range(5):
        terminal.send("\x03")
        time.sleep(0.02)
    terminal.prompt()
    terminal.say("still here")
    assert "you said: 'still here'" in terminal.text()
    assert terminal.leave() == 0


def test_a_pasted_text_of_forty_lines_is_one_message(open_terminal: Open) -> None:
    """Bracketed paste keeps its line ends, whatever they were."""
    terminal = open_terminal()
    terminal.prompt()
    lines = "\r\n".join(f"row {number}" for number in range(40))
    terminal.send(f"\x1b[200~{lines}\x1b[201~")
    terminal.send("\r")
    terminal.expect("(40 lines)")
    terminal.prompt()
    assert terminal.leave() == 0


def test_a_long_reply_is_printed_once(open_terminal: Open) -> None:
    """A reply longer than the screen, with wide characters: every line stands there exactly once."""
    terminal = open_terminal(columns=80, rows=24)
    terminal.prompt()
    terminal.say("long 40")
    text = terminal.text()
    # The emulator does not show what follows a joined emoji, so the lines are known by their beginning.
    assert [text.count(f"line {number} 😀 你好") for number in range(40)] == [1] * 40
    assert terminal.leave() == 0


def _stored(environment: dict[str, str]) -> list[str]:
    """Return the texts of the current branch, as the session store has them."""
    with SessionStore(Path(environment["PIE_MLX_STATE_DIR"]) / "chat.sqlite3") as store:
        return [turn.text for turn in store.load(store.find("fake").id).current_path()]


def test_messages_are_edited_like_text(open_terminal: Open, environment: dict[str, str]) -> None:
    """Arrow keys move, also up into the line before; a line is added in four ways; backslashes are text."""
    terminal = open_terminal()
    terminal.prompt()
    terminal.say("ac\x1b[Db")
    for newline in ("\x1b\r", "\n", "\\\r", "\x1b[13;2u"):
        terminal.say(f"one{newline}two\x1b[A\x1b[F!")
    terminal.say("C:\\new\\table")
    terminal.say("it ends in `")
    terminal.send("dropped")
    terminal.expect("> dropped")
    terminal.send("\x03")
    terminal.prompt()
    terminal.say("\x1b[A\x1b[A")
    assert terminal.leave() == 0
    assert _stored(environment)[::2] == ["abc", *["one!\ntwo"] * 4, "C:\\new\\table", "it ends in `", "C:\\new\\table"]
    assert "^[[" not in terminal.text()


def test_a_paste_keeps_its_lines_whatever_their_ends(open_terminal: Open, environment: dict[str, str]) -> None:
    """CR, LF and CRLF are line ends; a pasted path is not an escape; nothing is sent before Enter."""
    terminal = open_terminal()
    terminal.prompt()
    for end in ("\r", "\n", "\r\n"):
        terminal.send(f"\x1b[200~a{end}C:\\new\\table{end}c\x1b[201~")
        terminal.expect(". c")
        terminal.say(" ")
    assert terminal.leave() == 0
    assert _stored(environment)[::2] == ["a\nC:\\new\\table\nc "] * 3


def test_control_c_stops_a_prefill(open_terminal: Open, environment: dict[str, str]) -> None:
    """While the prompt is read nothing has come yet, and Ctrl-C still gives the prompt back; the next turn works."""
    terminal = open_terminal(FAKE_PREFILL_S="0.25")
    terminal.prompt()
    terminal.send("x" * 2500 + "\r")
    terminal.expect("Ctrl-C stops")
    terminal.send("\x03")
    terminal.expect("stopped before the answer began")
    terminal.prompt()
    assert "Ctrl-C stops" not in terminal.text()
    terminal.say("hi")
    assert "you said: 'hi'" in terminal.text()
    assert terminal.leave() == 0


def test_a_signal_from_outside_stops_the_reply_only(open_terminal: Open) -> None:
    """SIGINT is Ctrl-C also when another program sends it; while a message is edited it does nothing."""
    terminal = open_terminal(FAKE_PAUSE_S="0.01")
    terminal.prompt()
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.send("slow\r")
    terminal.expect("word word word")
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.expect("stopped")
    terminal.prompt()
    assert terminal.leave() == 0


def test_control_d_stops_a_reply_and_a_second_one_leaves(open_terminal: Open, environment: dict[str, str]) -> None:
    """Ctrl-D in a reply stops it; pressed twice it also leaves, and the partial reply is saved."""
    terminal = open_terminal(FAKE_PAUSE_S="0.01")
    terminal.prompt()
    terminal.send("slow\r")
    terminal.expect("word word")
    terminal.send("\x04")
    terminal.expect("stopped")
    terminal.prompt()
    terminal.send("slow\r")
    terminal.wait_for(
        lambda: terminal.text().count("> slow") == 2 and terminal.text().rstrip().endswith("word"), "reply"
    )
    terminal.send("\x04\x04")
    assert terminal.end() == 0
    assert [len(text) < 2000 for text in _stored(environment)] == [True] * 4


def test_what_is_typed_ahead_waits_for_the_prompt(open_terminal: Open, environment: dict[str, str]) -> None:
    """Keys in a reply do not break it up, and become the beginning of the next message."""
    terminal = open_terminal(FAKE_PAUSE_S="0.01")
    terminal.prompt()
    terminal.send("slow\r")
    terminal.expect("word word")
    terminal.send("ahead\x1b[A")
    terminal.read(0.3)
    assert "ahead" not in terminal.text()
    terminal.send("\x03")
    terminal.expect("> ahead")
    terminal.send("\r")
    terminal.expect("you said: 'ahead'")
    terminal.prompt()
    assert terminal.leave() == 0


def test_every_line_is_there_once_after_a_resize(open_terminal: Open) -> None:
    """The window changes in mid-reply: no line is lost, none is doubled."""
    terminal = open_terminal(FAKE_PAUSE_S="0.001")
    terminal.prompt()
    terminal.send("long 40\r")
    terminal.expect("line 10 ")
    terminal.resize(60, 30)
    terminal.expect("line 20 ")
    terminal.resize(100, 30)
    terminal.expect("line 39 ")
    terminal.prompt()
    # The emulator forgets what a narrower window pushes out; what is there must be there once.
    assert all(terminal.text().count(f"line {number} ") <= 1 for number in range(40))
    assert terminal.leave() == 0


def test_twenty_columns_are_enough(open_terminal: Open) -> None:
    """A narrow window wraps everything and still works to the end."""
    terminal = open_terminal(columns=20, rows=8)
    terminal.prompt()
    terminal.say("long 6")
    assert [terminal.text().count(f"line {number} ") for number in range(6)] == [1] * 6
    for command in ("/tree", "/fork a-rather-long-branch-name", "/stats"):
        terminal.say(command)
    assert terminal.leave() == 0


def test_no_color_sends_no_colour(open_terminal: Open) -> None:
    """With NO_COLOR not one colour is set, for replies, commands and the editor."""
    terminal = open_terminal(NO_COLOR="1")
    terminal.prompt()
    for line in ("code", "think", "/tree"):
        terminal.say(line)
    assert terminal.leave() == 0
    codes = {code for group in re.findall(rb"\x1b\[([\d;]*)m", terminal.raw) for code in group.split(b";")}
    assert not codes & {str(code).encode() for code in (*range(30, 39), *range(40, 49), *range(90, 108))}


def test_a_stop_in_a_code_block_loses_nothing(open_terminal: Open, environment: dict[str, str]) -> None:
    """What is on the screen and what is saved are the same text, also in an open code block."""
    terminal = open_terminal(FAKE_PAUSE_S="0.002")
    terminal.prompt()
    terminal.send("open\r")
    terminal.expect("y = 2")
    terminal.send("\x03")
    terminal.expect("stopped")
    terminal.prompt()
    saved = _stored(environment)[1]
    assert terminal.text().count("y = 2") == saved.count("y = 2")
    assert terminal.leave() == 0


def test_an_idle_chat_writes_nothing(open_terminal: Open) -> None:
    """While nobody types, not one byte goes to the terminal; also while a completion is offered."""
    terminal = open_terminal()
    terminal.prompt()
    terminal.send("/s")
    terminal.expect("/switch")
    terminal.read(0.5)
    before = len(terminal.raw)
    time.sleep(1.0)
    terminal.read()
    assert len(terminal.raw) == before


def test_commands_move_in_the_tree_and_copy(open_terminal: Open, environment: dict[str, str]) -> None:
    """A retry, an edit of the old text, the tree, the clipboard, the status line and an unknown command."""
    terminal = open_terminal()
    terminal.prompt()
    terminal.say("hello")
    terminal.say("/copy")
    copied = base64.b64encode(b"you said: 'hello' (1 lines)")
    assert b"\x1b]52;c;" + copied + b"\x07" in terminal.raw
    terminal.send("/edit\r")
    terminal.expect("edit> hello")
    terminal.say(" world")
    assert _stored(environment)[0] == "hello world"
    terminal.say("/tree")
    assert "├─ ○ hello" in terminal.text()
    assert "● hello world" in terminal.text()
    terminal.send("/swich\r")
    terminal.expect("did you mean /switch?")
    terminal.prompt()
    terminal.say("/switch main.2")
    assert "main.2>" in terminal.text()
    terminal.expect("scripted · ctx ")
    terminal.send("/quit\r")
    assert terminal.end() == 0


def test_the_terminal_is_as_before_when_the_chat_ends(open_terminal: Open) -> None:
    """Echo, line editing and signals are on again and bracketed paste is off, after a normal end and after SIGTERM."""
    for way in ("leave", "term"):
        terminal = open_terminal(FAKE_PAUSE_S="0.01")
        modes = terminal.modes()
        terminal.prompt()
        if way == "leave":
            terminal.leave()
        else:
            terminal.send("slow\r")
            terminal.expect("word word")
            terminal.process.terminate()
            terminal.end()
        assert terminal.modes() == modes
        assert terminal.raw.rfind(b"\x1b[?2004l") > terminal.raw.rfind(b"\x1b[?2004h")
