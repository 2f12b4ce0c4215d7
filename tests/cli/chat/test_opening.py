"""Which model a saved session is continued with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pie_mlx.chat import SessionStore
from pie_mlx.chat.store import SessionFacts
from pie_mlx.cli.chat.opening import _with_its_model
from pie_mlx.cli.diagnostics import Stderr
from pie_mlx.config import Settings


@pytest.fixture
def saved() -> SessionFacts:
    """Return a saved session."""
    with SessionStore(None) as store:
        return store.create(model="gone-model", system=None, settings=None, name="talk")


def test_a_model_that_is_not_here_gives_way_with_a_notice(
    saved: SessionFacts, capsys: pytest.CaptureFixture[str]
) -> None:
    """The conversation is not lost with its model: the configured one reads it."""
    settings = Settings(model="smollm2-135m")
    assert _with_its_model(settings, saved, Stderr()) == settings
    told = capsys.readouterr().err
    assert "session talk was held with gone-model, which is not here" in told


def test_the_same_model_is_no_news(saved: SessionFacts, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is said where nothing differs."""
    settings = Settings(model="smollm2-135m")
    assert _with_its_model(settings, replace(saved, model="smollm2-135m"), Stderr()) == settings
    assert capsys.readouterr().err == ""
