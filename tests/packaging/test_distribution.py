"""What is in the release, and that it stands on its own."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pie_mlx

if TYPE_CHECKING:
    from tests.packaging.conftest import Distribution, Installed

pytestmark = [pytest.mark.packaging, pytest.mark.slow]

LINKS = {"cli": "../cli", "tui": "../tui", "models.toml": "../models.toml"}


def tree_files(root: Path) -> set[str]:
    """List the files of the package as the tree holds them, through the links, without what Python caches."""
    found = set()
    folders = [root / "pie_mlx"]
    while folders:
        for path in folders.pop().iterdir():
            if path.is_dir():
                if path.name != "__pycache__":
                    folders.append(path)
            elif path.suffix != ".pyc":
                found.add(path.relative_to(root).as_posix())
    return found


def test_links_in_the_tree_are_relative(root: Path) -> None:
    """The front ends and the registry live at the top level and are linked from the package, wherever a clone lies."""
    if not (root / "cli").exists():
        pytest.skip("an unpacked sdist has the front ends in the package itself")
    for name, target in LINKS.items():
        assert str((root / "pie_mlx" / name).readlink()) == target


def test_wheel_holds_exactly_the_files_of_the_package(root: Path, distribution: Distribution) -> None:
    """A wheel built from the sdist has every file of the tree, the linked folders too, and nothing else."""
    with zipfile.ZipFile(distribution.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == tree_files(root)
    assert {"pie_mlx/cli/main.py", "pie_mlx/tui/__init__.py", "pie_mlx/models.toml", "pie_mlx/py.typed"} <= names


def test_linked_registry_has_its_content_in_the_wheel(root: Path, distribution: Distribution) -> None:
    """The model registry travels as a file, not as the text of a link."""
    with zipfile.ZipFile(distribution.wheel) as wheel:
        packed = wheel.read("pie_mlx/models.toml").decode()
    assert packed == (root / "models.toml").read_text(encoding="utf-8")
    assert "smollm2-135m" in packed


def test_sdist_can_be_tested(distribution: Distribution) -> None:
    """Who packages pie-mlx finds tests, licence and pins in the sdist."""
    with tarfile.open(distribution.sdist) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames()}
    wanted = {"LICENSE", "README.md", "pyproject.toml", "constraints.txt", "Makefile", "models.toml"}
    assert wanted <= names
    assert "tests/packaging/test_distribution.py" in names


def test_sdist_holds_the_front_ends_once(distribution: Distribution) -> None:
    """The code behind the links is in the package and nowhere else, so that there is one copy to change."""
    with tarfile.open(distribution.sdist) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames()}
    assert {"pie_mlx/cli/main.py", "pie_mlx/tui/__init__.py"} <= names
    assert not [name for name in names if name.startswith(("cli/", "tui/"))]


def test_version_has_one_source(root: Path, distribution: Distribution, installed: Installed) -> None:
    """The package's version names the files, and the installed command prints it."""
    with (root / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert "version" in project["dynamic"]
    assert distribution.wheel.name.startswith(f"pie_mlx-{pie_mlx.__version__}-")
    done = installed.run("pie-mlx", "--version")
    assert done.returncode == 0, done.stderr
    assert pie_mlx.__version__ in done.stdout


def test_installed_package_is_the_wheel(installed: Installed) -> None:
    """The environment imports the package from itself, not from the tree."""
    done = installed.run("python", "-I", "-c", "import pie_mlx.cli, pie_mlx.tui; print(pie_mlx.cli.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed.folder)


@pytest.mark.parametrize("name", ["cli", "tui", "tests", "models"])
def test_no_top_level_name_is_taken(installed: Installed, name: str) -> None:
    """The folders beside the package do not become top-level modules of the user's environment."""
    done = installed.run("python", "-I", "-c", f"import {name}")
    assert done.returncode == 1
    assert f"No module named '{name}'" in done.stderr


def test_module_can_be_run(installed: Installed) -> None:
    """``python -m pie_mlx`` is the command."""
    done = installed.run("python", "-I", "-m", "pie_mlx", "--version")
    assert done.returncode == 0, done.stderr
    assert pie_mlx.__version__ in done.stdout
