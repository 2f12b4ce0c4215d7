"""What the tests of the workbench share: a run told by hand, engines over the fake device, and a way to drive it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from pie_mlx.backend.fake import FakeBackend, Faults
from pie_mlx.chat import ChatSession, SessionStore
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.search.node import NodeId, NodePages, Score, TokenCounts
from pie_mlx.search.trace import (
    AlarmRaised,
    Deduplicated,
    Event,
    Finished,
    FinishReason,
    Header,
    NodeDone,
    NodeStarted,
    Noticed,
    PagesRead,
    Pruned,
    RunStarted,
    Scored,
    Selected,
    Verdict,
)
from pie_mlx.search.tree import PoolCounts
from pie_mlx.tui.app import Workbench, make_app
from pie_mlx.tui.bridge import Bridge
from pie_mlx.tui.desk import Sources

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
    """A text model with one token a character; what it does not know becomes ``?``."""

    vocab_size = len(_ALPHABET)
    eos_ids: frozenset[int] = frozenset()
    think_markers = None
    has_chat_template = True

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Encode character by character."""
        return [_ALPHABET.index(char if char in _ALPHABET else "?") for char in text]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode."""
        return "".join(_ALPHABET[token] for token in ids)

    def stream(self) -> _Pieces:
        """Return a streaming decoder."""
        return _Pieces()

    def render(
        self, messages: Sequence[Any], *, add_generation_prompt: bool = True, thinking: bool | None = None
    ) -> list[int]:
        """Render ``role: content`` lines."""
        text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        return self.encode(text + ("assistant: " if add_generation_prompt else ""))


@pytest.fixture
def start_engine() -> Iterator[Callable[..., Engine]]:
    """Start engines over the fake device; all are closed afterwards."""
    engines: list[Engine] = []

    def start(pool_pages: int = 128, *, faults: Faults | None = None, **settings: Any) -> Engine:
        engine = Engine.start(
            lambda: FakeBackend(vocab_size=CharText.vocab_size, faults=faults, context_tokens=1 << 16),
            EngineSettings(pool_pages=pool_pages, page_size=8, **settings),
            CharText(),
        )
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.close()


class Teller:
    """Tells a run's events with times of its own."""

    def __init__(self) -> None:
        """Begin at second 0."""
        self.events: list[Event] = []
        self.t_ns = 0

    def tell(self, event: Event, *, after_s: float = 0.05) -> None:
        """Let an event happen ``after_s`` seconds after the last."""
        self.t_ns += round(after_s * 1e9)
        self.events.append(replace(event, seq=len(self.events) + 1, t_ns=self.t_ns))

    def thought(self, node: str, text: str, value: float | None, **facts: Any) -> None:
        """Write and score a node."""
        here = NodeId(node)
        self.tell(NodeStarted(node=here, seed=len(self.events)))
        facts.setdefault("pages", NodePages(4 + node.count("."), 3))
        facts.setdefault("tokens", TokenCounts(96 + 8 * node.count("."), 90, 12 + len(text) % 9))
        self.tell(NodeDone(node=here, text=text, **facts), after_s=0.21)
        if value is not None:
            labels = {"sure": value, "likely": (1 - value) * 0.7, "impossible": (1 - value) * 0.3}
            self.tell(Scored(node=here, score=Score(value, "label", 0.93, labels)))


HEADER = Header(run="run1", model="smollm2-135m", revision="abc", seed=7, task="game24", params={"breadth": 3})


def told_run() -> list[Event]:
    """Return the events of a small search with everything in it that can happen to a node."""
    teller = Teller()
    teller.tell(
        RunStarted(question="Use 4, 6, 6 and 10 once each to reach 24.", strategy="beam", scorer="label"), after_s=0
    )
    teller.tell(NodeStarted(node=NodeId("0"), seed=7))
    teller.tell(NodeDone(node=NodeId("0"), tokens=TokenCounts(96, 0, 0), pages=NodePages(6, 6)))
    teller.tell(PagesRead(pool=PoolCounts(58, 6, 0, 0, viewed=6)))
    teller.thought("0.0", "10 - 4 = 6 (left: 6 6 6)", 0.82)
    teller.thought("0.1", "6 + 6 = 12 (left: 4 10 12)", 0.41)
    teller.thought("0.2", "6 / 4 = 3/2 (left: 3/2 6 10), which needs a fraction on the way", 0.12)
    teller.tell(PagesRead(pool=PoolCounts(40, 12, 10, 2, viewed=44)))
    teller.tell(Pruned(node=NodeId("0.2"), freed_pages=3, reason="below the beam"))
    teller.tell(Selected(nodes=(NodeId("0.0"), NodeId("0.1"))))
    teller.thought("0.0.0", "6 + 6 = 12 (left: 6 12)", 0.74)
    teller.thought("0.0.1", "6 * 6 = 36 (left: 6 36)", 0.55)
    teller.thought("0.0.2", "6 x 6 is about 30, so", None, verdict=Verdict.UNPARSED, reason="no move in the line")
    teller.thought("0.1.0", "12 - 10 = 2 (left: 2 4)", 0.36)
    teller.thought("0.1.1", "10 - 4 = 6 (left: 6 12)", None, key="6 12")
    teller.tell(Deduplicated(node=NodeId("0.1.1"), duplicate_of=NodeId("0.0.0"), freed_pages=2))
    teller.thought("0.1.2", "", None, error="starved: request 9 waited for 4 pages with 1 free of 64")
    teller.tell(PagesRead(pool=PoolCounts(12, 24, 24, 4, viewed=131)))
    teller.tell(
        AlarmRaised(kind="starved", message="request 9 waited for 4 pages with 1 free of 64: 0.1 and 0.0 hold 40")
    )
    teller.tell(Noticed(text="fewer branches at a time: 2 instead of 3"))
    teller.tell(Selected(nodes=(NodeId("0.0.0"), NodeId("0.0.1"))))
    teller.thought("0.0.0.0", "6 + 12 = 18", 0.08, terminal=True)
    teller.thought("0.0.0.1", "12 + 12 = 24? no: 6 + 12 = 18", None, terminal=True)
    teller.tell(Scored(node=NodeId("0.0.0.1"), score=Score(None, "label", 0.11, {"sure": 0.4, "likely": 0.6})))
    teller.thought("0.0.1.0", "36 - 6 = 30", 0.05, terminal=True)
    teller.thought("0.0.1.1", "(10 - 4) * 6 - 6 - 6 = 24\nAnswer: 24", 0.97, terminal=True)
    teller.tell(PagesRead(pool=PoolCounts(22, 18, 20, 4, viewed=118)))
    teller.tell(
        Finished(reason=FinishReason.ANSWER, answer="(10 - 4) * 6 - 6 - 6 = 24", solved=True, node=NodeId("0.0.1.1"))
    )
    return teller.events


@pytest.fixture
def run_events() -> list[Event]:
    """Return the events of the run told by hand."""
    return told_run()


def write_trace(path: Path, events: Sequence[Event], header: Header = HEADER) -> Path:
    """Write events as a trace file, with their own times."""
    lines = [json.dumps(header.to_json()), *(json.dumps(event.to_json()) for event in events)]
    path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return path


@pytest.fixture
def trace_file(tmp_path: Path, run_events: list[Event]) -> Path:
    """Return the run told by hand as a file."""
    return write_trace(tmp_path / "run1.jsonl", run_events)


Scenario = Callable[[Pilot[None]], Awaitable[None]]
Drive = Callable[..., None]


async def settle(app: Workbench, pilot: Pilot[None]) -> None:
    """Wait until nothing is on its way: neither in the bridge nor in a widget's queue."""

    def is_reading() -> bool:
        return app.reader is not None and app.reader.is_alive() and not app.desk.sources.live

    await until(pilot, lambda: not is_reading() and app.desk.bridge.is_quiet)
    for _ in range(3):  # a widget's message, what follows from it on another widget, and the drawing
        await pilot.pause()


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    for _ in range(2000):
        await pilot.pause()
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came to hold")


@pytest.fixture
def drive() -> Drive:
    """Return what runs an app without a terminal and lets a scenario press its keys."""

    def run(app: Workbench, scenario: Scenario, *, size: tuple[int, int] = (100, 30)) -> None:
        async def main() -> None:
            async with app.run_test(size=size) as pilot:
                await settle(app, pilot)
                await scenario(pilot)

        asyncio.run(main())

    return run


def quick_app(sources: Sources, **more: Any) -> Workbench:
    """Return a workbench whose bridge does not pause between batches."""
    more.setdefault("bridge", Bridge(pace_s=0.0))
    return make_app(sources, **more)


@pytest.fixture
def open_app() -> Callable[..., Workbench]:
    """Return :func:`quick_app`."""
    return quick_app


@pytest.fixture
def wait_until() -> Callable[..., Awaitable[None]]:
    """Return :func:`until`."""
    return until


@pytest.fixture
def at_rest() -> Callable[..., Awaitable[None]]:
    """Return :func:`settle`."""
    return settle


@pytest.fixture
def save_trace() -> Callable[..., Path]:
    """Return :func:`write_trace`."""
    return write_trace


@pytest.fixture
def new_teller() -> type[Teller]:
    """Return :class:`Teller`."""
    return Teller


_SCRIPTED = Path(__file__).parents[1] / "engine" / "chat" / "scripted.py"


@pytest.fixture(scope="module")
def scripted(load_module: Callable[[str, Path], ModuleType]) -> ModuleType:
    """Return the device that answers from a script, which the chat's own tests talk to."""
    return load_module("tui_scripted", _SCRIPTED)


@pytest.fixture
def talk(scripted: ModuleType, open_app: Any) -> Iterator[Callable[..., Workbench]]:
    """Open the chat screen on a scripted model."""
    engines: list[Engine] = []

    def start(answers: Any = None, **backend: Any) -> Workbench:
        engine = scripted.start_engine(answers, **backend)
        engines.append(engine)
        store = SessionStore(None)
        app: Workbench = open_app(
            Sources(engine=engine, open_chat=lambda: ChatSession.new(engine, store, name="demo")),
            start="chat",
            bridge=Bridge(pace_s=0.02),
        )
        return app

    yield start
    for engine in engines:
        engine.close()


_SNAPSHOTS = Path(__file__).parent / "snapshots"


def compare_picture(app: Workbench, name: str, folder: Path) -> None:
    """Compare the screen with the stored picture of this name."""
    # The ids in the picture are checksums of its content, of no use to a reader of a diff.
    shot = re.sub(r"terminal-\d+", "terminal", app.export_screenshot(title="pie-mlx"))
    path = _SNAPSHOTS / f"{name}.svg"
    if os.environ.get("NEW_SNAPSHOTS"):
        _SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(shot, encoding="utf-8")
    assert path.is_file(), f"there is no snapshot {name}: write it with NEW_SNAPSHOTS=1 and look at it"
    if shot != path.read_text(encoding="utf-8"):
        wrong = folder / path.name
        wrong.write_text(shot, encoding="utf-8")
        pytest.fail(f"{name} has changed: compare {path} with {wrong}")


@pytest.fixture
def compare(tmp_path: Path) -> Callable[[Workbench, str], None]:
    """Return what compares the screen with a stored picture; a wrong one is left in the test's own folder."""
    return lambda app, name: compare_picture(app, name, tmp_path)
