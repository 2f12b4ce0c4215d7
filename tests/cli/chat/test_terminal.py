"""The interactive chat in a real terminal, on the scripted device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Terminal

Open = Callable[..., "Terminal"]


def test_first(open_terminal: Open) -> None:
    """x."""
    terminal = open_terminal()
    terminal.prompt()
    terminal.say("hello")
    terminal.say("code")
    print(terminal.text())
    terminal.say("hostile")
    print(terminal.text())
    assert terminal.leave() == 0
    assert 0
