"""What every test starts from: settings of its own, no network by accident, and examples that repeat."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from pie_mlx.platform import prepare

# One run equals the next: a red test is red again on the second try, here and in CI. A shared machine may pause any
# example, so no deadline. HYPOTHESIS_PROFILE=search draws new and more examples.
settings.register_profile("repeat", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", parent=settings.get_profile("repeat"), derandomize=False, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

_TERMINAL_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES")
# Output that leaves at once hides what happens to output that waits, as a user's does.
_PYTHON_VARIABLES = ("PYTHONUNBUFFERED",)
# Facts of the machine rather than wishes of its user: where the starter model lies, and which BLAS to load.
_MACHINE_VARIABLES = ("PIE_MLX_CACHE_DIR", "PIE_MLX_BLAS")


def pytest_configure() -> None:
    """Load the fast BLAS before any test module imports MLX: it has no effect afterwards. Let Ctrl-C be pressed."""
    prepare()
    # A shell starts its background jobs with SIGINT ignored, and their children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _load_module(name: str, path: Path) -> ModuleType:
    """Import a file of the tests that lies in another folder under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def load_module() -> Callable[[str, Path], ModuleType]:
    """Return :func:`_load_module`."""
    return _load_module


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's configuration and terminal out of the test, and the test out of the user's folders."""
    wishes = [name for name in os.environ if name.startswith("PIE_MLX_") and name not in _MACHINE_VARIABLES]
    for name in (*wishes, *_TERMINAL_VARIABLES, *_PYTHON_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    for kind in ("CONFIG", "STATE", "DATA"):
        monkeypatch.setenv(f"PIE_MLX_{kind}_DIR", str(tmp_path / kind.lower()))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def starter() -> Path:
    """Return the starter model's folder; pulls it into the user's cache where it is not there yet."""
    from pie_mlx.models.fetch import pull

    return pull("smollm2-135m")
