# ruff: noqa: INP001
"""Measures the workbench in a real pseudo-terminal: opening, keys, keys beside a prefill, idling, and a long session.

Usage: python scripts/tui_bench.py [open] [keys] [prefill] [idle] [soak]; all without an argument, a few minutes on a
CPU. ``prefill`` needs the starter model (pie-mlx pull smollm2-135m). docs/tui.md has its figures.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import importlib.util
import json
import os
import pty
import random
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pie_mlx.search.node import NodeId, NodePages, Score, TokenCounts
from pie_mlx.search.trace_events import Event, Finished, FinishReason, Header, NodeDone, NodeStarted, RunStarted, Scored

NODES = 100_000
PRESSES = 100
PREFILL_TOKENS = 2_000
IDLE_S = 20.0
MESSAGES, SOAK_NODES = 500, 5_000
CURSOR = "❯".encode()
WORDS = "one word after another"
PATIENCE_S = 60.0


def say(line: str) -> None:
    """Write a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# --- traces ---------------------------------------------------------------------------------------


def told(number: int) -> Iterator[Event]:
    """Yield the events of a tree of ``number`` nodes, ten children each."""
    draw, level, made = random.Random(7), ["0"], 1  # noqa: S311  a trace, not a secret
    yield RunStarted(question="How many?", strategy="beam", scorer="label")
    yield from _node("0", "", None)
    while made < number:
        below: list[str] = []
        for parent in level:
            for child in range(min(10, number - made)):
                name = f"{parent}.{child}"
                yield from _node(name, f"thought {made} about {draw.random():.4f} and what follows", draw.random())
                below.append(name)
                made += 1
        level = below
    yield Finished(reason=FinishReason.ANSWER, answer="many")


def _node(name: str, text: str, value: float | None) -> Iterator[Event]:
    """Yield the events of one node."""
    here = NodeId(name)
    yield NodeStarted(node=here, seed=3)
    yield NodeDone(node=here, text=text, tokens=TokenCounts(100, 90, 14), pages=NodePages(6, 4))
    if value is not None:
        yield Scored(node=here, score=Score(value, "label", 0.9, {"yes": value, "no": 1 - value}))


def write_trace(path: Path, number: int) -> None:
    """Write a trace of ``number`` nodes."""
    header = Header(run="bench", model="none", revision="", seed=7, task="free")
    with path.open("w", encoding="ascii") as file:
        file.write(json.dumps(header.to_json()) + "\n")
        for seq, event in enumerate(told(number), start=1):
            file.write(
                json.dumps({**event.to_json(), "seq": seq, "t_ns": seq * 1_000_000}, separators=(",", ":")) + "\n"
            )


# --- a terminal -----------------------------------------------------------------------------------


class Terminal:
    """A program in a pseudo-terminal of 140 by 42."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it."""
        self.master, slave = pty.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 42, 140, 0, 0))
        self.began_s = time.perf_counter()
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
        )
        os.close(slave)
        self.raw = b""

    def read(self, wait_s: float) -> bytes:
        """Return what comes within ``wait_s`` seconds."""
        if not select.select([self.master], [], [], wait_s)[0]:
            return b""
        try:
            piece = os.read(self.master, 1 << 16)
        except OSError:  # the program has ended, and its side of the terminal with it
            return b""
        self.raw = (self.raw + piece)[-(1 << 20) :]
        return piece

    def until(self, wanted: bytes, limit_s: float = 300.0) -> float:
        """Read until ``wanted`` has come; return the seconds since the start."""
        end = time.perf_counter() + limit_s
        while wanted not in self.raw:
            self.read(0.05)
            if self.process.poll() is not None:
                raise RuntimeError(f"the program has ended: {self.raw[-2000:]!r}")
            if time.perf_counter() > end:
                raise TimeoutError(f"{wanted!r} never came")
        return time.perf_counter() - self.began_s

    def quiet(self, for_s: float) -> int:
        """Read until nothing has come for a while; return how many bytes came."""
        count = 0
        while piece := self.read(for_s):
            count += len(piece)
        return count

    def press(self, key: str, wanted: bytes = CURSOR, limit_s: float = 10.0) -> float:
        """Press a key; return the seconds until what it draws has come."""
        self.raw = b""
        began = time.perf_counter()
        os.write(self.master, key.encode())
        while wanted not in self.raw and time.perf_counter() - began < limit_s:
            self.read(0.5)
        return time.perf_counter() - began

    def cpu_s(self) -> float:
        """Return the processor seconds that the program has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """End the program."""
        self.process.send_signal(signal.SIGTERM)
        while self.process.poll() is None:
            self.read(0.1)
        os.close(self.master)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    """Run this script's child, or pie-mlx, in a terminal."""
    program = Terminal([sys.executable, *arguments])
    try:
        yield program
    finally:
        program.end()


def figures(name: str, seconds: list[float]) -> None:
    """Write median, p95 and maximum in milliseconds."""
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    ms = [1e3 * value for value in (statistics.median(ordered), p95, ordered[-1])]
    say(f"{name:<34} median {ms[0]:6.1f} ms   p95 {ms[1]:6.1f} ms   max {ms[2]:6.1f} ms   n {len(ordered)}")


def press_many(name: str, program: Terminal, keys: str) -> None:
    """Press keys one after another, each once all frames of the one before have come; write what they took.

    Processor time says what a key costs where other programs keep the machine busy.
    """
    out, before = [], program.cpu_s()
    for at in range(PRESSES):
        program.quiet(0.05)
        out.append(program.press(keys[at % len(keys)]))
    figures(name, out)
    say(f"{'':<34} processor {1e3 * (program.cpu_s() - before) / PRESSES:.1f} ms a key, the engine's included")


# --- the measurements -----------------------------------------------------------------------------


def measure_opening(trace: Path) -> None:
    """Open the large trace, then move, page, and jump in it."""
    with terminal("-m", "pie_mlx", "tot", "view", str(trace)) as program:
        start = program.until(b"\x1b[?1049h")
        first = program.until(b"thoughts")
        whole = program.until(f"{NODES} thoughts".encode())
        words = f"first rows after {first - start:.2f} s, all after {whole - start:.2f} s"
        say(f"open {NODES:,} nodes: {words}, {program.cpu_s():.2f} s of processor since the program began")
        program.quiet(1.0)
        press_many("j, down a row", program, "j")
        press_many("page down and up", program, "\x04\x15")
        press_many("to the end and the beginning", program, "Gg")
        press_many("fold and unfold", program, "hl")
        press_many("one event back and forward", program, "[]")


def measure_prefill(trace: Path) -> None:
    """Press keys while the engine prefills without a pause."""
    with terminal(__file__, "--beside-prefill", str(trace)) as program:
        program.until(b"1000 thoughts")
        press_many("j, engine idle", program, "jk")
        program.process.send_signal(signal.SIGUSR1)
        time.sleep(2.0)
        press_many(f"j, beside a prefill of {PREFILL_TOKENS:,}", program, "jk")


def measure_idle(trace: Path) -> None:
    """Let each kind of screen stand, and see what it writes and costs."""
    for name, command in (
        ("a trace", ("-m", "pie_mlx", "tot", "view", str(trace))),
        ("an idle engine", (__file__, "--idle-engine")),
    ):
        with terminal(*command) as program:
            program.until(b"help")
            program.quiet(3.0)
            before, began = program.cpu_s(), time.perf_counter()
            count = 0
            while time.perf_counter() - began < IDLE_S:
                count += len(program.read(0.5))
            share = (program.cpu_s() - before) / (time.perf_counter() - began)
            say(f"idle over {name}: {share:.2%} of a processor, {count} bytes written in {IDLE_S:.0f} s")


def fake_engine() -> Any:
    """Start an engine on the device that the chat's tests talk to: it answers each message with some words."""
    path = Path(__file__).parents[1] / "tests" / "engine" / "chat" / "scripted.py"
    spec = importlib.util.spec_from_file_location("tui_bench_scripted", path)
    assert spec is not None, "the file is there"
    assert spec.loader is not None, "it is a module"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.start_engine(lambda text: f"{text}: {WORDS}", pool_pages=4096, context_tokens=1 << 18)


def held() -> tuple[float, int, int, int]:
    """Return resident MB, open files, threads and tasks."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
    return resident, len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), len(asyncio.all_tasks())


async def _until(holds: Callable[[], bool]) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: it never came to hold.
    """
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  what is waited for happens on other threads
            await asyncio.sleep(0.002)


async def _soak() -> None:
    """Send messages and tell nodes, and write what is held at each fifth."""
    from pie_mlx.chat import ChatSession, ChatSettings, SessionStore
    from pie_mlx.tui.app import make_app
    from pie_mlx.tui.bridge import Bridge
    from pie_mlx.tui.desk import Sources
    from pie_mlx.tui.widgets.chat.composer import Composer

    say("soak             RSS MB   files   threads   tasks")
    with fake_engine() as engine, tempfile.TemporaryDirectory() as folder:
        store = SessionStore(Path(folder) / "sessions.db")
        settings = ChatSettings(max_tokens=64)
        sources = Sources(engine=engine, open_chat=lambda: ChatSession.new(engine, store, settings=settings))
        app = make_app(sources, bridge=Bridge(pace_s=0.05), start="chat")
        events = list(told(SOAK_NODES))
        async with app.run_test(size=(140, 42)) as pilot:
            for number in range(MESSAGES + 1):
                if number % (MESSAGES // 5) == 0:
                    say(f"{number:>4} messages    " + "{:7.1f} {:7} {:9} {:7}".format(*held()))
                composer = app.screen.query_one(Composer)
                composer.load_text(f"message {number}")
                composer.action_send()
                await pilot.pause()
                await _until(lambda: app.desk.chat is not None and app.desk.chat.reply is None)
                await _until(lambda: app.desk.bridge.is_quiet)
            await pilot.press("f3")
            for at in range(0, len(events), 100):
                app.desk.bridge.offer_many(events[at : at + 100])
                await _until(lambda: app.desk.bridge.is_quiet)
                if at // 100 % 30 == 0:
                    say(f"{len(app.desk.story.tree):>5} nodes      " + "{:7.1f} {:7} {:9} {:7}".format(*held()))


def beside_prefill(trace: Path) -> None:
    """Show a trace beside an engine that, at a signal, prefills without a pause."""
    import pie_mlx
    from pie_mlx.tui.app import make_app
    from pie_mlx.tui.desk import Sources

    go = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: go.set())
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with pie_mlx.open_engine("smollm2-135m") as engine:

        def prefill() -> None:
            go.wait()
            draw = random.Random(1)  # noqa: S311  tokens, not a secret
            while True:
                with engine.context([draw.randrange(1, 40_000) for _ in range(PREFILL_TOKENS)]) as context:
                    context.prefill().result()

        threading.Thread(target=prefill, daemon=True).start()
        make_app(Sources(engine=engine, trace=trace)).run()


def idle_engine() -> None:
    """Show an engine that does nothing."""
    from pie_mlx.tui.app import make_app
    from pie_mlx.tui.desk import Sources

    with fake_engine() as engine:
        make_app(Sources(engine=engine), start="engine").run()


def main(wanted: list[str]) -> None:
    """Run what was asked for."""
    if wanted[:1] == ["--beside-prefill"]:
        beside_prefill(Path(wanted[1]))
        return
    if wanted[:1] == ["--idle-engine"]:
        idle_engine()
        return
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "large.jsonl", Path(folder) / "small.jsonl"
        write_trace(small, 1_000)
        if not wanted or "keys" in wanted or "open" in wanted:
            write_trace(large, NODES)
            measure_opening(large)
        if not wanted or "prefill" in wanted:
            measure_prefill(small)
        if not wanted or "idle" in wanted:
            measure_idle(small)
        if not wanted or "soak" in wanted:
            asyncio.run(_soak())


if __name__ == "__main__":
    main(sys.argv[1:])
