# ruff: noqa: INP001 a script, not a module
"""What a search costs besides the model: a thousand nodes on the fake device. Run: python scripts/search_overhead.py.

The search's own thread is timed by its CPU seconds; the engine and the device work on threads of their own.
"""

from __future__ import annotations

import sys
import time
from importlib import util
from pathlib import Path

from pie_mlx.backend.fake import FakeBackend
from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free
from pie_mlx.search.trace_events import Event, Finished, RunStarted

NODES = 1000


def main() -> None:
    """Run and tell."""
    shared = Path(__file__).parents[1] / "tests" / "engine" / "search" / "conftest.py"
    spec = util.spec_from_file_location("shared", shared)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.CharText()
    clock: dict[str, float] = {}

    def listen(event: Event) -> None:
        if isinstance(event, RunStarted | Finished):
            clock[event.event] = time.thread_time()

    with Engine.start(
        lambda: FakeBackend(vocab_size=text.vocab_size, context_tokens=1 << 16), EngineSettings(pool_pages=4096), text
    ) as engine:
        params = SearchParams(breadth=10, beam=5, max_tokens=16, budget_nodes=NODES, temperature=1.0)
        began = time.monotonic()
        result = Run(engine, Free("Why?", depth=100), params, listen=listen).result()
        wall_s = time.monotonic() - began
    own_s = clock["finish"] - clock["run_start"]
    sys.stdout.write(f"{len(result.nodes)} nodes: {own_s:.2f} s of the search's own, {wall_s:.2f} s in all\n")


if __name__ == "__main__":
    main()
