"""A process that is killed leaves every event that it told, and the run goes on from there."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace import TraceWriter, read_trace
from pie_mlx.search.trace_events import NodeDone

_PROGRAM = """
import os, signal, sys
from importlib import util
from pathlib import Path
spec = util.spec_from_file_location("shared", sys.argv[1])
shared = util.module_from_spec(spec)
spec.loader.exec_module(shared)
from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace import TraceWriter
from pie_mlx.search.trace_events import NodeDone
text = shared.CharText()
engine = Engine.start(
    lambda: FakeBackend(vocab_size=text.vocab_size, context_tokens=1 << 16), EngineSettings(pool_pages=512), text
)
seen = 0
def listen(event):
    global seen
    seen += isinstance(event, NodeDone)
    if seen == 8:
        os.kill(os.getpid(), signal.SIGKILL)
run = Run(engine, Free("Why?", depth=2), SearchParams(max_tokens=12, answer_tokens=12, breadth=3), listen=listen)
with TraceWriter.create(Path(sys.argv[2]), run.header()) as writer:
    run.record(writer)
    run.result()
"""


def test_every_event_before_a_kill_is_readable(start_engine: Any, tmp_path: Path) -> None:
    """Killed at its eighth thought, the trace has eight; resumed, it ends as a run that was never killed."""
    path = tmp_path / "killed.jsonl"
    shared = Path(__file__).with_name("conftest.py")
    done = subprocess.run([sys.executable, "-c", _PROGRAM, str(shared), str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    trace = read_trace(path)
    assert sum(isinstance(event, NodeDone) for event in trace.events) == 8
    task, params = Free("Why?", depth=2), SearchParams(max_tokens=12, answer_tokens=12, breadth=3)
    whole = Run(start_engine(), task, params).result(60)
    with TraceWriter.resume(trace) as writer:
        result = Run.from_trace(start_engine(), task, trace, writer=writer).result(60)
    assert [(n.id, n.text, n.score) for n in result.nodes] == [(n.id, n.text, n.score) for n in whole.nodes]
