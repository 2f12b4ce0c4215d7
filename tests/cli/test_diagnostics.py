"""How failures are told: each kind by a sentence of its own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from pie_mlx.cli.diagnostics import headline
from pie_mlx.errors import PieError, UsageError

# Importing them makes their errors known.
_HOMES = ("pie_mlx.errors", "pie_mlx.chat.errors")


def _kinds(root: type[PieError]) -> Iterator[type[PieError]]:
    """Yield the errors of the program and its chat, from the root down."""
    for kind in root.__subclasses__():
        yield kind
        yield from _kinds(kind)


@pytest.mark.parametrize("home", _HOMES)
def test_every_error_has_a_headline(home: str) -> None:
    """Its code alone says too little; a usage error's own sentence is its headline."""
    importlib.import_module(home)
    ours = {kind for kind in _kinds(PieError) if kind.__module__.startswith(home)}
    told = {kind.code for kind in ours if not issubclass(kind, UsageError)}
    assert len(told) > 5
    # "cancelled" says it all.
    assert {code for code in told if headline(code) == code.replace("_", " ")} <= {"cancelled"}
