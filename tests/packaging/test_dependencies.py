"""The declared dependencies are those that the code imports: none is missing, none is left over."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

pytestmark = pytest.mark.packaging

EXTRAS_OF_THE_PROGRAM = ("serve", "blas")
# Never imported by name: its BLAS is loaded from the wheel's folder.
LOADED_AS_A_LIBRARY = {"faiss-cpu"}


def normal(name: str) -> str:
    """Normalize a distribution's name as package indexes do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(root: Path, *extras: str) -> set[str]:
    """Return the names of the required distributions, with those of the extras."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return {normal(re.split(r"[\s\[<>=!~;]", line, maxsplit=1)[0]) for lines in lists for line in lines}


def imported_modules(root: Path) -> Iterator[str]:
    """Yield the top-level name of every absolute import of the package, deferred and by-name ones too."""
    for folder in (root / "pie_mlx", root / "pie_mlx" / "cli", root / "pie_mlx" / "tui"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    yield from (alias.name.split(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                    yield node.module.split(".")[0]
                elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                    names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                    yield from (name.split(".")[0] for name in names)


def imported(root: Path) -> set[str]:
    """Return the distributions that the imports of the package come from."""
    homes = packages_distributions()
    names = {name for name in imported_modules(root) if name not in sys.stdlib_module_names and name != "pie_mlx"}
    return {normal(home) for name in names for home in homes.get(name, [name])}


def test_every_import_is_declared(root: Path) -> None:
    """What the package imports is required by it, and not merely by one of its dependencies."""
    # The CPU backend shares mlx's import name, and comes with its extra.
    missing = imported(root) - declared(root, *EXTRAS_OF_THE_PROGRAM) - {"mlx-cpu", "mlx-metal"}
    assert not missing


def test_every_declared_dependency_is_imported(root: Path) -> None:
    """Nothing is installed on the user's machine that the package does not import."""
    unused = declared(root, *EXTRAS_OF_THE_PROGRAM) - imported(root) - LOADED_AS_A_LIBRARY
    assert not unused


def test_every_dependency_is_pinned_for_development(root: Path) -> None:
    """``constraints.txt`` has a release for each, so that two clones test the same set."""
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert declared(root, *EXTRAS_OF_THE_PROGRAM, "dev") <= {normal(name) for name in pins}
