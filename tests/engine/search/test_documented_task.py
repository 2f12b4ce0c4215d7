"""The task in docs/search.md is what a user copies: it loads and runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pie_mlx.search.params import SearchParams
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.registry import make_task

_DOCS = Path(__file__).parents[3] / "docs" / "search.md"


def test_the_documented_task_runs(start_engine: Any, tmp_path: Path) -> None:
    """The code block, saved as a file, is a task that a search brings to its end."""
    block = re.search(r"```python\n(.*?)```", _DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    (tmp_path / "letters.py").write_text(block[1], encoding="utf-8")
    task = make_task(f"{tmp_path / 'letters.py'}:Letters", "3")
    result = Run(start_engine(), task, SearchParams(max_tokens=4, breadth=4)).result(60)
    assert result.error is None
    assert result.finish_reason in ("answer", "unsolved")
    assert len(result.nodes) > 1
