# ruff: noqa: INP001
"""A chat of 200 turns on the starter model: memory and latency by turn, then resuming it, without and with a snapshot.

Usage: python scripts/long_chat.py [TURNS [PAGES]]; a few minutes on a CPU. A small pool is a small context: the oldest
turns are then trimmed on the way. docs/chat.md has its figures.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pie_mlx
from pie_mlx.chat import ChatSession, ChatSettings, SessionStore
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.engine.completion import Completion
from pie_mlx.kv.snapshot import SnapshotStore

_NUM_TURNS = 200
_NUM_PAGES = 640
_SETTINGS = ChatSettings(max_tokens=4, temperature=0.7, seed=1)


def say(line: str) -> None:
    """Write a line."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def resident_mb() -> float:
    """Return the memory that this process holds now, in MB."""
    import resource

    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def take_turn(session: ChatSession, number: int) -> tuple[float, Completion]:
    """Say something; return the seconds until the reply was whole, and its figures."""
    began_s = time.perf_counter()
    with session.send(f"{number}: name a thing at sea") as reply:
        for _piece in reply:
            pass
    assert session.last is not None, "a reply leaves its figures"
    return time.perf_counter() - began_s, session.last


def talk(session: ChatSession, num_turns: int) -> None:
    """Hold the conversation; print a line for each tenth of it."""
    rows: list[tuple[float, Completion]] = []
    say("  turns     median s   TTFT ms   tok/s   prompt   computed   in use MB   RSS MB   pages held")
    for number in range(1, num_turns + 1):
        rows.append(take_turn(session, number))
        for notice in session.take_notices():
            if not notice.startswith("cut at"):
                say(f"  turn {number}: {notice}")
        if number % max(1, num_turns // 10) == 0:
            _tell(session, number, rows)
            rows.clear()


def _tell(session: ChatSession, number: int, rows: Sequence[tuple[float, Completion]]) -> None:
    """Print the medians of some turns."""
    import mlx.core as mx

    readings = session.engine.readings()
    figures = [figure for _seconds, figure in rows]
    first = statistics.median(figure.ttft_s or 0.0 for figure in figures)
    speed = statistics.median(figure.decode_tps or 0.0 for figure in figures)
    computed = statistics.median(figure.prompt_tokens - figure.cached_tokens for figure in figures)
    say(
        f"  {number - len(rows) + 1:>4}–{number:<4} {statistics.median(s for s, _ in rows):>9.2f} {1000 * first:>9.0f} "
        f"{speed:>7.1f} {figures[-1].prompt_tokens:>8,} {computed:>10.0f} {mx.get_active_memory() / 1e6:>11.0f} "
        f"{resident_mb():>8.0f} {readings.pages.held:>12,}"
    )


def resume(engine: Engine, store: SessionStore, snapshots: SnapshotStore | None) -> None:
    """Resume the session and say one thing; print what both took."""
    began_s = time.perf_counter()
    with ChatSession.resume(engine, store, "long", snapshots=snapshots) as session:
        opened_s = time.perf_counter() - began_s
        seconds, last = take_turn(session, 0)
        how = "without a snapshot" if snapshots is None else "with its snapshot"
        say(f"resumed {how} in {opened_s:.3f} s: {last.cached_tokens:,} of {last.prompt_tokens:,} tokens were there")
        say(f"  its next turn took {seconds:.2f} s, the first token {last.ttft_s or 0:.2f} s")


def main() -> None:
    """Run it."""
    num_turns = int(sys.argv[1]) if len(sys.argv) > 1 else _NUM_TURNS
    settings = EngineSettings(pool_pages=int(sys.argv[2]) if len(sys.argv) > 2 else _NUM_PAGES)
    with tempfile.TemporaryDirectory() as folder, SessionStore(Path(folder) / "chat.sqlite3") as store:
        snapshots = SnapshotStore(Path(folder) / "snapshots")
        began_s = time.perf_counter()
        with pie_mlx.open_engine(settings=settings) as engine:
            say(f"model loaded in {time.perf_counter() - began_s:.2f} s")
            with ChatSession.new(engine, store, name="long", settings=_SETTINGS, snapshots=snapshots) as session:
                talk(session, num_turns)
                began_s = time.perf_counter()
                saved = session.save()
                assert saved is not None, "a conversation has a context"
                say(f"snapshot of {saved.num_bytes / 1e6:.0f} MB saved in {time.perf_counter() - began_s:.2f} s")
        for found in (None, snapshots):
            began_s = time.perf_counter()
            with pie_mlx.open_engine(settings=settings) as engine:
                say(f"model loaded in {time.perf_counter() - began_s:.2f} s")
                resume(engine, store, found)


if __name__ == "__main__":
    main()
