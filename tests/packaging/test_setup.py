"""How ``make`` finds its Python, before anything is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging


def script(path: Path, text: str) -> None:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def find_python(root: Path, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the search with a path of one folder (and the system's own tools)."""
    script(folder / "uname", "echo Linux")
    environment = {"PATH": str(folder), **variables}
    command = ["/bin/sh", str(root / "scripts" / "find-python")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_candidates_that_do_not_run_are_skipped(root: Path, tmp_path: Path) -> None:
    """A shim without an interpreter behind it, and one that is too old, are passed over for the one that works."""
    script(tmp_path / "python3.13", "echo 'command not found' >&2; exit 127")
    script(tmp_path / "python3.12", "exit 1")
    script(tmp_path / "python3", f'exec "{sys.executable}" "$@"')
    done = find_python(root, tmp_path)
    assert done.stdout == "python3\n"
    assert done.returncode == 0


def test_named_python_is_the_only_candidate(root: Path, tmp_path: Path) -> None:
    """``PYTHON`` may have spaces in it, and nothing else is tried beside it."""
    named = tmp_path / "my python"
    script(named, f'exec "{sys.executable}" "$@"')
    assert find_python(root, tmp_path, PYTHON=str(named)).stdout == f"{named}\n"
    script(tmp_path / "python3", f'exec "{sys.executable}" "$@"')
    assert find_python(root, tmp_path, PYTHON="absent").returncode == 1


def test_no_python_is_an_error_with_a_way_out(root: Path, tmp_path: Path) -> None:
    """Without a Python that is new enough, the search says what is needed and what to type."""
    script(tmp_path / "python3", "exit 1")
    done = find_python(root, tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    error, why, hint = done.stderr.splitlines()
    assert error.startswith("error: no Python")
    assert "3.11" in why
    assert hint.startswith("  try: ")
