"""What a start costs: the command line and the package load no model library and no user interface."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import pie_mlx

if TYPE_CHECKING:
    from tests.packaging.conftest import Installed

pytestmark = [pytest.mark.packaging, pytest.mark.slow]

EXPENSIVE = frozenset({"mlx", "mlx_lm", "transformers", "textual", "torch", "huggingface_hub"})

HELP = """
import json, sys
from pie_mlx.cli.main import main
sys.argv = ["pie-mlx", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})), file=sys.stderr)
"""


def loaded(installed: Installed, code: str, *arguments: str) -> set[str]:
    """Run code in the installed environment; return the top-level modules that it had loaded at its end."""
    done = installed.run("python", "-I", "-c", code, *arguments)
    assert done.returncode == 0, done.stderr
    names: list[str] = json.loads(done.stderr.splitlines()[-1])
    return set(names)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["tot", "run", "--help"]])
def test_help_loads_nothing_expensive(installed: Installed, arguments: list[str]) -> None:
    """Help and version answer at once: none of the heavy packages is imported."""
    names = loaded(installed, HELP, *arguments)
    assert "pie_mlx" in names
    assert not names & EXPENSIVE


def test_import_of_the_package_loads_nothing(installed: Installed) -> None:
    """``import pie_mlx`` costs nothing until a name is used."""
    code = "import json, sys, pie_mlx; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    names = loaded(installed, code)
    assert not names & (EXPENSIVE | {"numpy", "pydantic"})


def test_every_public_name_resolves() -> None:
    """Each name of ``__all__`` leads to an object, and ``dir`` shows it."""
    for name in pie_mlx.__all__:
        assert getattr(pie_mlx, name) is not None
        assert name in dir(pie_mlx)


def test_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as it does in any module."""
    with pytest.raises(AttributeError, match="open_engin'"):
        _ = pie_mlx.open_engin
