"""The drill: a small pool, many clients, searches among them, some leaving at random. Nothing hangs or leaks."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SHORT_S = 15.0
PAGES = 40


@pytest.fixture
def script() -> ModuleType:
    """Return the script that holds the clients."""
    path = Path(__file__).parents[3] / "scripts" / "http_drill.py"
    spec = importlib.util.spec_from_file_location("http_drill", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["http_drill"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_drill_leaves_all_as_it_was(serve: Any, script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Every answer is whole or typed, every page comes back, memory is flat; as long as PIE_DRILL_S says."""
    seconds = float(os.environ.get("PIE_DRILL_S", SHORT_S))
    engine = {"max_batch": 8, "stall_timeout_s": 5.0}
    server = serve(pages=PAGES, engine=engine, max_running=12, max_waiting=6, max_searches=6)
    drill = script.Drill(server.url, seconds, os.getpid())
    drill.run()
    counters = {name: count for name, count in server.engine.readings().counters.items() if count}
    told = {"met": dict(drill.met.most_common()), "memory": vars(drill.memory), "engine": counters}
    with capsys.disabled():
        sys.stderr.write(f"\n{json.dumps(told)}\n")
    assert not drill.faults, drill.faults[:5]
    assert drill.met["left"]
    assert drill.met["answered"]
    assert drill.met["impossible"]
    assert drill.met["streamed"]
    assert any(what.startswith("search") for what in drill.met)
    assert server.free_pages() == PAGES
    server.engine.check()
    state = server.daemon.state
    server.wait_until(lambda: not state.exchanges)
    assert (state.gate.num_inside, state.gate.num_waiting) == (0, 0)
    assert (state.search_gate.num_inside, state.search_gate.num_waiting) == (0, 0)
    assert not state.runs
    assert drill.memory.is_flat, drill.memory
    assert server.chat().status_code == 200
