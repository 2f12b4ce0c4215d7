"""The page of the command line is the help, word for word."""

from __future__ import annotations

import runpy
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_the_page_of_the_command_line_is_current() -> None:
    """docs/cli.md is what the program's help says; ``make docs`` writes it anew."""
    written = runpy.run_path(str(_ROOT / "scripts" / "cli_page.py"))["page"]()
    assert "### pie-mlx tot run\n" in written
    assert (_ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == written, "docs/cli.md is stale: make docs"
