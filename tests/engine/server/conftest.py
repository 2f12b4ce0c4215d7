"""Servers over the fake device on a free loopback port; each is drained, and its pool checked, when its test ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from pie_mlx.backend.base import Outcome, Sampled, Segment
from pie_mlx.backend.fake import FakeBackend, Faults
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.models.byte_text import byte_alphabet
from pie_mlx.models.tokenizer import Tokenizer
from pie_mlx.server.daemon import Daemon
from pie_mlx.server.settings import ServerSettings
from pie_mlx.server.shelf import Shelf

CONTROLS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>")
END = 257
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LETTERS = range(97, 123)


def make_tokenizer(template: str | None = CHATML) -> Tokenizer:
    """Return a tokenizer with one token a byte, and control tokens from 256 on."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {"id": 256 + at, "content": text, "special": "think" not in text, **flags}
            for at, text in enumerate(CONTROLS)
        ],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": dict(byte_alphabet()),
            "merges": [],
            "byte_fallback": False,
        },
    }
    config = {} if template is None else {"chat_template": template}
    return Tokenizer("fake", document, config, end_ids=frozenset({END}))


class LetterBackend(FakeBackend):
    """The fake device; it writes small letters, or ``reply`` and then the end. A step takes ``pause_s``."""

    def __init__(
        self, *, reply: str | None = None, pause_s: float = 0.0, faults: Faults | None = None, name: str = "fake"
    ) -> None:
        """Answer each prompt with ``reply`` where it is given."""
        super().__init__(vocab_size=260, context_tokens=4096, eos_ids=frozenset({END}), faults=faults)
        self._facts = replace(self._facts, model=name)
        self._script = None if reply is None else [*make_tokenizer().encode(reply, special=True), END]
        self._starts: dict[int, int] = {}
        self.pause_s = pause_s

    def step(self, segments: Any, foresee: Any = None) -> list[Outcome]:
        """Take the time that was asked for."""
        time.sleep(self.pause_s)
        return super().step(segments, foresee)

    def _answer(self, segment: Segment) -> Outcome:
        outcome = super()._answer(segment)
        allowed = getattr(segment.want, "allowed", None)
        if not isinstance(outcome, Sampled) or allowed is not None:
            return outcome
        if self._script is None:
            return Sampled(LETTERS[outcome.token % len(LETTERS)], outcome.logprob, outcome.top)
        position = segment.position + len(segment.tokens)
        at = position - self._starts.setdefault(segment.context, position)
        return Sampled(self._script[min(at, len(self._script) - 1)], outcome.logprob, outcome.top)


@dataclass
class Served:
    """A server that runs: its engine, its address, and a client."""

    engine: Engine
    daemon: Daemon
    http: httpx2.Client
    exit_codes: list[int]

    @property
    def url(self) -> str:
        """The server's address."""
        return self.daemon.url

    def chat(self, content: str = "hello", **fields: Any) -> httpx2.Response:
        """Ask for a chat completion."""
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}
        return self.http.post("/v1/chat/completions", json=body)

    def free_pages(self) -> int:
        """Return the pages that are free or only cached, once no context is left."""
        self.wait_until(lambda: not self.engine.readings().contexts)
        pages = self.engine.readings().pages
        return pages.free + pages.cached

    def wait_until(self, holds: Callable[[], bool], limit_s: float = 20.0) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < end, "the condition never held"
            time.sleep(0.005)


def events_of(response: httpx2.Response) -> list[dict[str, Any]]:
    """Return the JSON of every server-sent event; ``[DONE]`` is left out."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


StartServer = Callable[..., Served]


@pytest.fixture
def serve() -> Iterator[StartServer]:
    """Return a starter: ``serve(pages=…, backend=…, engine={…}, **server_settings)``."""
    with ExitStack() as stack:

        def start(
            *,
            pages: int = 256,
            backend: LetterBackend | None = None,
            tokenizer: Tokenizer | None = None,
            engine: dict[str, Any] | None = None,
            shelf: Shelf | None = None,
            **settings: Any,
        ) -> Served:
            device = backend or LetterBackend()
            given = EngineSettings.model_validate({"pool_pages": pages, "page_size": 16, **(engine or {})})
            own = Engine.start(lambda: device, given, tokenizer or make_tokenizer())
            stack.callback(own.close)
            daemon = Daemon(own, ServerSettings.model_validate({"port": 0, "drain_timeout_s": 5.0, **settings}), shelf)
            ready = threading.Event()
            codes: list[int] = []
            thread = threading.Thread(target=lambda: codes.append(daemon.run(ready.set)), daemon=True)
            thread.start()
            assert ready.wait(20), "the server never began"
            client = httpx2.Client(base_url=daemon.url, timeout=30.0)
            served = Served(own, daemon, client, codes)
            stack.callback(_end, served, thread)
            return served

        yield start


def _end(served: Served, thread: threading.Thread) -> None:
    """Drain a server, and see that it gave everything back."""
    served.http.close()
    served.daemon.stop()
    thread.join(20)
    assert not thread.is_alive(), "the server did not end"
    if served.engine.is_alive:
        served.wait_until(lambda: not served.engine.readings().contexts)
        served.engine.check()


@pytest.fixture
def backend() -> type[LetterBackend]:
    """Return the class of devices that write letters or a reply."""
    return LetterBackend


@pytest.fixture
def tokenizer_of() -> Callable[[str | None], Tokenizer]:
    """Return a function from a chat template to a tokenizer."""
    return make_tokenizer


@pytest.fixture
def events() -> Callable[[httpx2.Response], list[dict[str, Any]]]:
    """Return a function from a stream to its events."""
    return events_of
