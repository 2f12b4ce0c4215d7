"""The trace: what is written is read back; damage is named; a run has one end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pie_mlx.errors import UsageError
from pie_mlx.search.errors import NewerTraceError, TraceError
from pie_mlx.search.node import ROOT, NodeId, NodeStatus
from pie_mlx.search.trace import (
    EVENTS,
    AlarmRaised,
    Event,
    Finished,
    FinishReason,
    Header,
    NodeDone,
    NodeStarted,
    Noticed,
    RunStarted,
    TextAdded,
    Trace,
    TraceWriter,
    event_from_json,
    read_trace,
)
from pie_mlx.search.trace_events import kind_of

Recorded = Callable[..., Trace]
RunEvents = Callable[..., list[Event]]


def _view(trace: Trace) -> list[tuple[object, ...]]:
    """Return what the tree of a trace shows."""
    return [(n.id, n.status, n.text, n.value, n.tokens, n.pages, n.key) for n in trace.tree().walk()]


def test_what_is_written_is_read_back(recorded: Recorded, run_events: RunEvents) -> None:
    """Every field of every event survives the file, in order, with seq and time."""
    trace = recorded()
    assert trace.header.run == "run-1"
    assert trace.header.params == {"beam": 1}
    assert [replace(event, seq=0, t_ns=0) for event in trace.events] == run_events()
    assert [event.seq for event in trace.events] == list(range(1, len(trace.events) + 1))
    assert all(a.t_ns < b.t_ns for a, b in zip(trace.events, trace.events[1:], strict=False))
    assert not trace.torn
    assert isinstance(trace.finished, Finished)


def test_the_first_line_names_the_schema(recorded: Recorded) -> None:
    """The header is the first line and says pie-mlx.tot/1."""
    first = recorded().path.read_text().splitlines()[0]
    assert json.loads(first)["schema"] == "pie-mlx.tot/1"


def test_text_of_any_kind_stays_on_its_line(recorded: Recorded) -> None:
    """Line separators, NUL and lone surrogates do not break a line and come back unchanged."""
    hostile = 'a\nb\r\u2028\u2029\x00\ud800 "quoted" \\ 漢 {"event":"finish"}'
    trace = recorded([NodeStarted(node=ROOT), NodeDone(node=ROOT, text=hostile)])
    assert trace.tree().root.text == hostile
    assert trace.path.read_bytes().count(b"\n") == 3


def test_every_event_kind_has_a_name_of_its_own() -> None:
    """No two kinds share a name, and none is nameless."""
    names = [kind_of(cls) for cls in EVENTS]
    assert len(set(names)) == len(names)
    assert all(names)


def test_a_torn_last_line_is_dropped_and_said(recorded: Recorded) -> None:
    """Cut at every byte of the last two lines: the whole lines are read, and the tear is told."""
    trace = recorded()
    content = trace.path.read_bytes()
    lines = content.split(b"\n")
    start = len(content) - len(lines[-2]) - len(lines[-3]) - 2
    for cut in range(start, len(content) + 1):
        trace.path.write_bytes(content[:cut])
        read = read_trace(trace.path)
        whole = content[:cut].count(b"\n") - 1
        ends_whole = cut + 1 <= len(content) and content[cut : cut + 1] == b"\n"
        assert len(read.events) == whole + ends_whole
        assert read.torn == (content[cut - 1 : cut] != b"\n" and not ends_whole)
        assert content[: read.num_bytes] == content[:cut][: read.num_bytes]


def test_a_damaged_line_in_the_middle_is_named(recorded: Recorded) -> None:
    """A line that is not the last one and cannot be read is an error with its number."""
    trace = recorded()
    lines = trace.path.read_bytes().split(b"\n")
    lines[4] = lines[4][:-3]
    trace.path.write_bytes(b"\n".join(lines))
    with pytest.raises(TraceError) as caught:
        read_trace(trace.path)
    assert caught.value.line == 5
    assert "damaged" in caught.value.message


def test_a_missing_line_is_noticed(recorded: Recorded) -> None:
    """Events count without a gap, so a lost line cannot go unseen."""
    trace = recorded()
    lines = trace.path.read_bytes().split(b"\n")
    del lines[6]
    trace.path.write_bytes(b"\n".join(lines))
    with pytest.raises(TraceError, match="event 7 where 6 must follow"):
        read_trace(trace.path)


@pytest.mark.parametrize(
    "line",
    [
        {"event": "wormhole", "seq": 1, "t_ns": 0},
        {"event": "notice", "seq": 1, "t_ns": 0, "text": "x", "colour": "red"},
        {"event": "finish", "seq": 1, "t_ns": 0, "reason": "transcended"},
    ],
)
def test_words_of_a_newer_version_are_named(recorded: Recorded, line: dict[str, object]) -> None:
    """An unknown kind, field or reason says that the trace is newer, and how to read it."""
    trace = recorded([Noticed(text="x")])
    header = trace.path.read_bytes().split(b"\n")[0]
    trace.path.write_bytes(header + b"\n" + json.dumps(line).encode() + b"\n")
    with pytest.raises(NewerTraceError) as caught:
        read_trace(trace.path)
    assert caught.value.line == 2
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    "line",
    [
        [],
        {"event": "node_done", "seq": 1, "t_ns": 0},
        {"event": "node_done", "seq": "1", "t_ns": 0, "node": "0"},
        {"event": "node_done", "seq": 1, "t_ns": -1, "node": "0"},
        {"event": "node_done", "seq": 1, "t_ns": 0, "node": "../0"},
        {"event": "node_done", "seq": 1, "t_ns": 0, "node": "0", "tokens": {"prompt": 1.5}},
        {"event": "node_done", "seq": 1, "t_ns": 0, "node": "0", "terminal": 1},
        {"event": "score", "seq": 1, "t_ns": 0, "node": "0", "score": {"value": "9", "kind": "labels"}},
        {"event": "score", "seq": 1, "t_ns": 0, "node": "0", "score": {"kind": "labels"}},
        {"event": "select", "seq": 1, "t_ns": 0, "nodes": "0"},
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(line: object) -> None:
    """Types are checked while reading, not by whoever uses the event later."""
    with pytest.raises(ValueError, match=r"."):
        event_from_json(line)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    """Empty, foreign and missing files each get their own reason."""
    path = tmp_path / "x.jsonl"
    with pytest.raises(UsageError, match="no such file"):
        read_trace(path)
    for content in (b"", b'{"schema":"pie-mlx.tot/1","run":"r', b"\x00\x01\x02"):
        path.write_bytes(content)
        with pytest.raises(TraceError, match="no complete header"):
            read_trace(path)
    path.write_bytes(b'{"schema":"other/1"}\n')
    with pytest.raises(TraceError, match="this version reads"):
        read_trace(path)
    path.write_bytes(b'{"schema":"pie-mlx.tot/9"}\n')
    with pytest.raises(NewerTraceError):
        read_trace(path)


def test_a_trace_is_never_overwritten(recorded: Recorded) -> None:
    """Creating over a file is refused, and the file is unchanged."""
    trace = recorded()
    before = trace.path.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        TraceWriter.create(trace.path, trace.header)
    assert trace.path.read_bytes() == before


def test_a_run_has_exactly_one_finish(recorded: Recorded, tmp_path: Path) -> None:
    """The writer refuses an event after the finish; so does the reader."""
    end = Finished(reason=FinishReason.UNSOLVED)
    with TraceWriter.create(tmp_path / "a.jsonl", Header("r", "m", "v", 0, "free")) as writer:
        writer.write(end)
        with pytest.raises(AssertionError):
            writer.write(end)
    trace = recorded([end])
    with trace.path.open("ab") as file:
        file.write(json.dumps(replace(end, seq=2).to_json()).encode() + b"\n")
    with pytest.raises(TraceError, match="after the finish") as caught:
        read_trace(trace.path)
    assert caught.value.line == 3


def test_resume_cuts_the_torn_line_and_goes_on(recorded: Recorded, run_events: RunEvents) -> None:
    """Killed in the middle of any line, the run is finished later and gives the same tree."""
    whole = recorded()
    content = whole.path.read_bytes()
    for cut in (content.index(b"\n") + 1, len(content) // 2, len(content) - 40):
        whole.path.write_bytes(content[:cut])
        broken = read_trace(whole.path)
        with TraceWriter.resume(broken) as writer:
            for event in run_events()[len(broken.events) :]:
                writer.write(event)
        again = read_trace(whole.path)
        assert not again.torn
        assert _view(again) == _view(whole)
        assert all(a.t_ns <= b.t_ns for a, b in zip(again.events, again.events[1:], strict=False))


def test_resume_after_a_whole_line_without_its_end(recorded: Recorded) -> None:
    """A line that misses only its newline counts, and the next one starts on its own line."""
    trace = recorded([Noticed(text="first")])
    trace.path.write_bytes(trace.path.read_bytes().rstrip(b"\n"))
    with TraceWriter.resume(read_trace(trace.path)) as writer:
        writer.write(Noticed(text="second"))
    assert read_trace(trace.path).tree().notices == ["first", "second"]


def test_a_finished_run_is_not_resumed(recorded: Recorded) -> None:
    """Resuming needs a run that was cut off."""
    with pytest.raises(UsageError, match="has finished"):
        TraceWriter.resume(recorded())


def test_an_event_that_contradicts_the_tree_names_its_line(recorded: Recorded) -> None:
    """A well-formed file can still tell nonsense: the reader says where."""
    trace = recorded([NodeStarted(node=ROOT), TextAdded(node=NodeId("0.4"), text="x")])
    with pytest.raises(TraceError) as caught:
        trace.tree()
    assert caught.value.line == 3


def test_a_header_that_json_cannot_tell_is_a_typed_error(tmp_path: Path) -> None:
    """NaN in the parameters is refused when it is written."""
    with pytest.raises(TraceError, match="JSON"):
        TraceWriter.create(tmp_path / "a.jsonl", Header("r", "m", "v", 0, "free", params={"t": float("nan")}))


def test_a_killed_process_leaves_every_event_that_write_returned_from(tmp_path: Path) -> None:
    """SIGKILL between two events loses none of those before it."""
    path = tmp_path / "killed.jsonl"
    code = f"""
        import time
        from pathlib import Path
        from pie_mlx.search.trace import *
        from pie_mlx.search.tree import ROOT, child_id
        writer = TraceWriter.create(Path({str(path)!r}), Header("r", "m", "v", 0, "free"))
        writer.write(RunStarted(question="q"))
        for i in range(29):
            writer.write(Noticed(text=str(i)))
        print("ready", flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(read_trace(path).tree().notices) == 29


def test_a_hundred_thousand_events_are_read(tmp_path: Path) -> None:
    """Reading is linear: a large trace neither recurses nor grows quadratic (the file would take minutes)."""
    path = tmp_path / "large.jsonl"
    header = json.dumps(Header("r", "m", "v", 0, "free").to_json())
    lines = [header, '{"event":"node_start","seq":1,"t_ns":0,"node":"0"}']
    lines.append('{"event":"node_done","seq":2,"t_ns":1,"node":"0"}')
    for i in range(50_000):
        lines.append(f'{{"event":"node_start","seq":{2 * i + 3},"t_ns":{i + 1},"node":"0.{i}"}}')
        lines.append(f'{{"event":"node_done","seq":{2 * i + 4},"t_ns":{i + 1},"node":"0.{i}","text":"thought {i}"}}')
    path.write_text("\n".join(lines) + "\n")
    trace = read_trace(path)
    assert len(trace.events) == 100_002
    assert trace.tree().counts()[NodeStatus.OPEN] == 50_000


def test_run_facts_reach_the_tree(recorded: Recorded) -> None:
    """Question, alarms and outcome are part of what a view shows."""
    tree = recorded(
        [
            RunStarted(question="why?"),
            AlarmRaised(kind="starved", message="3 pages short"),
            Finished(reason=FinishReason.STARVED, error="starved: 3 pages short"),
        ]
    ).tree()
    assert tree.question == "why?"
    assert tree.alarms == ["starved: 3 pages short"]
    assert tree.outcome is not None
    assert (tree.outcome.reason, tree.outcome.solved) == ("starved", None)
