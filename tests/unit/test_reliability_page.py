"""docs/reliability.md names tests behaviour by behaviour: each must exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reliability.md"


def test_every_test_that_the_page_names_exists() -> None:
    """A test that is renamed or removed takes its line along."""
    table = PAGE.read_text(encoding="utf-8").split("## Behaviour by behaviour")[1].split("\n## ")[0]
    rows = [line.rsplit("|", 2)[1] for line in table.splitlines() if line.startswith("| ")]
    named = [found.groups() for row in rows for found in re.finditer(r"`([\w/]+)`(?:: ([\w, ]+))?", row)]
    assert len(named) > 60
    for file, names in named:
        source = (TESTS / f"{file}.py").read_text(encoding="utf-8")
        for name in names.split(",") if names else ():
            assert re.search(rf"def test_\w*{name.strip()}", source), f"{file}: {name}"
