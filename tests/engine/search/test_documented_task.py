"""The task that docs/search.md shows is what a user copies: it loads and runs as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks import Rejected, make_task

_DOCS = Path(__file__).parents[3] / "docs"
_EXAMPLE = _DOCS / "examples" / "acrostic.py"


def test_the_documented_task_runs(start_engine: Any) -> None:
    """The file is a task that a search brings to its end."""
    task = make_task(f"{_EXAMPLE}:Acrostic", "abc")
    result = Run(start_engine(), task, SearchParams(max_tokens=6, breadth=6, temperature=1.5)).result(60)
    assert result.error is None
    assert result.finish_reason in ("answer", "unsolved")
    assert len(result.nodes) > 1


def test_the_documented_task_judges_as_it_says() -> None:
    """Lines begin with the word's letters, and a line that stands twice is no solution."""
    task = make_task(f"{_EXAMPLE}:Acrostic", "oo")
    state = task.step(task.start(), "Over the sea")
    assert not isinstance(state, Rejected)
    assert isinstance(task.step(state, "Under it"), Rejected)
    twice = task.step(state, "Over the sea")
    right = task.step(state, "on we go")
    assert [task.check(task.answer(end)).solved for end in (twice, right)] == [False, True]  # type: ignore[union-attr,arg-type]


def test_the_page_shows_the_file() -> None:
    """The page's code is the file, and the file is short."""
    source = _EXAMPLE.read_text(encoding="utf-8")
    assert source in (_DOCS / "search.md").read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in source.splitlines()) <= 30
