"""What a terminal does between two prompts: a real pseudo-terminal, with a slow reader at its other end."""

from __future__ import annotations

import os
import pty
import select
import termios
from collections.abc import Iterator

import pytest

from pie_mlx.cli.chat.keyboard import Interrupts, Keyboard

_MORE_THAN_A_TERMINAL_TAKES_IN_AT_ONCE = 6_000


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """Yield the two ends of a pseudo-terminal: the emulator's and the program's."""
    emulator, program = pty.openpty()
    yield emulator, program
    os.close(program)
    os.close(emulator)


def _read_all(emulator: int) -> bytes:
    """Return what there is to be shown."""
    shown = b""
    while select.select([emulator], [], [], 0.3)[0]:
        shown += os.read(emulator, 65536)
    return shown


def test_control_c_drops_nothing_that_was_written(ends: tuple[int, int]) -> None:
    """What was written and not yet shown when Ctrl-C is pressed is shown all the same."""
    emulator, program = ends
    written = b"x" * _MORE_THAN_A_TERMINAL_TAKES_IN_AT_ONCE
    with Keyboard(program, Interrupts()).listening():
        assert os.write(program, written) == len(written)
        os.write(emulator, b"\x03k")
        assert select.select([program], [], [], 5.0)[0], "the key after Ctrl-C is there, so Ctrl-C was seen"
        assert _read_all(emulator) == written


def test_the_terminal_is_as_before_afterwards(ends: tuple[int, int]) -> None:
    """Every mode that was changed is changed back."""
    _emulator, program = ends
    before = termios.tcgetattr(program)
    with Keyboard(program, Interrupts()).listening():
        assert termios.tcgetattr(program) != before
    assert termios.tcgetattr(program) == before
