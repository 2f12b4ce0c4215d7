"""Chat sessions on the scripted device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pie_mlx.chat import ChatSession, SessionStore
from pie_mlx.engine import Engine


@pytest.fixture(scope="session")
def scripted(load_module: Callable[[str, Path], ModuleType]) -> ModuleType:
    """Return the module of the scripted device."""
    return load_module("chat_scripted", Path(__file__).with_name("scripted.py"))


@pytest.fixture
def start(scripted: ModuleType) -> Iterator[Callable[..., Engine]]:
    """Return a function that starts scripted engines; each is checked and closed at the end."""
    with ExitStack() as stack:

        def make(*args: Any, **options: Any) -> Engine:
            engine: Engine = scripted.start_engine(*args, **options)
            stack.callback(engine.close)
            stack.callback(engine.check)
            return engine

        yield make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    """Return a store in a file of its own."""
    with SessionStore(tmp_path / "chat.sqlite3") as opened:
        yield opened


@pytest.fixture
def session(start: Callable[..., Engine], store: SessionStore) -> Iterator[ChatSession]:
    """Return a new session whose model echoes."""
    with ChatSession.new(start(), store) as opened:
        yield opened


@pytest.fixture
def say() -> Callable[[ChatSession, str], str]:
    """Return a function that sends a message and waits for the whole answer."""

    def send(session: ChatSession, text: str) -> str:
        return "".join(piece.answer for piece in session.send(text))

    return send
