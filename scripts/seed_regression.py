# ruff: noqa: INP001 a script, not a module
"""Repeat one search on the starter model in pools of 64, 40, 24 and 6 pages, and check what must not depend on them.

A beam search (breadth 4, beam 2, depth 3, 64 tokens a node) over pages of 32 tokens. In 64 pages three runs in a row
on one engine each choose a node and leave the pool as they found it; 40 and 24 pages give the same tree; 6 pages end
with a typed error that names numbers, and the engine then serves a small request. Exits 1 where one of these fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from pie_mlx.engine import Engine, EngineSettings
from pie_mlx.errors import PressureError
from pie_mlx.models.fetch import pull
from pie_mlx.open import open_folder
from pie_mlx.platform import prepare
from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.free import Free

QUESTION = "How could a small town use less water in a dry summer?"
TOO_SMALL = 6


def search(engine: Engine, params: SearchParams, name: str) -> SearchResult:
    """Run the search once and write one line about it."""
    before = engine.readings().counters.get("steps", 0)
    result = Run(engine, Free(QUESTION), params, name=name).result()
    steps, pages = engine.readings().counters.get("steps", 0) - before, result.pages
    sys.stdout.write(
        f"{pages.total:>3} pages  {name:<6} {result.finish_reason:<8} node {result.node}  "
        f"{len(result.nodes)} nodes  {result.tokens.completion} tokens  {steps} steps  {result.wall_s:.1f} s  "
        f"free {pages.free_before} -> {pages.free_after}, peak {pages.peak}, shared {pages.sharing_ratio:.2f}x\n"
    )
    for text in result.notices:
        sys.stdout.write(f"           note: {text}\n")
    sys.stdout.flush()
    return result


def tree_of(result: SearchResult) -> list[tuple[str, str, str]]:
    """Return what two equal searches have in common."""
    return [(node.id, node.text, node.status) for node in result.nodes]


def check_small(folder: Path, params: SearchParams, faults: list[str]) -> None:
    """A pool below one path ends with a typed error, and the engine goes on."""
    with open_folder(folder, EngineSettings(pool_pages=TOO_SMALL, page_size=32)) as engine:
        began = time.monotonic()
        result = search(engine, params, "small")
        sys.stdout.write(f"           {result.error!r}\n           after {time.monotonic() - began:.1f} s\n")
        if not isinstance(result.error, PressureError) or result.exit_code != PressureError.exit_code:
            faults.append(f"{TOO_SMALL} pages: {result.error!r}, exit code {result.exit_code}")
        with engine.context([1, 2, 3]) as context:
            if context.generate(max_tokens=2, stop_ids=()).completion_tokens != 2:
                faults.append(f"{TOO_SMALL} pages: the engine serves nothing afterwards")


def main() -> int:
    """Run the regression; return 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-tokens", type=int, default=64, help="tokens a node")
    params = SearchParams(breadth=4, beam=2, depth=3, max_tokens=parser.parse_args().max_tokens, seed=7)
    prepare()
    folder = pull("smollm2-135m")
    faults: list[str] = []
    results: list[SearchResult] = []
    with open_folder(folder, EngineSettings(pool_pages=64, page_size=32)) as engine:
        results += [search(engine, params, f"run {number}") for number in (1, 2, 3)]
        engine.check()
    for pages in (40, 24):
        with open_folder(folder, EngineSettings(pool_pages=pages, page_size=32)) as engine:
            results.append(search(engine, params, "same"))
            engine.check()
    for result in results:
        if result.node is None or result.pages.free_before != result.pages.free_after:
            faults.append(f"{result.pages.total} pages: node {result.node}, pages {result.pages}")
        if result.node != results[0].node or tree_of(result) != tree_of(results[0]):
            faults.append(f"{result.pages.total} pages: another tree than the first run's")
    check_small(folder, params, faults)
    sys.stdout.write("".join(f"FAULT {fault}\n" for fault in faults) or "all hold\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
