"""The distribution as a user gets it: the sdist, the wheel made from it, and an environment with that wheel in it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The two files of one release."""

    sdist: Path
    wheel: Path


@dataclass(frozen=True, slots=True)
class Installed:
    """An environment that holds the wheel, and borrows everything else from the one that runs the tests."""

    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the environment, outside the repository, without its variables."""
        path = self.folder / "bin" / command[0]
        return subprocess.run(
            [str(path), *command[1:]], cwd=self.folder, capture_output=True, text=True, check=False, timeout=120
        )


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's top level."""
    return ROOT


@pytest.fixture(scope="session")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Build the sdist from the tree, then the wheel from that sdist and nothing else."""
    out = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)])
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return Distribution(sdist, wheel)


@pytest.fixture(scope="session")
def installed(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the wheel alone into an environment of its own.

    Its dependencies come from the running environment by a path entry: that folder's own import hooks are not
    executed, so that an editable install there cannot stand in for the wheel.
    """
    folder = tmp_path_factory.mktemp("installed") / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    _run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(distribution.wheel)])
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return Installed(folder)


def _run(command: list[str]) -> None:
    """Run a build step; a failure shows what the step said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
