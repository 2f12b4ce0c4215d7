"""Chat sessions on the scripted device."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pie_mlx.chat import ChatSession, SessionStore
from pie_mlx.engine import Engine


@pytest.fixture(scope="session")
def scripted() -> ModuleType:
    """Return the module of the scripted device."""
    path = Path(__file__).with_name("scripted.py")
    spec = importlib.util.spec_from_file_location("chat_scripted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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
