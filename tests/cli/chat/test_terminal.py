"""The interactive chat in a real terminal, on the scripted device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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
