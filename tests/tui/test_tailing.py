"""A trace is read while it is being written, and what is wrong with it is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from pie_mlx.search.errors import TraceError
from pie_mlx.search.trace import Event, read_trace
from pie_mlx.tui.desk import Sources
from pie_mlx.tui.tailing import TraceLines


def test_pieces_of_any_size_give_what_the_whole_gives(trace_file: Path) -> None:
    """However a file is cut, its lines say the same as read at once."""
    content, wanted = trace_file.read_bytes(), read_trace(trace_file)

    @given(st.lists(st.integers(0, len(content)), max_size=30))
    def check(cuts: list[int]) -> None:
        lines = TraceLines(trace_file)
        edges = [0, *sorted(cuts), len(content)]
        events: list[Event] = []
        headers = []
        for low, high in pairwise(edges):
            more, header = lines.take(content[low:high])
            events += more
            headers += [header] if header is not None else []
        assert tuple(events) == wanted.events
        assert headers == [wanted.header]
        assert lines.is_over

    check()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda lines: [*lines[:4], "{broken", *lines[4:]], 5),
        (lambda lines: [*lines[:4], *lines[5:]], 5),
        (lambda lines: [*lines, lines[-1].replace(f'"seq": {len(lines) - 1}', f'"seq": {len(lines)}')], None),
        (lambda _lines: ['{"schema": "other"}'], 1),
    ],
)
def test_a_damaged_line_is_named(change: Callable[[list[str]], list[str]], line: int | None, trace_file: Path) -> None:
    """Broken JSON, a gap, an event behind the finish, a foreign header: refused, with the line's number."""
    lines = change(trace_file.read_text().splitlines())
    with pytest.raises(TraceError) as refused:
        TraceLines(trace_file).take(("\n".join(lines) + "\n").encode())
    assert f":{line or len(lines)}: " in refused.value.message


def test_a_growing_trace_is_followed_to_its_end(
    trace_file: Path, tmp_path: Path, open_app: Any, drive: Any, wait_until: Any
) -> None:
    """A file that is not there yet is waited for; half a line waits for its rest."""
    content = trace_file.read_bytes()
    growing = tmp_path / "growing.jsonl"
    app = open_app(Sources(trace=growing, live=True))

    async def scenario(pilot: Pilot[None]) -> None:
        assert len(app.desk.story.tree) == 0
        half = content.index(b"\n", len(content) // 2) + 40
        with growing.open("wb") as file:
            file.write(content[:half])
            file.flush()
            await wait_until(pilot, lambda: len(app.desk.story.tree) > 3)
            assert not app.desk.story.is_over
            file.write(content[half:])
            file.flush()
            await wait_until(pilot, lambda: app.desk.story.is_over)
        assert app.reader is not None
        await wait_until(pilot, lambda: not app.reader.is_alive())

    drive(app, scenario)


def test_a_torn_and_a_missing_trace_are_said(trace_file: Path, tmp_path: Path, open_app: Any, drive: Any) -> None:
    """A run that was killed shows what it wrote; a file that is not there is an error on the screen."""
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(trace_file.read_bytes()[:-20])
    for path, words in ((torn, "torn"), (tmp_path / "none.jsonl", "No such file")):
        app = open_app(Sources(trace=path))

        async def scenario(pilot: Pilot[None], app: Any = app, words: str = words) -> None:
            assert any(words in note.message for note in app._notifications)

        drive(app, scenario)


def test_an_empty_file_has_no_header(tmp_path: Path, open_app: Any, drive: Any) -> None:
    """Nothing at all is no trace."""
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    app = open_app(Sources(trace=empty))

    async def scenario(pilot: Pilot[None]) -> None:
        assert any("no complete header" in note.message for note in app._notifications)

    drive(app, scenario)


def test_a_last_line_without_its_end_counts_if_it_is_whole(
    trace_file: Path, tmp_path: Path, open_app: Any, drive: Any
) -> None:
    """A whole object without the line's end is an event."""
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(trace_file.read_bytes().rstrip(b"\n"))
    last = json.loads(trace_file.read_text().splitlines()[-1])
    app = open_app(Sources(trace=whole))

    async def scenario(pilot: Pilot[None]) -> None:
        assert app.desk.story.is_over
        assert last["seq"] == app.desk.story.position

    drive(app, scenario)
