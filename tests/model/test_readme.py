"""The README's Python example runs as it is printed there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.model
def test_example_runs_and_prints_five_answers(starter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four branches and a streamed answer are printed, and the pool's counts between them."""
    found = re.search(r"^```python\n(.+?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    exec(compile(found.group(1), str(README), "exec"), {})
    before, counts, after = capsys.readouterr().out.partition("PageCounts(total=512")
    assert counts
    assert before.strip()
    assert after.splitlines()[1].strip()
