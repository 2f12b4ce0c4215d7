"""What the tests of running searches share: a text model of single characters, and engines over the fake device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pie_mlx.backend.fake import FakeBackend, Faults
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.models.tokenizer import Message

_ALPHABET = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;!?'\"()+-*/=<>|_%&#[]{}@$^~`\\"


class _Pieces:
    """Decodes one character a token."""

    def push(self, token: int) -> str:
        """Return the token's character."""
        return _ALPHABET[token]

    def finish(self) -> str:
        """Hold nothing back."""
        return ""


class CharText:
    """A tokenizer with one token a character; what it does not know becomes ``?``."""

    vocab_size = len(_ALPHABET)
    eos_ids: frozenset[int] = frozenset()

    def __init__(self, markers: tuple[str, str] | None = None) -> None:
        """Make one; ``markers`` makes it the tokenizer of a thinking model."""
        self.think_markers = markers
        self.has_chat_template = True

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Encode character by character."""
        return [max(_ALPHABET.find(char), 0) if char in _ALPHABET else _ALPHABET.index("?") for char in text]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode."""
        return "".join(_ALPHABET[token] for token in ids)

    def stream(self) -> _Pieces:
        """Return a streaming decoder."""
        return _Pieces()

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, thinking: bool | None = None
    ) -> list[int]:
        """Render ``role: content`` lines."""
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return self.encode(text + ("assistant: " if add_generation_prompt else ""))


StartEngine = Callable[..., Engine]


@pytest.fixture
def start_engine() -> Iterator[StartEngine]:
    """Start engines over the fake device; all are checked and closed afterwards."""
    engines: list[Engine] = []

    def start(
        pool_pages: int = 512,
        page_size: int = 16,
        *,
        faults: Faults | None = None,
        text: CharText | None = None,
        **settings: Any,
    ) -> Engine:
        codec = text or CharText()
        engine = Engine.start(
            lambda: FakeBackend(vocab_size=codec.vocab_size, faults=faults, context_tokens=1 << 16),
            EngineSettings(pool_pages=pool_pages, page_size=page_size, **settings),
            codec,
        )
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        if engine.is_alive:
            engine.check()
        engine.close()


@pytest.fixture
def char_text() -> type[CharText]:
    """Return the class of one-character tokenizers."""
    return CharText
